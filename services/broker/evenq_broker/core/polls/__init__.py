"""Long polls: who waits for what."""
