"""State and decisions of the nameserver. Pure: no clock, no I/O."""
