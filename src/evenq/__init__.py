"""evenq: a message queue that keeps the load even."""

__version__ = "0.1.0"
