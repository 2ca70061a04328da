"""The cached routes of a client, and the search for the leader of a broker group."""
