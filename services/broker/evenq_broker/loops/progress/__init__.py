"""A group in a queue: where it begins, and how often its messages were delivered."""
