"""When a round asks the server for its part, and when it need not."""

from __future__ import annotations

import asyncio

import pytest

from evenq.allocation import Config, Strategy, by_name
from evenq.client.core.calls import Assignment, MemberInfo
from evenq.client.core.routes.route import Route
from evenq.client.loops.groups.assignment_source import AssignmentSource
from evenq.client.loops.routes.route_book import RouteBook
from evenq.errors import TopicNotFound
from evenq.model import NO_GENERATION, Generation, MessageModel, MessageQueue
from evenq.model.session_events import AssignmentChanged
from evenq.runtime.clock import FakeClock

TRUST_MS = 20_000
RETRY = "%RETRY%g"


def queues(*numbers: int) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue("t", "b", number) for number in numbers)


class Wire:
    """A server that says what the test sets."""

    def __init__(self) -> None:
        self.asked = 0
        self.strategies: list[object] = []
        self.answer = Assignment(True, queues(0), Generation(1, 1))
        self.meanwhile = lambda: None

    async def query_assignment(self, *question: object) -> Assignment:
        self.asked += 1
        self.strategies.append(question[2])
        self.meanwhile()
        return self.answer

    def turn_away(self) -> None:
        pass

    async def query_route(self, topic: str) -> Route:
        if topic == RETRY:
            raise TopicNotFound("not yet")
        return Route(topic=topic, writable=(), readable=queues(0, 1), addresses={"b": "b:1"})


class Sessions:
    def __init__(self) -> None:
        self.configured = ""
        self.topics: dict[str, set[str]] = {"m": set(), "n": set()}
        self.v2: list[str] = []

    def members(self) -> list[MemberInfo] | None:
        if self.configured != "":
            return None
        others = [MemberInfo(name, "v2", frozenset()) for name in self.v2]
        return [MemberInfo(name, "evenq", frozenset(topics)) for name, topics in self.topics.items()] + others

    def strategy(self) -> str:
        return self.configured


class Desk:
    def __init__(self, *, ask_server: bool | None = True, strategy: Strategy | None = None) -> None:
        self.wire, self.clock, self.sessions = Wire(), FakeClock(), Sessions()
        self.routes = RouteBook(self.wire, self.clock, refresh_ms=30_000)  # type: ignore[arg-type]  # only what it asks
        self.assignment = AssignmentSource(
            calls=self.wire,  # type: ignore[arg-type]  # only what it asks
            routes=self.routes,
            sessions=self.sessions,  # type: ignore[arg-type]  # only what it asks
            group="g",
            client_id="m",
            strategy=strategy or by_name("AVG"),
            model=MessageModel.CLUSTERING,
            ask_server=ask_server,
            clock=self.clock,
            trust_ms=TRUST_MS,
        )

    def decides(self, counter: int, *numbers: int) -> bool:
        return self.assignment.take(AssignmentChanged("t", Generation(1, counter), queues(*numbers)))

    def part(self) -> list[int] | None:
        found = asyncio.run(self.assignment.assigned("t"))
        return None if found is None else [queue.queue_id for queue in found]


def test_members_that_own_queues_divide_them_among_themselves() -> None:
    """Clients that receive own none: a share of theirs would not be read."""
    desk = Desk(ask_server=False)
    assert desk.part() == [0]
    desk.sessions.v2 = ["a", "z"]
    assert desk.part() == [0]
    del desk.sessions.topics["n"]
    assert desk.part() == [0, 1]


def test_what_a_broker_told_is_not_asked_for_and_counts_for_the_fence() -> None:
    desk = Desk()
    assert desk.decides(3, 0, 1)
    assert desk.part() == [0, 1]
    assert (desk.wire.asked, desk.assignment.generation("t")) == (0, Generation(1, 3))
    assert desk.assignment.all_decided(["t", RETRY])
    assert not desk.assignment.all_decided(["t", "u"])


def test_xo_7_an_older_decision_told_late_changes_nothing_and_asks_nothing() -> None:
    desk = Desk()
    assert desk.decides(3, 0, 1)
    assert desk.decides(2, 1)
    assert (desk.part(), desk.wire.asked) == ([0, 1], 0)
    desk.wire.answer = Assignment(True, queues(0), Generation(1, 1))
    desk.wire.meanwhile = lambda: desk.decides(4, 1) and None
    desk.assignment.suspect()
    assert (desk.part(), desk.assignment.generation("t")) == ([1], Generation(1, 4)), "reported while it was asked"


def test_an_answer_is_trusted_until_suspicion_a_change_without_a_share_or_time() -> None:
    desk = Desk()
    desk.part()
    desk.part()
    assert desk.wire.asked == 1
    desk.assignment.suspect()
    desk.part()
    assert desk.wire.asked == 2
    assert not desk.assignment.take(AssignmentChanged("t", Generation(1, 2)))
    desk.part()
    assert desk.wire.asked == 3
    asyncio.run(desk.clock.advance(TRUST_MS))
    desk.part()
    assert desk.wire.asked == 4


