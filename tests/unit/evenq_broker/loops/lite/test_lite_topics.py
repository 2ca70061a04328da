"""The lite topics of one broker at work, called as its RPC handlers call them."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.core.lite.lite_topics import LITE_QUEUES_FROM
from evenq_broker.core.lite.subscriptions import LAST, MAX, MIN, LiteSubscribeAction, RequestedStart, Subscriber
from evenq_broker.loops.lite.lite_topics import AGAIN_MS, NOTICE_TRIES, SWEEP_MS
from evenq_broker.loops.resizing.resizing import permit
from evenq_broker.loops.wire.telemetry import LITE_CLIENTS
from evenq_broker.settings import StoreSettings

from evenq.errors import IllegalOffset, LiteSubscriptionQuotaExceeded, LiteTopicQuotaExceeded, TopicNotFound
from evenq.model import BrokerAddress, MessageType, Permission
from evenq.store import Append
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

ADD, REMOVE = LiteSubscribeAction.PARTIAL_ADD, LiteSubscribeAction.PARTIAL_REMOVE
CLIENT = Subscriber("c", "g", "p")


class Scene:
    """A broker with the parent topic `p` of lite topics and the group `g`."""

    def __init__(self, stage: Any, broker: Any) -> None:
        self.stage, self.broker, self.lite = stage, broker, broker.lite

    @property
    def parent(self) -> Any:
        return self.broker.catalog.topics.get("p")

    @property
    def group(self) -> Any:
        return self.broker.catalog.groups.get("g")

    async def send(self, name: str, count: int = 1) -> int:
        """Messages for one lite topic; gives its queue."""
        queue_id: int = self.lite.place(self.parent, name)
        messages = [Append(self.parent.topic_id, queue_id, 0, 0, b"", b"") for _ in range(count)]
        await self.stage.during(self.broker.ledger.store.append(messages))
        return queue_id

    async def sync(self, *names: str, who: Subscriber = CLIENT, action: Any = ADD, start: Any = None) -> None:
        await self.stage.during(self.lite.sync(who, action, names, start))

    def committed(self, queue_id: int) -> Any:
        return self.broker.ledger.progress.committed(self.group.group_id, self.parent.topic_id, queue_id)


async def scene_of(stage: Any, name: str = "a", **settings: Any) -> Scene:
    broker = await stage.broker(name, **settings)
    await stage.during(broker.catalog.create_topic("p", message_type=MessageType.LITE))
    await stage.during(broker.catalog.create_group("g"))
    return Scene(stage, broker)


def told_of(stage: Any, scene: Scene, *client_ids: str, kind: int) -> list[str]:
    """Names of the lite topics of whose end clients of this kind are notified; filled with the notices."""
    ended: list[str] = []

    async def listen(stream: Any) -> None:
        while frames := await stream.take():
            for frame in frames:
                command = service_pb2.TelemetryCommand.FromString(frame)
                ended.append(command.notify_unsubscribe_lite_command.lite_topic)

    for client_id in client_ids:
        stream = scene.broker.clients.streams.open(client_id)
        stream.client_type = kind
        scene.broker.runtime.spawn(listen(stream), name="test client")
    return ended


async def test_each_lite_topic_has_a_queue_of_its_own_and_a_retry_finds_it(stage: Any) -> None:
    scene = await scene_of(stage)
    first, second = await scene.send("x"), await scene.send("y", 2)
    assert first == LITE_QUEUES_FROM
    assert second == LITE_QUEUES_FROM + 1
    assert scene.lite.place(scene.parent, "x") == first
    assert sorted(scene.lite.sizes(scene.parent)) == [("x", 1), ("y", 2)]
    assert scene.lite.messages(scene.parent) == 3


async def test_lite_topics_are_where_they_were_after_a_crash(stage: Any, tmp_path: Path) -> None:
    scene = await scene_of(stage, store=StoreSettings(path=tmp_path / "before"))
    for name in ("x", "y"):
        await scene.send(name)
    shutil.copytree(tmp_path / "before", tmp_path / "after")  # as a kill leaves it: no snapshot, no goodbye
    await stage.end(scene.broker)
    again = Scene(stage, await stage.broker("a", store=StoreSettings(path=tmp_path / "after")))
    assert again.lite.place(again.parent, "y") == LITE_QUEUES_FROM + 1
    assert sorted(again.lite.sizes(again.parent)) == [("x", 1), ("y", 1)]


async def test_too_many_lite_topics_and_deleted_parents_are_refused(stage: Any) -> None:
    scene = await scene_of(stage, lite_topics_per_topic_max=1)
    parent = scene.parent
    await scene.send("x")
    with pytest.raises(LiteTopicQuotaExceeded, match="topic p has 1 lite topics"):
        scene.lite.place(parent, "y")
    assert scene.lite.place(parent, "x") == LITE_QUEUES_FROM, "one that is there takes more"
    await stage.during(scene.broker.catalog.delete_topic("p"))
    with pytest.raises(TopicNotFound, match="topic p was deleted"):
        scene.lite.place(parent, "z")


async def test_a_lite_topic_is_stored_by_one_of_the_brokers_that_take_messages(stage: Any) -> None:
    first, second = await scene_of(stage, "a"), await scene_of(stage, "b")
    assert {first.lite.owner("p", f"n{number}") for number in range(20)} == {"a"}, "no other one is known"
    assert first.lite.owner("unknown", "x") == "a"

    def meet() -> None:
        views = [scene.broker.cluster.own.now() for scene in (first, second)]
        for scene in (first, second):
            scene.broker.catalog.routes.snapshot("ns:1", "n", views, stage.clock.monotonic_ms())

    meet()
    owners = [first.lite.owner("p", f"n{number}") for number in range(20)]
    assert set(owners) == {"a", "b"}
    assert owners == [second.lite.owner("p", f"n{number}") for number in range(20)], "all brokers say the same"
    broker = second.broker
    await stage.during(permit(broker.kernel, "p", Permission.READ))
    meet()
    assert {first.lite.owner("p", f"n{number}") for number in range(20)} == {"a"}


async def test_a_client_reads_the_queues_of_its_subscriptions_from_their_first_message(stage: Any) -> None:
    scene = await scene_of(stage)
    first, second = await scene.send("x", 3), await scene.send("y")
    await scene.sync("x", "not-here")
    assert scene.lite.queues_of("c", scene.group, scene.parent) == [first]
    assert scene.lite.queues_of("other", scene.group, scene.parent) == []
    scene.lite.begin(scene.group, scene.parent, [first])
    assert scene.committed(first) == 0
    assert scene.committed(second) is None
    assert scene.lite.lag(scene.group, scene.parent) == (3, 0), "nothing of what it never began to read"
    await scene.sync("x", action=REMOVE)
    assert scene.lite.queues_of("c", scene.group, scene.parent) == []


async def test_a_receive_waits_for_a_message_of_its_subscriptions_and_of_no_other(stage: Any) -> None:
    scene = await scene_of(stage, poll_max_ms=20_000)
    await scene.sync("x")
    waiting = asyncio.ensure_future(scene.lite.ready(CLIENT, 10_000))
    await stage.clock.advance(100)
    await scene.send("y")
    await stage.clock.advance(1_000)
    assert not waiting.done()
    await scene.send("x")
    assert await stage.during(waiting) is True

    silent = Subscriber("silent", "g", "p")
    started_ms = stage.clock.monotonic_ms()
    assert await stage.during(scene.lite.ready(silent, 3_000)) is False
    assert stage.clock.monotonic_ms() - started_ms >= 3_000


async def test_a_start_moves_a_group_that_nobody_was_subscribed_for(stage: Any) -> None:
    scene = await scene_of(stage)
    queue_id = await scene.send("x", 5)
    for start, committed in (
        (RequestedStart("offset", 2), 2),
        (RequestedStart("tail_n", 1), 4),
        (RequestedStart("policy", MIN), 0),
        (RequestedStart("policy", MAX), 5),
        (RequestedStart("offset", 99), 5),
    ):
        await scene.sync("x", start=start)
        assert scene.committed(queue_id) == committed, start
        await scene.sync("x", action=REMOVE)
    await scene.sync("x", who=Subscriber("other", "g", "p"))
    await scene.sync("x", start=RequestedStart("offset", 1))
    assert scene.committed(queue_id) == 5, "another one of the group reads it already"


async def test_a_start_that_is_found_after_the_lite_topic_ended_moves_nothing(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next lite topic may get the same queue, and the group would read messages of the old one there."""
    scene = await scene_of(stage)
    queue_id = await scene.send("x", 5)

    async def ended_meanwhile(*_: Any) -> int:
        scene.lite.topics.closed(scene.parent.topic_id, queue_id)
        scene.broker.ledger.progress.forget_queue(scene.parent.topic_id, queue_id)
        return 2

    monkeypatch.setattr(scene.broker.ledger.store, "offset_at", ended_meanwhile)
    await scene.sync("x", start=RequestedStart("timestamp", 1))
    assert scene.committed(queue_id) is None
    monkeypatch.undo()


