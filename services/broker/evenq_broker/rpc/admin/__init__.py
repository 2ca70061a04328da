"""Administration of topics and groups, in both protocols."""
