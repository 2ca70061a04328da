"""The broker's state on disk: opening, journal, and waiting for a change."""
