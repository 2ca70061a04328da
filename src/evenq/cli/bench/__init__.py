"""`evenq bench`: how many messages a cluster takes and delivers, and how fast."""
