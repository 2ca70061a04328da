"""What every server needs: the one gRPC door, settings, health, logs and the metrics page."""
