"""`evenq topic`."""
