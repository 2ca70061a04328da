"""Messages that come: once, and at their time."""
