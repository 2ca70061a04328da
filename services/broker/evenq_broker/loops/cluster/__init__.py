"""This broker among the others."""
