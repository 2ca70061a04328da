"""The producer's transactions: half messages, decisions, answers to checks."""
