"""The Kubernetes API, and Leases that several processes compare and set."""
