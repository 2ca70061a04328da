"""Long polls: waiting here, and across the cluster."""
