"""The gRPC servers of a program: their ports, health, reflection, and what a caller receives when a handler fails."""
