"""Progress of groups, and redelivery."""
