"""Topics and groups that are deleted, made or widened while a broker is away."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.core.state.records import ChangeKind, ChangePut
from evenq_broker.loops.cluster import change_sender
from evenq_broker.loops.wire.peers import page_of, settings_page
from evenq_broker.settings import StoreSettings
from evenq_proofs.fake_registry import FakeRegistry

from evenq.errors import ConnectionFailed, Error, NotImplementedYet
from evenq.model import MessageType
from evenq.wire.stubs.evenq.v1 import admin_pb2, peers_pb2

ADMIN = "/evenq.v1.Admin/"


class Cluster:
    """Brokers with data folders, which stop and start."""

    def __init__(self, stage: Any, folder: Path) -> None:
        self.stage, self.folder = stage, folder
        self.registry = FakeRegistry()
        stage.net.serve("ns:1", self.registry.rpcs())
        self.brokers: dict[str, Any] = {}

    async def start(self, *names: str) -> None:
        for name in names:
            store = StoreSettings(path=self.folder / name)
            self.brokers[name] = await self.stage.broker(name, nameservers="ns:1", store=store)
        await self.together(*self.brokers)

    async def together(self, *names: str) -> None:
        def seen() -> bool:
            return all(
                {view.name for view in self.brokers[name].catalog.routes.brokers()} == set(self.brokers)
                for name in names
            )

        await self.stage.until(seen)

    async def stop(self, *names: str) -> None:
        for name in names:
            broker = self.brokers.pop(name)
            await self.stage.end(broker)
        for broker in self.brokers.values():
            await self.stage.until(lambda one=broker: set(names) <= {gone.name for gone in one.cluster.known.missing()})

    async def create(self, topic: str, *, at: str = "a", **settings: Any) -> None:
        request = admin_pb2.CreateTopicRequest(topic=topic, **settings)
        await self.stage.call(ADMIN + "CreateTopic", request, admin_pb2.CreateTopicResponse, broker=at)

    async def delete(self, topic: str, *, at: str = "a") -> None:
        request = admin_pb2.DeleteTopicRequest(topic=topic)
        with pytest.raises(ConnectionFailed, match="they delete it when they are back"):
            await self.stage.call(ADMIN + "DeleteTopic", request, admin_pb2.DeleteTopicResponse, broker=at)

    async def delete_group(self, group: str, *, at: str = "a") -> None:
        request = admin_pb2.DeleteGroupRequest(group=group)
        with pytest.raises(ConnectionFailed, match="they delete it when they are back"):
            await self.stage.call(ADMIN + "DeleteGroup", request, admin_pb2.DeleteGroupResponse, broker=at)

    async def create_group(self, group: str, *, at: str = "a", **settings: Any) -> None:
        request = admin_pb2.CreateGroupRequest(group=group, **settings)
        await self.stage.call(ADMIN + "CreateGroup", request, admin_pb2.CreateGroupResponse, broker=at)

    def topics(self, name: str) -> set[str]:
        return {name for name in ("t", "u") if self.brokers[name].catalog.topics.get(name)}

    def topic(self, broker: str, name: str = "t") -> Any:
        return self.brokers[broker].catalog.topics.get(name)

    def group(self, broker: str, name: str = "g") -> Any:
        return self.brokers[broker].catalog.groups.get(name)

    def remembered(self, name: str) -> list[ChangePut]:
        return self.brokers[name].change_sender.unconfirmed.all()

    async def confirmed(self) -> None:
        await self.stage.until(lambda: not any(map(self.remembered, self.brokers)))


async def test_a_deletion_reaches_a_broker_that_was_away_while_all_others_restarted(stage: Any, tmp_path: Path) -> None:
    cluster = Cluster(stage, tmp_path)
    await cluster.start("a", "b", "c")
    await cluster.create("t", queues=1)
    await cluster.stop("c")
    await cluster.delete("t")
    await cluster.stop("a", "b")
    await cluster.start("a", "b", "c")
    await stage.until(lambda: cluster.topic("c") is None)
    assert cluster.topic("a") is cluster.topic("b") is None
    await cluster.confirmed()


async def test_a_topic_made_again_meanwhile_lives_everywhere(stage: Any, tmp_path: Path) -> None:
    cluster = Cluster(stage, tmp_path)
    await cluster.start("a", "b", "c")
    await cluster.create("t", queues=1)
    before = cluster.topic("c").uid
    await cluster.stop("c")
    await cluster.delete("t")
    await cluster.create("t", queues=3)
    await cluster.stop("a", "b")
    await cluster.start("a", "b", "c")
    await cluster.confirmed()
    uids = {cluster.topic(name).uid for name in "abc"}
    assert len(uids) == 1
    assert before not in uids
    assert [cluster.topic(name).write_queues for name in "abc"] == [3, 3, 3]


async def test_a_topic_made_again_when_the_broker_is_just_back_is_another_one_there_too(
    stage: Any, tmp_path: Path
) -> None:
    """Its old one is in the routes at that moment: neither its uid nor its type and counts are taken over."""
    cluster = Cluster(stage, tmp_path)
    await cluster.start("b", "a")
    await cluster.create("t", queues=5, at="b")
    before = cluster.topic("b").uid
    await cluster.stop("a")
    await cluster.delete("t", at="b")
    b = cluster.brokers["b"]
    await cluster.stop("b")
    b = stage.made("b", nameservers="ns:1", store=StoreSettings(path=tmp_path / "b"))
    await b.open()
    b.change_sender.run = lambda: stage.clock.sleep_ms(1 << 40)
    await stage.begin(b)
    cluster.brokers["b"] = b
    await cluster.start("a")
    assert cluster.topic("a").uid == before
    await stage.during(b.cluster_catalog.create_topic("t", queues=2, message_type=MessageType.FIFO))
    assert cluster.topic("a").uid == cluster.topic("b").uid != before
    assert {(cluster.topic(name).write_queues, cluster.topic(name).message_type) for name in "ab"} == {
        (2, MessageType.FIFO)
    }


async def test_a_deletion_outlives_the_brokers_that_were_there(stage: Any, tmp_path: Path) -> None:
    """`d` came later and never saw `c`; `a`, which deleted the topic, does not return."""
    cluster = Cluster(stage, tmp_path)
    await cluster.start("a", "c")
    await cluster.create("t", queues=1)
    await cluster.stop("c")
    await cluster.delete("t")
    await cluster.start("d")
    await stage.until(lambda: bool(cluster.remembered("d")))
    await cluster.stop("a", "d")
    await cluster.start("d", "c")
    await stage.until(lambda: cluster.topic("c") is None)


async def test_a_group_is_deleted_at_a_broker_that_was_away(stage: Any, tmp_path: Path) -> None:
    cluster = Cluster(stage, tmp_path)
    await cluster.start("a", "b", "c")
    for name in ("g", "again"):
        await cluster.create_group(name, max_attempts=3)
    await cluster.stop("c")
    await stage.clock.advance(10)
    for name in ("g", "again"):
        await cluster.delete_group(name)
    await stage.clock.advance(10)
    await cluster.create_group("again", max_attempts=7)
    await cluster.stop("a", "b")
    await stage.clock.advance(10)
    await cluster.start("a", "b")
    await stage.clock.advance(10)
    old = 2
    await cluster.start("c")
    await cluster.confirmed()
    assert [cluster.group(name) for name in "abc"] == [None, None, None]
    assert [cluster.group(name, "again").max_attempts for name in "abc"] == [7, 7, 7]
    assert cluster.group("c", "again").group_id > old, "it is another group, without the progress of the old one"


async def test_a_deleted_group_does_not_come_back_by_its_settings(stage: Any, tmp_path: Path) -> None:
    """The broker that was away is back first, so the others take over its groups when they start."""
    cluster = Cluster(stage, tmp_path)
    await cluster.start("a", "c")
    await cluster.create_group("g", max_attempts=3)
    old = settings_page([cluster.group("c")], more=False)
    await cluster.stop("c")
    await stage.clock.advance(10)
    await cluster.delete_group("g")
    await cluster.stop("a")
    await cluster.start("a")
    [settings] = page_of(old).groups
    assert await stage.during(cluster.brokers["a"].group_settings.adopt(settings)) is False
    assert cluster.group("a") is None
    settings.revised_ms = stage.clock.now_ms()
    assert await stage.during(cluster.brokers["a"].group_settings.adopt(settings)) is True


async def test_a_group_that_was_made_after_the_deletion_stays(stage: Any, tmp_path: Path) -> None:
    """As where the broker was cut off, and went on."""
    cluster = Cluster(stage, tmp_path)
    await cluster.start("a")
    a = cluster.brokers["a"]
    deletion = peers_pb2.CatalogChange(name="g", at_ms=stage.clock.now_ms(), waiting=["a"])
    await stage.clock.advance(10)
    await stage.during(a.catalog.create_group("g"))
    request = peers_pb2.CatalogChangesRequest(broker_name="b", changes=[deletion])
    await stage.call(change_sender.METHOD, request, peers_pb2.CatalogChangesResponse)
    assert cluster.group("a") is not None
    deletion.at_ms, deletion.waiting[:] = stage.clock.now_ms() + 10, ["x"]
    request = peers_pb2.CatalogChangesRequest(broker_name="b", changes=[deletion])
    await stage.call(change_sender.METHOD, request, peers_pb2.CatalogChangesResponse)
    assert cluster.group("a") is not None, "the sender does not wait for this broker: it has deleted that group"
    assert cluster.remembered("a") == [ChangePut(ChangeKind.GROUP_DELETED, "g", "", deletion.at_ms, ("x",))]


async def test_a_topic_made_or_widened_reaches_a_broker_that_was_away(stage: Any, tmp_path: Path) -> None:
    cluster = Cluster(stage, tmp_path)
    await cluster.start("a", "b", "c")
    await cluster.create("t", queues=1)
    await cluster.stop("c")
    await cluster.create("t", queues=2)
    await cluster.create("u", queues=2, retention_ms=5_000)
    scale = admin_pb2.ScaleTopicRequest(topic="u", queues=4)
    await stage.call(ADMIN + "ScaleTopic", scale, admin_pb2.ScaleTopicResponse)
    await cluster.stop("a", "b")
    await cluster.start("a", "b", "c")
    await cluster.confirmed()
    assert cluster.topic("c").write_queues == 2
    assert cluster.topic("c", "u").write_queues == 4
    assert cluster.topic("c", "u").retention_ms == 5_000
    assert cluster.topic("c", "u").uid == cluster.topic("a", "u").uid


async def test_a_topic_on_chosen_brokers_is_not_made_at_others(stage: Any, tmp_path: Path) -> None:
    cluster = Cluster(stage, tmp_path)
    await cluster.start("a", "b", "c")
    await cluster.stop("c")
    chosen = [admin_pb2.TopicShare(broker_name="a", queues=1)]
    await cluster.create("t", brokers=chosen)
    assert cluster.remembered("a") == []
    await cluster.create("u", queues=1)
    await cluster.create("u", brokers=[admin_pb2.TopicShare(broker_name=name, queues=1) for name in "ab"])
    await cluster.start("c")
    await cluster.confirmed()
    assert cluster.topic("c") is cluster.topic("c", "u") is None


async def test_a_change_that_a_broker_refuses_is_sent_again_and_holds_up_no_other(
    stage: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(stage, tmp_path)
    await cluster.start("a", "c")
    await cluster.create("u", queues=1)
    await cluster.stop("c")
    await cluster.create("t", queues=1)
    await cluster.delete("u")
    store = StoreSettings(path=tmp_path / "c")
    cluster.brokers["c"] = await stage.broker("c", nameservers="ns:1", store=store, topics_max=1)
    await stage.until(lambda: cluster.topic("c", "u") is None)
    await stage.until(lambda: cluster.topic("c") is not None, limit_ms=60_000)
    await cluster.confirmed()
    assert caplog.text.count("broker c does not take over a change (topic-made t): this broker has 1 topics") == 1


async def test_a_broker_of_an_older_version_is_asked_once(
    stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(stage, tmp_path)
    await cluster.start("a", "c")
    await cluster.create("t", queues=1)
    await cluster.stop("c")
    await cluster.delete("t")
    asked: list[str] = []

    async def ask(name: str, method: str, *_: Any, **__: Any) -> bytes:
        if method == change_sender.METHOD:
            asked.append(name)
            raise NotImplementedYet("unknown")
        raise ConnectionFailed("away")

    monkeypatch.setattr(cluster.brokers["a"].cluster.peers, "ask", ask)
    await cluster.start("c")
    await stage.clock.advance(60_000)
    assert asked == ["c"]
    assert len(cluster.remembered("a")) == 1
    assert caplog.text.count("did not take over changes of topics and groups: unknown") == 1


async def test_a_forgotten_broker_is_not_waited_for_and_the_age_is_bounded(
    stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("evenq_broker.core.cluster.unconfirmed_changes.KEPT_MS", 60_000)
    monkeypatch.setattr(change_sender, "LOOK_MS", 10_000)
    cluster = Cluster(stage, tmp_path)
    await cluster.start("a", "b", "c")
    await cluster.create("t", queues=1)
    await cluster.create("u", queues=1)
    await cluster.stop("b", "c")
    await cluster.delete("t")
    a = cluster.brokers["a"]
    listed = await stage.call(ADMIN + "ListBrokers", admin_pb2.ListBrokersRequest(), admin_pb2.ListBrokersResponse)
    assert [(one.name, one.changes) for one in listed.missing] == [("b", 1), ("c", 1)]
    await stage.during(a.cluster.known.forget("b"))
    [change] = cluster.remembered("a")
    assert change.waiting == ("c",)
    await stage.clock.advance(50_000)
    assert cluster.remembered("a") == [change]
    await stage.clock.advance(20_000)
    assert cluster.remembered("a") == []
    assert (
        "1 changes that brokers have not confirmed are given up, the bound is 30 days: c do not get topic-del"
        in caplog.text
    )


async def test_the_number_of_changes_is_bounded(
    stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("evenq_broker.core.cluster.unconfirmed_changes.CHANGES_MAX", 2)
    cluster = Cluster(stage, tmp_path)
    await cluster.start("a", "c")
    await cluster.stop("c")
    with caplog.at_level(logging.WARNING):
        for number in range(4):
            await cluster.create(f"t{number}", queues=1)
    assert [change.name for change in cluster.remembered("a")] == ["t2", "t3"]
    await cluster.stop("a")
    await cluster.start("a")
    assert [change.name for change in cluster.remembered("a")] == ["t2", "t3"]
    assert caplog.text.count("are given up") == 2


async def test_a_call_that_does_not_reach_a_living_broker_reaches_it_later(
    stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(stage, tmp_path)
    await cluster.start("a", "b")
    await cluster.create("t", queues=1)
    peers = cluster.brokers["a"].cluster.peers
    ask = peers.ask

    async def refuse(name: str, method: str, *rest: Any, **more: Any) -> Any:
        if method.endswith("DeleteTopic"):
            raise ConnectionFailed("cut")
        return await ask(name, method, *rest, **more)

    monkeypatch.setattr(peers, "ask", refuse)
    await cluster.delete("t")
    await stage.until(lambda: cluster.topic("b") is None)
    await cluster.confirmed()


async def test_a_topic_that_is_made_and_deleted_does_not_come_back_by_a_change_on_its_way(
    stage: Any, tmp_path: Path
) -> None:
    cluster = Cluster(stage, tmp_path)
    await cluster.start("a", "b", "c")
    await cluster.stop("c")
    await cluster.create("t", queues=1)
    topic = cluster.topic("b")
    made = admin_pb2.CreateTopicRequest(topic="t", queues=1)
    late = peers_pb2.CatalogChange(name="t", uid=topic.uid, at_ms=stage.clock.now_ms(), waiting=["b"], made=made)
    await cluster.delete("t")
    await stage.until(lambda: all(one.waiting == ("c",) for one in cluster.remembered("a")))
    request = peers_pb2.CatalogChangesRequest(broker_name="a", changes=[late])
    await stage.call(change_sender.METHOD, request, peers_pb2.CatalogChangesResponse, broker="b")
    assert cluster.topic("b") is None


async def test_what_makes_no_sense_is_refused(stage: Any, tmp_path: Path) -> None:
    await Cluster(stage, tmp_path).start("a")
    made = admin_pb2.CreateTopicRequest(queues=5_000)
    request = peers_pb2.CatalogChangesRequest(changes=[peers_pb2.CatalogChange(name="t", uid="x", made=made)])
    with pytest.raises(Error, match="5000 queues"):
        await stage.call(change_sender.METHOD, request, peers_pb2.CatalogChangesResponse)
