"""Who has finished what, and what comes again when."""
