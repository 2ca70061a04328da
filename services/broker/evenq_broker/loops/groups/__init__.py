"""Sessions, locks and settings of consumer groups."""
