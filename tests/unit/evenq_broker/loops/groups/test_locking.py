"""Queue locks at work: who is granted a queue and when, how it passes on, and who is refused."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.core.state.records import Locked
from evenq_broker.loops.groups.locking import lock_op

from evenq.errors import ConnectionFailed, PreconditionFailed
from evenq.model import NO_GENERATION, Generation, MessageQueue
from evenq.model.session_events import QueueWanted

QUEUE, OTHER = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)


class Scene:
    """A broker with topic `t` of two queues and the members of group `g`, whose sessions last as long as the test."""

    def __init__(self, stage: Any, broker: Any) -> None:
        self.stage, self.broker = stage, broker
        self.locking = broker.sessions.locking
        self.sessions: dict[str, Any] = {}

    def lock(self, client_id: str, *queues: MessageQueue, wait_ms: int = 0, **options: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self.locking.lock("g", client_id, queues or (QUEUE,), wait_ms=wait_ms, **options))

    async def locked(self, client_id: str, *queues: MessageQueue, **options: Any) -> list[bool]:
        granted: list[bool] = await self.stage.during(self.lock(client_id, *queues, **options))
        return granted

    def holder(self, queue: MessageQueue = QUEUE) -> str:
        holder: str = self.broker.membership.locks.holder("g", queue)
        return holder

    def waiters(self, queue: MessageQueue = QUEUE) -> list[str]:
        waiters: list[str] = self.broker.membership.locks.waiters("g", queue)
        return waiters

    def progress(self) -> Any:
        """The group's progress on the first queue."""
        group, topic = self.broker.catalog.groups.get("g"), self.broker.catalog.topics.get("t")
        self.broker.ledger.progress.start(group.group_id, topic.topic_id, 0, 0)
        return self.broker.ledger.progress.queue(group.group_id, topic.topic_id, 0)


async def scene_of(stage: Any, *client_ids: str, **settings: Any) -> Scene:
    broker = await stage.broker(session_timeout_ms=3_600_000, **settings)
    await stage.during(broker.catalog.create_topic("t", queues=2))
    await stage.during(broker.catalog.create_group("g"))
    scene = Scene(stage, broker)
    for client_id in client_ids or ("x", "y"):
        scene.sessions[client_id] = broker.sessions.join("g", Member(client_id=client_id, protocol=Protocol.EVENQ))
    return scene


async def test_a_free_queue_is_granted_and_a_held_one_is_not_without_a_wait(stage: Any) -> None:
    scene = await scene_of(stage)
    assert await scene.locked("x", QUEUE) == [True]
    assert await scene.locked("y", QUEUE, OTHER) == [False, True]
    assert (scene.holder(QUEUE), scene.holder(OTHER)) == ("x", "y")
    assert await scene.locked("x", QUEUE) == [True], "its own already"
    assert scene.waiters() == []


async def test_a_wait_asks_the_holder_and_ends_when_it_lets_go(stage: Any) -> None:
    scene = await scene_of(stage)
    await scene.locked("x")
    await scene.sessions["x"].take(scene.broker.sessions)
    waiting = scene.lock("y", wait_ms=30_000)
    assert await stage.during(scene.sessions["x"].take(scene.broker.sessions)) == [QueueWanted(QUEUE)]
    assert not waiting.done()
    scene.locking.unlock("g", "x", [QUEUE])
    assert scene.holder() == "y", "in the same step: no other member can come between"
    assert await stage.during(waiting) == [True]


async def test_who_is_granted_a_queue_learns_that_the_next_one_waits_for_it(stage: Any) -> None:
    scene = await scene_of(stage, "x", "y", "z")
    await scene.locked("x")
    waiting = [scene.lock(client_id, wait_ms=30_000) for client_id in ("y", "z")]
    await stage.until(lambda: scene.waiters() == ["y", "z"])
    scene.locking.unlock("g", "x", [QUEUE])
    assert await stage.during(waiting[0]) == [True]
    assert QueueWanted(QUEUE) in await scene.sessions["y"].take(scene.broker.sessions)
    scene.locking.unlock("g", "y", [QUEUE])
    assert await stage.during(waiting[1]) == [True]


async def test_a_wait_ends_at_its_limit_and_leaves_the_line(stage: Any) -> None:
    scene = await scene_of(stage)
    await scene.locked("x")
    started_ms = stage.clock.monotonic_ms()
    waiting = scene.lock("y", wait_ms=2_000)
    await stage.clock.advance(1_000)
    assert scene.waiters() == ["y"]
    assert await stage.during(waiting) == [False]
    assert stage.clock.monotonic_ms() - started_ms >= 2_000
    assert scene.waiters() == []
    scene.locking.unlock("g", "x", [QUEUE])
    assert scene.holder() == "", "who gave up waiting is given nothing"


