"""From calls of v2 clients to spans, while nothing of the calls waits for them."""

from __future__ import annotations

from typing import Any

from evenq_broker.core.diagnosis.message_spans import MessageSpan
from evenq_broker.loops.diagnosis import span_follower
from evenq_broker.loops.diagnosis.span_follower import ROUND_MS, SpanFollower
from evenq_proofs.v2_requests import ack_request, nack_request, receive_request, send_request

from evenq.model.span_attributes import ATTEMPT, CLIENT_ID, OUTCOME
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

CONTEXT = f"00-{0xABC:032x}-{0xDEF:016x}-01"


class Story:
    """One broker, one topic `t`, one group `g`, and the spans so far."""

    def __init__(self, stage: Any) -> None:
        self.stage = stage
        self.spans: list[MessageSpan] = []

    async def begin(self, **settings: Any) -> Story:
        self.broker = await self.stage.broker(default_start_from="FIRST", **settings)
        await self.stage.during(self.broker.catalog.create_topic("t", queues=1))
        await self.stage.during(self.broker.catalog.create_group("g", max_attempts=2))
        self.follower = SpanFollower(self.broker.kernel, self.spans.extend)
        self.follower.start()
        return self

    async def send(self, message_id: str = "id", context: str = CONTEXT) -> None:
        request = send_request("t", message_id, b"body", message_type=definition_pb2.NORMAL)
        if context:
            request.messages[0].user_properties["traceparent"] = context
        answer = await self.stage.ask("SendMessage", request, service_pb2.SendMessageResponse)
        assert answer.status.code == 20000

    async def receive(self, client: str = "c", *, auto_renew: bool = False, batch_size: int = 1) -> list[str]:
        request = receive_request(
            "g", "t", poll_ms=100, invisible_ms=10_000, batch_size=batch_size, auto_renew=auto_renew
        )
        frames = await self.stage.frames("ReceiveMessage", request, service_pb2.ReceiveMessageResponse, client=client)
        return [frame.message.system_properties.receipt_handle for frame in frames if frame.HasField("message")]

    async def nack(self, handle: str) -> None:
        request = nack_request("g", "t", handle, 0, message_id="id")
        await self.stage.ask("ChangeInvisibleDuration", request, service_pb2.ChangeInvisibleDurationResponse)

    async def ack(self, handle: str) -> None:
        request = ack_request("g", "t")
        request.entries.add(message_id="id", receipt_handle=handle)
        assert (await self.stage.ask("AckMessage", request, service_pb2.AckMessageResponse)).status.code == 20000

    async def shown(self) -> list[tuple[str, object, object]]:
        await self.stage.clock.advance(2 * ROUND_MS)
        return [(one.name, one.attributes.get(ATTEMPT), one.attributes.get(OUTCOME)) for one in self.spans]


async def test_a_message_that_is_retried_and_acked(stage: Any) -> None:
    story = await Story(stage).begin()
    await story.send()
    [first] = await story.receive("one", auto_renew=True)
    await story.nack(first)
    [second] = await story.receive("two")
    await story.ack(second)
    assert await story.shown() == [
        ("store t", None, None),
        ("wait t", 1, None),
        ("deliver t", 1, "retried"),
        ("wait t", 2, None),
        ("deliver t", 2, "acked"),
    ]
    assert {(one.trace_id, one.parent_id) for one in story.spans} == {(0xABC, 0xDEF)}
    assert [one.attributes.get(CLIENT_ID) for one in story.spans if one.name == "deliver t"] == ["one", "two"]
    assert all(one.start_ms <= one.end_ms for one in story.spans)


async def test_a_message_whose_attempts_are_used_up(stage: Any) -> None:
    story = await Story(stage).begin()
    await story.send()
    for _ in range(2):
        await story.receive()
        await stage.clock.advance(10_100)
    await story.receive()
    await stage.until(lambda: story.broker.ledger.progress.inflight(1, 1, 0) == 0)
    assert await story.shown() == [
        ("store t", None, None),
        ("wait t", 1, None),
        ("deliver t", 1, "timed_out"),
        ("wait t", 2, None),
        ("store %DLQ%g", None, None),
        ("deliver t", 2, "dead_lettered"),
    ]


async def test_messages_without_a_sampled_context_make_no_spans(stage: Any) -> None:
    story = await Story(stage).begin()
    await story.send("one", context="")
    await story.send("two", context=CONTEXT[:-1] + "0")
    for handle in await story.receive(batch_size=2):
        await story.ack(handle)
    assert await story.shown() == []
    assert story.follower.missed == 0


async def test_what_the_history_forgot_is_counted(stage: Any) -> None:
    story = await Story(stage).begin(trace_bytes=300)
    for number in range(5):
        await story.send(f"id{number}")
    handles = await story.receive(batch_size=5)
    for handle in handles:
        await story.ack(handle)
    names = [name for name, _, _ in await story.shown()]
    assert names.count("store t") == 5, "messages are read from the store"
    assert story.follower.missed > 0
    assert names.count("deliver t") < 5


async def test_a_queue_that_is_too_far_ahead_is_skipped_to_the_newest(stage: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(span_follower, "BEHIND_MAX", 2)
    story = await Story(stage).begin()
    for number in range(5):
        await story.send(f"id{number}")
    assert [name for name, _, _ in await story.shown()] == ["store t"] * 2
    assert story.follower.missed == 3


async def test_a_fault_costs_spans_and_neither_the_broker_nor_the_following_messages(
    stage: Any, monkeypatch: Any, caplog: Any
) -> None:
    story = await Story(stage).begin()

    def broken(*_: object) -> None:
        raise ValueError("a fault")

    with monkeypatch.context() as patched:
        patched.setattr(span_follower, "traced_message", broken)
        await story.send("lost")
        [handle] = await story.receive()
        await story.ack(handle)
        assert await story.shown() == []
    assert "tracing continues" in caplog.text
    assert story.follower.missed > 0
    await story.send("next")
    assert await story.shown() == [("store t", None, None)]
    assert not story.broker.runtime.failed.done()


async def test_the_end_of_the_broker_reports_what_is_not_settled(stage: Any) -> None:
    story = await Story(stage).begin()
    await story.send()
    await story.receive()
    await stage.during(story.follower.close())
    assert [(one.name, one.attributes.get(OUTCOME)) for one in story.spans] == [
        ("store t", None), ("wait t", None), ("deliver t", "unsettled"),
    ]  # fmt: skip


async def test_only_what_happens_from_the_start_on_makes_spans(stage: Any) -> None:
    story = Story(stage)
    broker = await stage.broker(default_start_from="FIRST")
    await stage.during(broker.catalog.create_topic("t", queues=1))
    await story.send("old")
    story.follower = SpanFollower(broker.kernel, story.spans.extend)
    story.follower.start()
    await story.send("new")
    assert [one[0] for one in await story.shown()] == ["store t"]
