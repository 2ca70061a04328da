"""The gRPC servers of a program: their ports, health, reflection, and forwarded connections."""
