"""`evenq group`."""
