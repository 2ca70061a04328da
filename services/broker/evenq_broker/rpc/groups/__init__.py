"""Sessions, locks and offsets of groups."""
