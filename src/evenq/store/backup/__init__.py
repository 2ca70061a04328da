"""Backups: the content of a target, creation, verification, and restore into a data folder.

Page: docs/operating/backup.md; format: docs/internals/data_files.md. Nothing here connects to a broker.
"""
