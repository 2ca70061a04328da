"""MACHINE_ROOM beyond the tables of tests/spec/test_allocation.py."""

from __future__ import annotations

from evenq.allocation import MachineRoom
from evenq.model import MessageQueue


def test_without_rooms_nobody_gets_anything() -> None:
    assert MachineRoom().allocate("g", "a", [MessageQueue("T", "r@b", 0)], ["a"]) == []
