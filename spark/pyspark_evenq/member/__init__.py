"""Streams that are members of a consumer group."""
