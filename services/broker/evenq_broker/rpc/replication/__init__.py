"""Calls between the copies of one broker group."""
