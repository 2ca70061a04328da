"""`evenq dlq`."""
