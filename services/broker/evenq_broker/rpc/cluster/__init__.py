"""Routes, assignments, forwarding, and the state of the cluster: any broker answers for all."""
