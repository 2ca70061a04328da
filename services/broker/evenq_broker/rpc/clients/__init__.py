"""Signs of life, telemetry, and the list of clients."""
