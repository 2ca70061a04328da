"""Messages by their id and keys: index files and the follower that fills them behind the log."""
