"""With copies, a receive that waits takes a message before it is committed, and answers when the record of its delivery
is, which lies behind it in the log (R12): nobody hears of anything that is not committed (R11).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from evenq_broker.broker import Broker
from evenq_broker.core.delivery.progress import Progress
from evenq_broker.core.polls.poll_table import PollTable
from evenq_broker.core.state.records import Delivered, Invisible, decode
from evenq_proofs.v2_requests import ack_request, receive_frames, receive_request

from evenq.errors import HaNotAvailable, PersistenceTimeout, StoreFull
from evenq.runtime.tasks import spawn
from evenq.store import MessageStore
from evenq.store.log.record import STATE, frame_at
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2 as v2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2, data_pb2

OK, NOTHING, UNKNOWN = 20000, 40401, 50401
DATA, ADMIN = "/evenq.v1.Data/", "/evenq.v1.Admin/"


class Copies:
    """The other copies of a leader: they confirm what is written, unless they are held."""

    store: MessageStore

    def __init__(self) -> None:
        self.held = False
        self.groups = 0
        """Written since they were held."""

    def attach(self, store: MessageStore) -> None:
        self.store = store
        store.on_written = self._written

    def _written(self, end: int) -> None:
        self.groups += 1
        if not self.held:
            self.store.commit(end)

    def hold(self) -> None:
        self.held, self.groups = True, 0

    def confirm(self) -> None:
        self.held = False
        self.store.commit(self.store.stats.written_end)


async def leading(stage: Any, *groups: str, ordered: bool = False) -> tuple[Broker, Copies]:
    """A leader with topic `t` of one queue, from which these groups have received."""
    copies = Copies()
    broker: Broker = stage.made("a", default_queues=1, default_start_from="FIRST")
    broker.runtime.leadership = replace(broker.runtime.leadership, attach=copies.attach)
    await broker.open()
    await stage.begin(broker)
    topic = admin_pb2.CreateTopicRequest(topic="t", queues=1, message_type=definition_pb2.FIFO if ordered else 0)
    await stage.call(ADMIN + "CreateTopic", topic, admin_pb2.CreateTopicResponse)
    first_sent = sent("begin", message_group="begin" if ordered else "")
    await stage.ask("SendMessage", first_sent, v2.SendMessageResponse)
    for group in groups or ("g",):
        made = admin_pb2.CreateGroupRequest(group=group, ordered=ordered)
        await stage.call(ADMIN + "CreateGroup", made, admin_pb2.CreateGroupResponse)
        frames = await received(stage, group=group, wait_ms=0)
        (first,) = bodies(frames)
        assert first == "begin"
    return broker, copies


def sent(body: str, *, tag: str = "", message_group: str = "") -> v2.SendMessageRequest:
    request = v2.SendMessageRequest()
    message = request.messages.add(body=body.encode())
    message.topic.name, message.system_properties.message_id = "t", f"id-{body}"
    if tag:
        message.system_properties.tag = tag
    if message_group:
        message.system_properties.message_group = message_group
        message.system_properties.message_type = definition_pb2.FIFO
    return request


def sending(stage: Any, body: str, **more: str) -> asyncio.Task[bytes]:
    data = sent(body, **more).SerializeToString()
    headers = {"x-mq-client-id": "p", "x-mq-language": "JAVA"}
    method = "/apache.rocketmq.v2.MessagingService/SendMessage"
    return spawn(stage.net.unary("a:8081", method, data, timeout_ms=60_000, metadata=headers), name="send")


def code_of(call: asyncio.Task[bytes]) -> int:
    return v2.SendMessageResponse.FromString(call.result()).entries[0].status.code


def receiving(stage: Any, *, group: str = "g", wait_ms: int = 10_000, tags: str = "*") -> asyncio.Task[list[Any]]:
    request = receive_request(group, "t", queue=-1, poll_ms=wait_ms, invisible_ms=30_000, tags=tags, batch_size=8)

    headers = {"x-mq-client-id": "c", "x-mq-language": "JAVA"}
    return spawn(receive_frames(stage.net, "a:8081", request, metadata=headers), name="receive")


async def received(stage: Any, **more: Any) -> list[Any]:
    frames: list[Any] = await stage.during(receiving(stage, **more))
    return frames


def bodies(frames: list[Any]) -> list[str]:
    return [frame.message.body.decode() for frame in frames if frame.HasField("message")]


def attempts(frames: list[Any]) -> list[int]:
    return [frame.message.system_properties.delivery_attempt for frame in frames if frame.HasField("message")]


def status(frames: list[Any]) -> int:
    return next(frame.status.code for frame in frames if frame.HasField("status"))


async def parked(stage: Any, broker: Broker, **more: Any) -> asyncio.Task[list[Any]]:
    count = len(broker.long_polls.table)
    call = receiving(stage, **more)
    await stage.until(lambda: len(broker.long_polls.table) == count + 1)
    return call


async def test_a_waiting_receive_and_its_sender_are_answered_by_one_commit_of_one_group(stage: Any) -> None:
    """R12, R11."""
    broker, copies = await leading(stage)
    receive = await parked(stage, broker)
    copies.hold()
    send = sending(stage, "x")
    await stage.clock.advance(1_000)
    assert copies.groups == 1, "message and delivery are one group, and so one round"
    assert not send.done()
    assert not receive.done(), "a successor may not have it"
    copies.confirm()
    assert bodies(await stage.during(receive)) == ["x"]
    assert code_of(await finished(stage, send)) == OK
    assert copies.groups == 1
    broker.ledger.progress.check()


async def finished(stage: Any, call: asyncio.Task[bytes]) -> asyncio.Task[bytes]:
    await stage.during(call)
    return call


@pytest.mark.parametrize("ordered", [False, True])
async def test_nobody_hears_of_a_message_that_was_taken_before_its_commit(stage: Any, ordered: bool) -> None:
    """R11: no queue's end, no pull, no lag, no count, no other group."""
    broker, copies = await leading(stage, ordered=ordered)
    receive = await parked(stage, broker)
    before = await seen(stage, broker)
    copies.hold()
    send = sending(stage, "x", message_group="one" if ordered else "")
    await stage.clock.advance(500)
    assert broker.ledger.progress.queue(1, 1, 0).next == 2, "it was not taken, so this proves nothing"  # type: ignore[union-attr]
    assert await seen(stage, broker) == before
    copies.confirm()
    assert bodies(await stage.during(receive)) == ["x"]
    await stage.during(send)
    assert await seen(stage, broker) != before


