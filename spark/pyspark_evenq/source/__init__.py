"""Readers of batches and streams."""