async def test_a_grant_is_told_only_when_it_is_durable(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = await scene_of(stage)
    written, record = asyncio.get_running_loop().create_future(), scene.broker.ledger.journal.record
    recorded: list[Any] = []

    def slow(*ops: Any) -> Any:
        recorded.extend(ops)
        record(*ops)
        return written

    monkeypatch.setattr(scene.broker.ledger.journal, "record", slow)
    locking = scene.lock("x", generation=Generation(2, 7))
    await stage.clock.advance(1_000)
    assert recorded == [Locked("g", QUEUE, "x", 2, 7)]
    assert not locking.done()
    written.set_result(None)
    assert await stage.during(locking) == [True]


def test_a_lock_in_words_of_the_journal_names_everything() -> None:
    assert lock_op("g", QUEUE, "x", Generation(2, 7)) == Locked("g", QUEUE, "x", 2, 7)


async def test_strangers_and_overtaken_decisions_are_refused_by_name(stage: Any) -> None:
    scene = await scene_of(stage)
    with pytest.raises(PreconditionFailed, match="'stranger' is not in group g at broker a"):
        await scene.locked("stranger")
    await scene.locked("x", generation=Generation(1, 5))
    scene.locking.unlock("g", "x", [QUEUE])
    with pytest.raises(PreconditionFailed, match=r"generation 1\.4 of queue .* is outdated"):
        await scene.locked("y", generation=Generation(1, 4))
    assert scene.holder() == ""
    assert await scene.locked("y", generation=Generation(1, 6)) == [True]


async def test_only_the_holder_may_commit_under_its_newest_decision(stage: Any) -> None:
    scene = await scene_of(stage)
    await scene.locked("x", generation=Generation(1, 5))
    scene.locking.must_hold("g", "x", QUEUE, Generation(1, 5))
    assert scene.locking.may_commit("g", "x", QUEUE, NO_GENERATION)
    assert not scene.locking.may_commit("g", "x", QUEUE, Generation(1, 4))
    assert not scene.locking.may_commit("g", "y", QUEUE, Generation(1, 5))
    with pytest.raises(PreconditionFailed, match="'y' does not hold queue"):
        scene.locking.must_hold("g", "y", QUEUE, NO_GENERATION)
    assert scene.locking.is_kept("g", "t", 0, "y")
    assert not scene.locking.is_kept("g", "t", 0, "x")
    assert not scene.locking.is_kept("g", "t", 1, "y")


async def test_a_member_that_is_gone_leaves_its_queues_to_those_that_wait(stage: Any) -> None:
    scene = await scene_of(stage)
    await scene.locked("x", QUEUE, OTHER)
    waiting = scene.lock("y", wait_ms=30_000)
    await stage.clock.advance(10)
    scene.locking.drop("g", "x")
    assert (scene.holder(QUEUE), scene.holder(OTHER)) == ("y", "")
    assert await stage.during(waiting) == [True]
    assert not scene.locking.may_commit("g", "x", QUEUE, NO_GENERATION), "it cannot go on as a stranger"


async def test_a_holder_from_before_a_restart_that_never_came_back_may_not_commit(stage: Any) -> None:
    scene = await scene_of(stage)
    assert scene.locking.may_commit("g", "ghost", QUEUE, NO_GENERATION), (
        "the client is not known, and the queue is free"
    )
    scene.broker.membership.locks.restore("g", QUEUE, "ghost", Generation(1, 1))
    scene.locking.drop("g", "ghost")
    assert scene.holder() == ""
    assert not scene.locking.may_commit("g", "ghost", QUEUE, NO_GENERATION)


async def test_a_new_owner_waits_until_receivers_are_done_with_the_queue(stage: Any) -> None:
    scene = await scene_of(stage, revoke_ms=20_000)
    queue = scene.progress()
    scene.broker.ledger.progress.deliver(
        queue, [0], 1, deadline_ms=scene.broker.runtime.now_ms() + 10**6, client_id="receiver"
    )
    assert await scene.locked("x", wait_ms=1_000) == [False], "it is its own, but a message is in other hands"
    assert scene.holder() == "x"
    waiting = scene.lock("x", wait_ms=15_000)
    await stage.clock.advance(1_000)
    assert not waiting.done()
    scene.broker.ledger.progress.finish(queue, 0)
    assert await stage.during(waiting) == [True]


async def test_a_new_owner_does_not_wait_for_a_receiver_that_never_ends(stage: Any) -> None:
    scene = await scene_of(stage, revoke_ms=20_000)
    scene.broker.ledger.progress.deliver(
        scene.progress(), [0], 1, deadline_ms=scene.broker.runtime.now_ms() + 10**6, client_id="receiver"
    )
    started_ms = stage.clock.monotonic_ms()
    assert await scene.locked("x", wait_ms=60_000) == [True]
    assert stage.clock.monotonic_ms() - started_ms >= 20_000


async def test_a_queue_is_revoked_from_a_holder_that_a_newer_decision_has_overtaken(
    stage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    scene = await scene_of(stage, "x", "y", revoke_ms=10_000)
    await scene.locked("x", generation=Generation(1, 1))
    waiting = scene.lock("y", wait_ms=50_000, generation=Generation(1, 2))
    await stage.clock.advance(10)
    now_ms = stage.clock.monotonic_ms()
    scene.locking.tick(now_ms)
    scene.locking.tick(now_ms + 4_000)
    scene.locking.tick(now_ms + 8_000)
    assert scene.holder() == "x"
    with caplog.at_level(logging.WARNING):
        scene.locking.tick(now_ms + 12_000)
    assert scene.holder() == "y"
    assert "group g: queue" in caplog.text
    assert "revoked from member x" in caplog.text
    assert await stage.during(waiting) == [True]


async def test_a_group_that_is_created_again_is_not_charged_with_the_delay_of_the_one_before(stage: Any) -> None:
    scene = await scene_of(stage, revoke_ms=10_000)
    for _life in range(2):
        await scene.locked("x", generation=Generation(1, 1))
        waiting = scene.lock("y", wait_ms=50_000, generation=Generation(1, 2))
        await stage.clock.advance(10)
        now_ms = stage.clock.monotonic_ms()
        for seconds in (0, 4, 8):
            scene.locking.tick(now_ms + seconds * 1_000)
        assert scene.holder() == "x"
        waiting.cancel()
        await stage.during(scene.broker.catalog.delete_group("g"))
        await stage.during(scene.broker.catalog.create_group("g"))
        await stage.clock.advance(8_000)


async def test_the_deletion_of_its_group_ends_the_wait_for_what_members_hold(stage: Any) -> None:
    scene = await scene_of(stage)
    await scene.locked("x")
    ending = asyncio.ensure_future(scene.locking.let_go([("g", "x")], 3_600_000))
    await stage.clock.advance(10)
    await stage.during(scene.broker.catalog.delete_group("g"))
    await stage.clock.advance(10)
    assert ending.done()
    assert await ending == 0


async def test_a_wait_without_a_newer_decision_revokes_nothing(stage: Any) -> None:
    scene = await scene_of(stage, revoke_ms=10_000)
    await scene.locked("x", generation=Generation(1, 2))
    waiting = scene.lock("y", wait_ms=30_000, generation=Generation(1, 2))
    await stage.clock.advance(10)
    now_ms = stage.clock.monotonic_ms()
    for seconds in range(0, 28, 4):
        scene.locking.tick(now_ms + seconds * 1_000)
    assert scene.holder() == "x"
    assert await stage.during(waiting) == [False]


async def test_a_closing_broker_grants_nothing_and_lets_nobody_wait(stage: Any) -> None:
    scene = await scene_of(stage)
    await scene.locked("x")
    waiting = scene.lock("y", wait_ms=3_600_000)
    await stage.clock.advance(10)
    left_ms = stage.clock.monotonic_ms()
    scene.locking.leave()
    assert await stage.during(waiting) == [False]
    assert stage.clock.monotonic_ms() - left_ms < 60_000
    with pytest.raises(ConnectionFailed, match="broker a is shutting down"):
        await scene.locked("y", OTHER)


async def test_a_closing_broker_waits_for_holders_and_counts_those_that_stay(stage: Any) -> None:
    scene = await scene_of(stage)
    await scene.locked("x", QUEUE)
    await scene.locked("y", OTHER)
    holders = [("g", "x"), ("g", "y")]
    started_ms = stage.clock.monotonic_ms()
    closing = asyncio.ensure_future(scene.locking.let_go(holders, 3_600_000))
    await stage.clock.advance(1_000)
    scene.locking.unlock("g", "x", [QUEUE])
    await stage.clock.advance(1_000)
    assert not closing.done()
    scene.locking.unlock("g", "y", [OTHER])
    assert await stage.during(closing) == 0
    assert stage.clock.monotonic_ms() - started_ms < 60_000
    await scene.locked("x", QUEUE)
    assert await stage.during(scene.locking.let_go(holders, 500)) == 1


async def test_a_closing_broker_does_not_wait_for_a_holder_that_is_gone(stage: Any) -> None:
    scene = await scene_of(stage)
    await scene.locked("x", QUEUE)
    started_ms = stage.clock.monotonic_ms()
    closing = asyncio.ensure_future(scene.locking.let_go([("g", "x")], 60_000))
    await stage.clock.advance(1_000)
    scene.broker.sessions.leave(scene.sessions["x"])
    assert await stage.during(closing) == 0
    assert stage.clock.monotonic_ms() - started_ms < 10_000


async def test_a_holder_that_lets_go_commits_what_its_filter_left_out(stage: Any) -> None:
    """The group would lag behind in a queue that no member reads any more."""
    scene = await scene_of(stage)
    progress = scene.progress()
    await scene.locked("x", QUEUE)
    progress.passed = (0, 3)
    scene.locking.unlock("g", "x", [QUEUE])
    assert progress.committed == 3
