"""Half messages and how they end."""