async def test_a_start_that_is_found_after_the_group_was_deleted_moves_nothing(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await scene_of(stage)
    await scene.send("x", 5)

    async def deleted_meanwhile(*_: Any) -> int:
        await scene.broker.catalog.delete_group("g")
        return 2

    monkeypatch.setattr(scene.broker.ledger.store, "offset_at", deleted_meanwhile)
    await scene.sync("x", start=RequestedStart("timestamp", 1))
    assert list(scene.broker.ledger.progress.queues()) == []
    monkeypatch.undo()


async def test_a_start_wakes_a_client_of_the_group_that_subscribed_while_it_was_searched_for(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, other = await scene_of(stage), Subscriber("other", "g", "p")
    queue_id = await scene.send("x", 5)
    await scene.sync("x", start=RequestedStart("policy", MAX))
    await scene.sync("x", action=REMOVE)
    waiting: list[asyncio.Future[bool]] = []

    async def slowly(*_: Any) -> int:
        await scene.lite.sync(other, ADD, ["x"], None)
        waiting.append(asyncio.ensure_future(scene.lite.ready(other, 20_000)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert scene.broker.long_polls.table.waits("other")
        return 2

    monkeypatch.setattr(scene.broker.ledger.store, "offset_at", slowly)
    await scene.sync("x", start=RequestedStart("timestamp", 1))
    began_ms = stage.clock.monotonic_ms()
    assert await stage.during(waiting[0])
    assert stage.clock.monotonic_ms() - began_ms < 1_000
    assert scene.committed(queue_id) == 2
    monkeypatch.undo()


@pytest.mark.parametrize("start", [RequestedStart("offset", -1), RequestedStart("policy", 7)])
async def test_a_start_without_a_meaning_is_refused_and_subscribes_to_nothing(
    stage: Any, start: RequestedStart
) -> None:
    scene = await scene_of(stage)
    with pytest.raises(IllegalOffset):
        await scene.sync("x", start=start)
    assert list(scene.lite.subscriptions.names(CLIENT)) == []
    await scene.sync("x", start=RequestedStart("", LAST))
    assert list(scene.lite.subscriptions.names(CLIENT)) == ["x"]


async def test_a_client_has_a_limited_number_of_subscriptions(stage: Any) -> None:
    scene = await scene_of(stage, lite_subscriptions_max=2)
    with pytest.raises(LiteSubscriptionQuotaExceeded):
        await scene.sync("x", "y", "z")
    await scene.sync("x", "y")


async def test_an_idle_lite_topic_expires_and_one_with_a_subscriber_or_messages_stays(
    stage: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    store = StoreSettings(path=tmp_path / "before")
    scene = await scene_of(stage, lite_topic_idle_ms=60_000, lite_subscription_ms=3_600_000, store=store)
    idle = await scene.send("idle")
    scene.lite.begin(scene.group, scene.parent, [idle])
    assert scene.committed(idle) == 0
    await scene.send("wanted")
    await scene.send("used")
    await scene.sync("wanted")
    await stage.clock.advance(30_000)
    await scene.send("used")
    with caplog.at_level(logging.INFO):
        await stage.clock.advance(31_000 + SWEEP_MS)
    assert sorted(name for name, _ in scene.lite.sizes(scene.parent)) == ["used", "wanted"]
    assert "idle lite topic idle of p expired" in caplog.text
    queue_id = await scene.send("next")
    assert queue_id == LITE_QUEUES_FROM, "its queue is used again"
    assert dict(scene.lite.sizes(scene.parent))["next"] == 1, "without the messages of the one before"
    assert scene.lite.queue_range(scene.parent.topic_id, queue_id) == (1, 2)
    shutil.copytree(tmp_path / "before", tmp_path / "after")  # as a kill leaves it
    for restarted in (False, True):
        if restarted:
            await stage.end(scene.broker)
            scene = Scene(stage, await stage.broker("a", store=StoreSettings(path=tmp_path / "after")))
        assert scene.committed(queue_id) is None, "no group has begun the new one"
        scene.lite.begin(scene.group, scene.parent, [queue_id])
        assert scene.committed(queue_id) == 1


async def test_a_subscription_that_is_not_told_again_is_forgotten(stage: Any) -> None:
    scene = await scene_of(stage, lite_subscription_ms=20_000)
    await scene.sync("x")
    await scene.sync("y", who=Subscriber("gone", "g", "p"))
    await stage.clock.advance(15_000)
    await scene.sync("x")
    await stage.clock.advance(5_000 + SWEEP_MS)
    assert [one.subscriber for one in scene.lite.newest_sets()] == [CLIENT]
    scene.lite.end_client("c")
    assert scene.lite.newest_sets() == []


async def test_the_end_of_the_parent_is_told_to_lite_clients_and_to_no_others(stage: Any) -> None:
    scene = await scene_of(stage)
    await scene.sync("x", "y")
    await scene.sync("x", who=Subscriber("plain", "g", "p"))
    lite_clients = told_of(stage, scene, "c", kind=min(LITE_CLIENTS))
    plain = told_of(stage, scene, "plain", kind=max(LITE_CLIENTS) + 100)
    await stage.during(scene.broker.catalog.delete_topic("p"))
    await stage.until(lambda: len(lite_clients) == 2)
    assert sorted(lite_clients) == ["x", "y"]
    await stage.clock.advance(NOTICE_TRIES * AGAIN_MS)
    assert plain == []
    assert scene.lite.newest_sets() == []


async def test_the_next_leader_of_a_group_begins_with_the_sets_of_the_one_before(stage: Any) -> None:
    scene, later = await scene_of(stage, "a", lite_subscription_ms=20_000), await scene_of(stage, "b")
    empty = scene.lite.news()
    assert not empty.sets
    await scene.sync("x", "y")
    version, sets = scene.lite.news()
    assert version != empty.version
    await scene.sync("x", "y")
    assert scene.lite.news().version == version, "the client said the same again"
    later.lite.inherit(sets)
    assert list(later.lite.subscriptions.names(CLIENT)) == ["x", "y"]
    await scene.sync("z")
    assert scene.lite.news().version != version
    later.lite.inherit(scene.lite.news().sets)
    assert list(later.lite.subscriptions.names(CLIENT)) == ["x", "y"], "what a broker knows already stands"
    await stage.clock.advance(20_000 + SWEEP_MS)
    assert scene.lite.news().sets == [], "it was not told again"


async def test_a_broker_learns_from_its_peers_once_for_each_of_their_starts(stage: Any) -> None:
    scene, peer = await scene_of(stage, "a"), await scene_of(stage, "b")
    await peer.sync("x")

    def sees(incarnation: str) -> None:
        view = RegisteredBroker(name="b", incarnation=incarnation, addresses=(BrokerAddress("default", "b", 8081),))
        scene.broker.catalog.routes.snapshot("ns:1", "n", [view], stage.clock.monotonic_ms())
        scene.broker.catalog.changes.routes.notify()

    sees("1")
    await stage.until(lambda: [one.subscriber for one in scene.lite.newest_sets()] == [CLIENT])
    later = Subscriber("later", "g", "p")
    await peer.sync("y", who=later)
    sees("1")
    await stage.clock.advance(1_000)
    assert list(scene.lite.subscriptions.names(later)) == [], "asked once; clients tell the rest themselves"
    sees("2")
    await stage.until(lambda: list(scene.lite.subscriptions.names(later)) == ["y"])
