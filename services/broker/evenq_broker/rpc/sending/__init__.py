"""Messages that come, from both protocols."""
