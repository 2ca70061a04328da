"""Messages for receives, and the end of deliveries at a shutdown."""
