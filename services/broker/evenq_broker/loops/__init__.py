"""What this program does: the loops that carry out what `core` decides."""