async def seen(stage: Any, broker: Broker) -> list[Any]:
    """What others are told of the queue and the group, without what waits for the journal."""
    queue = common_pb2.Queue(topic="t", broker_name="a", queue_id=0)
    pull = data_pb2.PullRequest(group="other", queue=queue, offset=1, batch_max=9, committed=-1)
    pulled = await stage.ask(DATA + "Pull", pull, data_pb2.PullResponse)
    ids = broker.catalog.groups.get("g").group_id, broker.catalog.topics.get("t").topic_id, 0  # type: ignore[union-attr]
    low, high = broker.ledger.store.queue_range(*ids[1:])
    progress, stats = broker.ledger.progress, broker.runtime.stats.group_topic(*ids[:2])
    state = progress.queue(*ids)
    assert state is not None
    return [
        len(pulled.messages), pulled.max_offset, high, progress.lag(*ids, low, high), progress.inflight(*ids, low, high),
        state.committed, stats.messages_out, sum(stats.ages),
    ]  # fmt: skip


async def test_a_leader_that_is_deposed_between_write_and_commit_hands_nothing_out(stage: Any) -> None:
    """R12: the receive fails, and so does the send, as unknown."""
    broker, copies = await leading(stage)
    receive = await parked(stage, broker)
    copies.hold()
    send = sending(stage, "x")
    await stage.clock.advance(100)
    out = broker.runtime.stats.group_topic(1, 1).messages_out
    copies.store.give_up(PersistenceTimeout("another leads"))
    frames = await stage.during(receive)
    assert (bodies(frames), status(frames)) == ([], UNKNOWN)
    assert code_of(await finished(stage, send)) == UNKNOWN
    assert broker.runtime.stats.group_topic(1, 1).messages_out == out


async def test_what_is_not_committed_at_the_end_of_the_wait_goes_back(stage: Any) -> None:
    broker, copies = await leading(stage)
    begun_ms = broker.runtime.now_ms()
    receive = await parked(stage, broker, wait_ms=3_000)
    copies.hold()
    send = sending(stage, "x")
    frames = await stage.during(receive)
    assert (bodies(frames), status(frames)) == ([], NOTHING)
    assert 3_000 <= broker.runtime.now_ms() - begun_ms <= 3_100
    again = await parked(stage, broker, wait_ms=20_000)
    await stage.clock.advance(500)
    assert not again.done()
    assert not send.done()
    copies.confirm()
    frames = await stage.during(again)
    assert (bodies(frames), attempts(frames)) == (["x"], [1]), "nobody saw the first delivery"
    assert code_of(await finished(stage, send)) == OK
    assert bodies(await received(stage, wait_ms=0)) == []
    broker.ledger.progress.check()


async def test_who_has_no_time_takes_nothing_that_is_not_committed(stage: Any) -> None:
    broker, copies = await leading(stage)
    copies.hold()
    sending(stage, "x")
    await stage.clock.advance(100)
    records = broker.ledger.journal.records
    assert bodies(await received(stage, wait_ms=0)) == []
    assert broker.ledger.journal.records == records
    late = receiving(stage)  # it comes behind the message, and takes it at once
    await stage.clock.advance(100)
    assert broker.ledger.journal.records == records + 1
    copies.confirm()
    assert bodies(await stage.during(late)) == ["x"]


