"""The decisions of a broker. Pure: events come in, commands go out; no clock, no I/O."""
