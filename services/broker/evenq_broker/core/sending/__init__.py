"""Checks of sent messages, and the form in which they are stored."""
