"""The producer's loop, what it holds of each message, and the limits of what waits."""
