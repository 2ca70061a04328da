"""`evenq context`: clusters under short names, with their access points, keys and TLS files."""
