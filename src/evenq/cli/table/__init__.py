"""`evenq table` and `evenq query`."""
