"""Half messages: stored, checked, ended."""
