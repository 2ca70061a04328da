"""`evenq backup`."""
