"""What is wrong with a group, and what became of a message."""
