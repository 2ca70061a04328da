"""Rows that wait for the decision of their batch."""
