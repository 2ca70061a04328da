"""The clients this broker has heard of."""
