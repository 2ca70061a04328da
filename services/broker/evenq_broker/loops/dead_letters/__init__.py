"""Retries, dead letters and their replay."""
