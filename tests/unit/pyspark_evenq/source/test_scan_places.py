"""Which copy of a broker's log a task reads, over real gRPC with a leader and a follower that break."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark_evenq.brokers import cluster
from pyspark_evenq.brokers.cluster import Located
from pyspark_evenq.options.source import ReadOptions
from pyspark_evenq.plan.planner import OffsetRange
from pyspark_evenq.source import scanning
from pyspark_evenq.source.scanning import read, scan_tasks

from evenq.columns.arrow_schema import OutputColumn
from evenq.errors import ConnectionFailed, IllegalOffset, RequestTimeout

pytestmark = pytest.mark.timeout(120)

BODY = (OutputColumn("body", nullable=True),)
COUNT = 60


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes long for what is nothing; no test here is about a leader that hangs."""
    monkeypatch.setattr(scanning, "ANY_SCAN_MS", 60_000)


@pytest.fixture
def copied(broker: Any, follower: Any) -> tuple[Any, Any]:
    """A leader and a follower with the same messages."""
    for copy in (broker, follower):
        for number in range(COUNT):
            copy.send(str(number))
    broker.followers = (follower.endpoint,)
    return broker, follower


def bodies(leader: Any, start: int = 0, end: int = COUNT, *, read_from: str = "any", **more: str) -> list[str]:
    given = {"endpoints": leader.endpoint, "subscribe": "flights", "blockBytes": "1024", "gcFreeze": "false"}
    options = ReadOptions.parse(given | {"readFrom": read_from, "readTimeoutMs": "20000"} | more, streaming=False)
    part = OffsetRange(queue=leader.queue(0), start=start, end=end)
    located = Located(addresses={part.queue: leader.endpoint}, followers={leader.name: leader.followers})
    [task] = scan_tasks([[part]], located, {})
    return [body.decode() for batch in read(task, options, BODY) for body in batch.column("body").to_pylist()]


def numbers(start: int = 0, end: int = COUNT) -> list[str]:
    return [str(number) for number in range(start, end)]


def test_the_leader_alone_is_read_while_it_answers(copied: tuple[Any, Any]) -> None:
    leader, follower = copied
    assert bodies(leader) == numbers()
    assert (leader.any_copy, follower.any_copy) == ([True], [])


def test_a_follower_gives_the_rest_when_the_leader_breaks_off_and_stays_away(copied: tuple[Any, Any]) -> None:
    """HA-9: nothing is lost and nothing comes twice where the copy is changed in the middle."""
    leader, follower = copied
    leader.cut_scans = 1
    stopper = threading.Thread(target=leader.stop)
    rows = []
    given = {"endpoints": leader.endpoint, "subscribe": "flights", "blockBytes": "1024", "gcFreeze": "false"}
    options = ReadOptions.parse(given | {"readFrom": "any"}, streaming=False)
    part = OffsetRange(queue=leader.queue(0), start=0, end=COUNT)
    located = Located(addresses={part.queue: leader.endpoint}, followers={leader.name: leader.followers})
    [task] = scan_tasks([[part]], located, {})
    for batch in read(task, options, BODY):
        rows += [body.decode() for body in batch.column("body").to_pylist()]
        if not stopper.ident:
            stopper.start()
            stopper.join()
    assert rows == numbers()
    assert follower.any_copy
    assert all(follower.any_copy)


def test_a_leader_that_is_gone_costs_one_call(copied: tuple[Any, Any]) -> None:
    leader, follower = copied
    leader.stop()
    assert bodies(leader, 5, 50) == numbers(5, 50)
    assert len(follower.any_copy) == 1


def test_who_reads_from_the_leader_waits_for_it(copied: tuple[Any, Any]) -> None:
    leader, follower = copied
    leader.stop()
    with pytest.raises(ConnectionFailed, match="is a broker running there"):
        bodies(leader, read_from="leader", readTimeoutMs="200")
    assert follower.any_copy == []


def test_a_range_far_behind_is_read_from_a_follower_after_one_block(copied: tuple[Any, Any]) -> None:
    leader, follower = copied
    leader.far_behind = True
    assert bodies(leader) == numbers()
    assert len(leader.any_copy) == len(follower.any_copy) == 1


