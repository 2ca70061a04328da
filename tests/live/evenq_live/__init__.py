"""Groups of real processes whose members and services come, go and die while a steady stream of messages is read."""
