"""Dead letters of a group, and sending them once more."""
