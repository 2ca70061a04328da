"""Sends, blocks and recalls, in both protocols."""
