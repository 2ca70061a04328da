"""Taking messages for a receive, and where a group begins."""
