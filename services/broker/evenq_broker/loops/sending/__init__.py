"""Duplicates and delays of sent messages."""
