"""Decisions of the rebalancer. Pure: events in, commands out; no clock, no I/O."""
