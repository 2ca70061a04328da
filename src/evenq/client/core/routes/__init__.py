"""Routes of topics and the client's access points."""
