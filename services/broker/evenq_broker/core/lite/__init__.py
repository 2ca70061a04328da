"""Lite topics and who wants them."""
