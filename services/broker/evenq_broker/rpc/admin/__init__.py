"""Topics and groups, for tools of both protocols."""
