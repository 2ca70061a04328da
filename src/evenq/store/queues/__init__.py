"""Reads of a queue: from memory, from the entries on disk, as messages or as whole blocks of records."""
