"""`evenq schedule`: recurring messages."""
