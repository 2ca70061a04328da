"""What lite topics need of all brokers."""
