"""CONFIG."""

from __future__ import annotations

from evenq.allocation import Config
from evenq.model import MessageQueue


def test_each_call_gives_a_list_of_its_own() -> None:
    strategy = Config((MessageQueue("T", "b", 0),))
    strategy.allocate("g", "a", [], []).clear()
    assert len(strategy.allocate("g", "a", [], [])) == 1
