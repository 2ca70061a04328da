"""Backups: what lies in a target, how it gets there, how it is checked, and a data folder made of it.

Page: docs/operating/backup.md; format: docs/internals/data_files.md. Nothing here talks to a broker.
"""
