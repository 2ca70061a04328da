"""Routes that a client knows, and the search for the leader of a broker group."""
