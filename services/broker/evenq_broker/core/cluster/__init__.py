"""The cluster as this broker sees it."""
