"""Decisions of a producer: batches, the queue of a message, brokers to avoid, message ids, requests and replies."""
