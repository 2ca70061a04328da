"""Members of groups, their locks, fences and resets."""
