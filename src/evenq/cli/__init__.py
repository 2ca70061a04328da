"""The command `evenq`. Only this package imports the servers' programs."""
