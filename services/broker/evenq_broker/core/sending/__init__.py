"""What a message may be, and what of it is stored."""
