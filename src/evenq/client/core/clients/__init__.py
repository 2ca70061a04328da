"""Checks that every client makes: its life (started once, closed once) and the functions of its user."""