def test_a_leader_goes_on_with_what_is_far_behind_where_no_follower_answers(copied: tuple[Any, Any]) -> None:
    """A network policy may keep workers from followers: each scan is tried there once, and then stays."""
    leader, follower = copied
    leader.far_behind = True
    follower.stop()
    assert bodies(leader) == numbers()
    assert len(leader.any_copy) == 2


def test_a_follower_that_lacks_the_end_hands_back_to_the_leader(copied: tuple[Any, Any]) -> None:
    """It was told to be committed by the leader, so it is waited for; it is no loss."""
    leader, follower = copied
    leader.far_behind = True
    del follower.queues[0][40:]
    assert bodies(leader) == numbers()


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_what_a_follower_lacks_is_no_loss(
    copied: tuple[Any, Any], lenient: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither its end nor its beginning: only the leader's word counts. Without a leader the read fails in time."""
    leader, follower = copied
    follower.low[0] = 10
    leader.stop()
    with pytest.raises(
        ConnectionFailed, match=r"neither the leader .* nor a follower returns flights@broker-a:0 from offset 0 on"
    ):
        bodies(leader, 0, 50, readTimeoutMs="400", failOnDataLoss=lenient)
    follower.low[0] = 0
    del follower.queues[0][40:]
    with pytest.raises(ConnectionFailed, match=r"from offset 40 on"):
        bodies(leader, 0, 50, readTimeoutMs="400", failOnDataLoss=lenient)
    assert "evenq: lost" not in caplog.text


def test_what_the_leader_lacks_is_a_loss_also_if_a_follower_has_it(copied: tuple[Any, Any]) -> None:
    """Retention: the leader says what is there."""
    leader, _ = copied
    leader.low[0] = 10
    with pytest.raises(IllegalOffset, match="data loss"):
        bodies(leader)
    assert bodies(leader, failOnDataLoss="false") == numbers(10)


def test_a_leader_that_lacks_the_range_is_asked_again_if_it_does_not_say_what_it_has(
    copied: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a slow answer of the leader would decide whether rows that its retention has dropped come back."""
    leader, follower = copied
    leader.low[0] = 10
    asked, query = [], cluster.query

    def late_at_first(*place: Any, **question: Any) -> Any:
        asked.append(place)
        if len(asked) == 1:
            raise RequestTimeout("no answer")
        return query(*place, **question)

    monkeypatch.setattr(cluster, "query", late_at_first)
    with pytest.raises(IllegalOffset, match="data loss"):
        bodies(leader)
    assert len(asked) == 2
    assert follower.any_copy == []


def test_a_follower_of_another_topic_of_that_name_is_left_alone(copied: tuple[Any, Any]) -> None:
    """Its uid differs: it has not heard yet that the topic was made anew."""
    leader, follower = copied
    leader.uid, follower.uid, leader.far_behind = "new", "old", True
    part = OffsetRange(queue=leader.queue(0), start=0, end=COUNT)
    given = {"endpoints": leader.endpoint, "subscribe": "flights", "blockBytes": "1024", "gcFreeze": "false"}
    options = ReadOptions.parse(given | {"readFrom": "any"}, streaming=False)
    located = Located(addresses={part.queue: leader.endpoint}, followers={leader.name: leader.followers})
    [task] = scan_tasks([[part]], located, {("flights", "broker-a"): "new"})
    rows = [body.decode() for batch in read(task, options, BODY) for body in batch.column("body").to_pylist()]
    assert rows == numbers()


def test_the_queues_of_a_broker_begin_at_different_followers() -> None:
    located = Located(followers={"broker-a": ("one", "two")})
    from evenq.model.queue import MessageQueue

    first = [located.followers_of(MessageQueue("t", "broker-a", number))[0] for number in range(4)]
    assert first == ["one", "two", "one", "two"]
    assert located.followers_of(MessageQueue("t", "broker-b", 0)) == ()


def test_a_hole_in_a_follower_s_block_is_asked_of_the_leader(copied: tuple[Any, Any]) -> None:
    """It may have deleted its beginning a moment before its leader does."""

    class Holey(list[Any]):
        def __getitem__(self, key: Any) -> Any:
            return super().__getitem__(key)[1:]

    leader, follower = copied
    leader.far_behind = True
    follower.queues[0] = Holey(follower.queues[0])
    assert bodies(leader) == numbers()
    assert follower.any_copy
