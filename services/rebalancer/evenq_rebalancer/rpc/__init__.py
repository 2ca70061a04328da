"""What this program says: transport-neutral handlers, bytes in, bytes out."""
