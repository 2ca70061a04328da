"""Progress and metrics of queries."""
