"""Settings of the console."""

from __future__ import annotations

from evenq.console.settings import ConsoleSettings


def test_a_console_is_read_only_and_local_by_default() -> None:
    settings = ConsoleSettings()
    assert not settings.allow_changes
    assert settings.host == "127.0.0.1"
    assert settings.names == ()
