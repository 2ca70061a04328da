"""`evenq store`."""
