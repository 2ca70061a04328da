"""What this program decides. Pure: events in, commands out; no clock, no I/O."""
