"""`evenq broker` and `evenq cluster`."""
