"""Checks of every client: it is started once and closed once, and the functions of its user are valid."""
