"""Sessions, locks and settings of groups."""
