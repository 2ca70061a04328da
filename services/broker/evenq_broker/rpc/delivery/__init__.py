"""Receives, acks, pulls and blocks of both protocols."""