async def test_one_message_wakes_one_receive_of_a_group_and_its_commit_no_other(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, copies = await leading(stage, "g", "h")
    first, second = await parked(stage, broker), await parked(stage, broker)
    other = await parked(stage, broker, group="h")
    copies.hold()
    send = sending(stage, "x")
    await stage.clock.advance(100)
    woken: list[Any] = []
    real = PollTable.arrived

    def arrived(table: PollTable, *at: Any, **more: Any) -> list[Any]:
        polls = real(table, *at, **more)
        woken.extend(polls)
        return polls

    monkeypatch.setattr(PollTable, "arrived", arrived)
    copies.confirm()
    assert bodies(await stage.during(first)) == bodies(await stage.during(other)) == ["x"]
    await stage.during(send)
    assert woken == []
    assert not second.done()
    await stage.ask("SendMessage", sent("y"), v2.SendMessageResponse)
    assert bodies(await stage.during(second)) == ["y"]


async def test_a_filter_passes_over_nothing_that_is_not_committed(stage: Any) -> None:
    """Else a group's offset would tell of it (D6)."""
    broker, copies = await leading(stage)
    receive = await parked(stage, broker, tags="wanted")
    copies.hold()
    calls = [sending(stage, "a", tag="other"), sending(stage, "b", tag="wanted")]
    await stage.clock.advance(100)
    state = broker.ledger.progress.queue(1, 1, 0)
    assert state is not None
    assert state.next == 1
    copies.confirm()
    assert bodies(await stage.during(receive)) == ["b"]
    for call in calls:
        await stage.during(call)
    receive = await parked(stage, broker, tags="wanted")
    copies.hold()
    calls = [sending(stage, "c", tag="wanted"), sending(stage, "d", tag="other")]
    await stage.clock.advance(100)
    assert state.next == 4, "the first one is wanted: it is taken at once"
    copies.confirm()
    assert bodies(await stage.during(receive)) == ["c"]


async def test_a_message_group_has_one_message_out_before_its_commit_too(stage: Any) -> None:
    """D5."""
    broker, copies = await leading(stage, ordered=True)
    receive = await parked(stage, broker)
    copies.hold()
    for body in ("one", "two"):
        sending(stage, body, message_group="m")
    await stage.clock.advance(100)
    copies.confirm()
    frames = await stage.during(receive)
    assert bodies(frames) == ["one"]
    following = await parked(stage, broker)
    await stage.clock.advance(500)
    assert not following.done()
    ack = ack_request("g", "t")
    (handle,) = [f.message.system_properties.receipt_handle for f in frames if f.HasField("message")]
    ack.entries.add(message_id="id", receipt_handle=handle)
    await stage.ask("AckMessage", ack, v2.AckMessageResponse)
    assert bodies(await stage.during(following)) == ["two"]
    broker.ledger.progress.check()


async def test_what_a_full_disk_did_not_keep_was_never_delivered_and_the_next_message_there_is(stage: Any) -> None:
    """D1, D5: the next message has the offset of the one that is gone."""
    broker, copies = await leading(stage)
    receive = await parked(stage, broker)
    log = broker.ledger.store._log
    real = log.write

    def full(_: Any) -> None:
        log.write = real  # type: ignore[method-assign]
        raise StoreFull("the disk is full")

    log.write, log.write_more = full, lambda _: False  # type: ignore[method-assign]  # as a full disk
    send = sending(stage, "x")
    frames = await stage.during(receive)
    assert bodies(frames) == []
    assert code_of(await finished(stage, send)) != OK
    state = broker.ledger.progress.queue(1, 1, 0)
    assert state is not None
    assert (state.next, sorted(state.pending)) == (1, [0])
    broker.ledger.progress.check()
    broker.ledger.store._state.set_full(None)
    await stage.during(broker.ledger.journal.settled())
    assert unfinished(broker) == (1, [0]), "what the journal owed does not tell of it"
    receive = await parked(stage, broker)
    await stage.ask("SendMessage", sent("y"), v2.SendMessageResponse)
    frames = await stage.during(receive)
    assert (bodies(frames), attempts(frames)) == (["y"], [1])
    assert unfinished(broker) == (2, [0, 1])
    broker.ledger.progress.check()
    assert copies.store is broker.ledger.store


def unfinished(broker: Broker) -> tuple[int, list[int]]:
    """The group's next offset and what it has not finished, as a start would read it from the log."""
    store = broker.ledger.store
    with store._files.using("commitlog/00000000000000000000") as file:
        data = file.pread(store.stats.log_end, 0)
    progress, at = Progress(), 0
    while at < len(data) and (frame := frame_at(data, at, at)) is not None:
        if frame.kind == STATE:
            for op in decode(bytes(frame.head)):
                if isinstance(op, Delivered | Invisible):
                    progress.apply(op)
        at += frame.size
    state = progress.queue(1, 1, 0)
    assert state is not None
    return state.next, sorted(state.pending)


async def test_where_nothing_is_taken_a_receive_waits_on_and_does_not_fail(stage: Any) -> None:
    broker, copies = await leading(stage)
    copies.hold()
    send = sending(stage, "x")
    await stage.clock.advance(100)
    copies.store.refuse(HaNotAvailable("1 of 2 copies are in sync"))
    receive = await parked(stage, broker, wait_ms=2_000)
    frames = await stage.during(receive)
    assert (bodies(frames), status(frames)) == ([], NOTHING)
    copies.store.refuse(None)
    copies.confirm()
    assert code_of(await finished(stage, send)) == OK
    assert bodies(await received(stage)) == ["x"]
