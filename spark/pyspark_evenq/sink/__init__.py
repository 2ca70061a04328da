"""Writers of batches and streams."""
