"""Loops that run over time and carry out the decisions of `core`."""
