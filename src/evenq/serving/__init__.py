"""What every server needs: the one gRPC server, settings, health, logs and the metrics page."""
