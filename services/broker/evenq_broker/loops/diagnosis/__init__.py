"""Looking at groups every few seconds."""
