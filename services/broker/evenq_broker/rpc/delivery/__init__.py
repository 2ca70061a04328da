"""Receives, acks, pulls and offsets of both protocols."""