def test_what_a_broker_computed_is_asked_for_each_time() -> None:
    desk = Desk()
    desk.decides(3, 0, 1)
    desk.assignment.suspect()
    desk.wire.answer = Assignment(True, queues(0))
    assert (desk.part(), desk.part(), desk.wire.asked) == ([0], [0], 2)
    assert not desk.assignment.all_decided(["t"])


def test_members_that_divide_by_themselves_take_no_shares() -> None:
    desk = Desk(ask_server=False)
    assert not desk.decides(3, 0, 1)
    assert (desk.part(), desk.wire.asked) == ([0], 0), "its own part of two queues among two members"


def test_sr_1_sr_2_who_was_told_neither_asks_exactly_while_the_group_has_a_strategy() -> None:
    desk = Desk(ask_server=None)
    assert not desk.decides(3, 0, 1)
    assert (desk.part(), desk.wire.asked, desk.assignment.asks) == ([0], 0, False)
    desk.sessions.configured = "STICKY"
    desk.wire.answer = Assignment(True, queues(1), Generation(1, 4))
    desk.assignment.suspect()
    assert (desk.part(), desk.wire.asked, desk.wire.strategies) == ([1], 1, ["STICKY"])
    assert desk.decides(5, 0, 1)
    assert (desk.part(), desk.assignment.generation("t"), desk.wire.asked) == ([0, 1], Generation(1, 5), 1)
    desk.sessions.configured = ""
    assert (desk.part(), desk.assignment.generation("t"), desk.wire.asked) == ([0], NO_GENERATION, 1)
    assert not desk.assignment.all_decided(["t"]), "joins and leaves are its own business again"


async def test_a_retry_topic_that_is_not_made_yet_costs_one_call() -> None:
    desk = Desk()
    for _ in range(3):
        with pytest.raises(TopicNotFound):
            await desk.assignment.assigned(RETRY)
    assert desk.wire.asked == 0


def test_when_the_last_decision_came_is_known() -> None:
    desk = Desk()
    assert not desk.assignment.heard_since(0)
    desk.decides(1, 0)
    assert desk.assignment.heard_since(0)


def test_al_14_a_list_with_queues_that_do_not_exist_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(ask_server=False, strategy=Config(queues(0, 8, 9)))
    assert desk.part() == [0, 8, 9]
    assert desk.part() == [0, 8, 9]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "group g, topic t: CONFIG names queues that do not exist, so they are not read: b/8, b/9"


@pytest.mark.spec("RB-14")
def test_a_changed_share_is_logged_with_its_queues_and_what_divided_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    def line(desk: Desk) -> str:
        caplog.clear()
        desk.part()
        desk.assignment.log_share("t", queues(*range(34)))
        (record,) = caplog.records
        return record.getMessage()

    desk = Desk(ask_server=False)
    named = ", ".join(f"b/{number}" for number in range(32))
    assert line(desk) == (
        f"group g: 34 queues of topic t assigned to this member: {named}, ... (2 queues among 2 members, strategy AVG, client m)"
    )
    assert line(Desk()).endswith("(decided by the server, strategy AVG, client m)")
    desk = Desk(ask_server=None)
    desk.sessions.configured = "STICKY"
    assert line(desk).endswith("(decided by the server, strategy STICKY, client m)")
    desk.assignment.chosen = {"t": list(queues(1))}
    assert line(desk).endswith("(chosen by its user, client m)")


@pytest.mark.parametrize("name", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"])
def test_al_3_a_member_that_no_broker_names_takes_nothing_and_its_log_says_so_once(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(ask_server=False, strategy=by_name(name))
    desk.sessions.topics = {"n": set(), "k": set()}
    assert [desk.part() for _ in range(3)] == [[], [], []]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().endswith(
        "member 'm' of group 'g' is not in the group's member list ['k', 'n'], so it gets no queue"
    )
    desk.sessions.topics["m"] = set()
    desk.part()
    del desk.sessions.topics["m"]
    desk.part()
    assert len(caplog.records) == 2, "again, after it was well"


def test_a_member_that_does_not_read_the_topic_gets_none_of_its_queues() -> None:
    """RG-8: what it was given would not be read. One that did not tell what it reads counts as reading all."""
    desk = Desk(ask_server=False)
    assert desk.part() == [0]
    desk.sessions.topics["n"] = {"another"}
    assert desk.part() == [0, 1]
    desk.sessions.topics["n"] = {"another", "t"}
    assert desk.part() == [0]
    desk.sessions.topics["m"] = {"another"}
    assert desk.part() == [], "also if that member is this one"
