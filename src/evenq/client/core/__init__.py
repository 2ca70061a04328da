"""Decisions of the SDK: plain objects that take events and return commands; no clock, threads, files or network."""
