"""Dead letters of a group, and their replay."""
