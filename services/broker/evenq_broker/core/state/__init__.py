"""Foundations of the core: names, records, handles, encoded parts of messages."""
