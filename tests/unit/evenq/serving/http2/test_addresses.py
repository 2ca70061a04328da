"""Which connection makes room for a new one."""

from __future__ import annotations

from dataclasses import dataclass, field

from evenq.serving.http2.addresses import LOOK_MS, IdleConnections


@dataclass
class Stub:
    """A connection; each that ends says so in `ended`."""

    name: str
    idle_since_ms: int | None
    ended: list[str] = field(repr=False)

    def make_room(self) -> None:
        self.idle_since_ms = None
        self.ended.append(self.name)


def test_the_longest_idle_one_makes_room_and_busy_ones_never() -> None:
    ended: list[str] = []
    made = [Stub(name, since, ended) for name, since in (("late", 30), ("busy", None), ("early", 10), ("same", 10))]
    idle = IdleConnections()
    assert [idle.end_one(made, 100) for _ in range(4)] == [True, True, True, False]
    assert ended == ["early", "same", "late"]


def test_one_that_got_a_call_since_the_look_stays() -> None:
    ended: list[str] = []
    made = [Stub(name, since, ended) for name, since in (("a", 1), ("b", 2), ("c", 3))]
    idle = IdleConnections()
    assert idle.end_one(made, 100)
    made[1].idle_since_ms = None
    assert idle.end_one(made, 100)
    assert ended == ["a", "c"]


def test_all_connections_are_looked_at_once_a_second_at_most() -> None:
    ended: list[str] = []
    made = [Stub("a", None, ended)]
    idle = IdleConnections()
    assert not idle.end_one(made, 100)
    made[0].idle_since_ms = 50
    assert not idle.end_one(made, 100 + LOOK_MS - 1)
    assert idle.end_one(made, 100 + LOOK_MS)
