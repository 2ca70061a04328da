"""`evenq up`."""
