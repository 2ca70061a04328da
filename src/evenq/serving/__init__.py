"""Parts of every server: the gRPC server, settings, health, logs and the metrics page."""
