"""`evenq auth`: the rights of users."""
