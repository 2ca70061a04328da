"""Staged rows: stored, decided, published."""
