"""Started once, closed once."""

from __future__ import annotations

import pytest

from evenq.client.core.clients.lifetime import Lifetime
from evenq.errors import Unsupported


def test_it_runs_between_its_start_and_its_end() -> None:
    one = Lifetime("g")
    assert not one.running
    one.check_new()
    one.check_open()
    with pytest.raises(Unsupported, match=r"this consumer of g is not running; call start\(\)"):
        one.check_running()
    one.started = True
    assert one.running
    one.check_running()
    with pytest.raises(Unsupported, match="this consumer of g was started before; make a new one"):
        one.check_new()
    assert one.end()
    assert not one.running
    assert one.started
    for check, text in ((one.check_running, "not running"), (one.check_open, "closed"), (one.check_new, "before")):
        with pytest.raises(Unsupported, match=text):
            check()
    assert not one.end(), "there is one end"


def test_what_was_closed_before_its_start_has_nothing_to_end_and_never_starts() -> None:
    one = Lifetime("g")
    assert not one.end()
    with pytest.raises(Unsupported, match="was started before"):
        one.check_new()
    one.started = True
    assert not one.running
