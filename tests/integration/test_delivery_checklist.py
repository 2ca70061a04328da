"""Statements 33 and 35 to 43 of the conformance checklist (wire-contract.md section 8), one test each.

A whole broker behind a net without sockets, with a clock that the test moves: ten minutes of work pass at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from evenq_broker.broker import Broker
from evenq_broker.settings import BrokerSettings
from evenq_proofs.loop_net import LoopNet
from evenq_proofs.v2_requests import ack_request, nack_request, receive_messages, receive_request

from evenq.model import BrokerAddress, MessageType
from evenq.model.retry import RetryKind, RetryPolicy
from evenq.runtime.clock import FakeClock
from evenq.store import Append
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

V2 = "/apache.rocketmq.v2.MessagingService/"
OK, INVALID = 20000, 40013
MINUTE = 60_000
s = service_pb2


class Talk:
    """One client and the broker it talks to."""

    def __init__(
        self, broker: Broker, net: LoopNet, clock: FakeClock, client: str = "c", language: str = "JAVA"
    ) -> None:
        self.broker, self.net, self.clock = broker, net, clock
        self.headers = {"x-mq-client-id": client, "x-mq-language": language}

    def other(self, client: str, language: str = "JAVA") -> Talk:
        return Talk(self.broker, self.net, self.clock, client, language)

    async def call(self, name: str, request: Any, response: Any) -> Any:
        result = request.SerializeToString()
        call = self.net.unary("a:8081", V2 + name, result, timeout_ms=60_000, metadata=self.headers)
        return response.FromString(await self.clock.during(call))

    async def send(self, *bodies: str, lane: str = "") -> None:
        request = s.SendMessageRequest()
        for body in bodies:
            message = request.messages.add(body=body.encode())
            message.topic.name = "t"
            message.system_properties.message_id = f"id-{body}"
            if lane:
                message.system_properties.message_group = lane
        assert (await self.call("SendMessage", request, s.SendMessageResponse)).status.code == OK

    async def receive(self, **options: Any) -> list[Any]:
        found: list[Any] = await self.clock.during(self.receiving(**options))
        return found

    async def receiving(
        self, *, push: bool = False, batch: int = 32, poll_ms: int = 0, invisible_ms: int = 10_000, attempt: str = ""
    ) -> list[Any]:
        request = receive_request(
            "g",
            "t",
            queue=-1,
            poll_ms=poll_ms,
            invisible_ms=None if push else invisible_ms,
            batch_size=batch,
            auto_renew=push,
            attempt_id=attempt,
        )

        return await receive_messages(self.net, "a:8081", request, metadata=self.headers)

    async def ack(self, *handles: str) -> Any:
        request = ack_request("g", "t")
        for handle in handles:
            request.entries.add(message_id="id", receipt_handle=handle)
        return await self.call("AckMessage", request, s.AckMessageResponse)

    async def change(self, handle: str, invisible_ms: int) -> Any:
        request = nack_request("g", "t", handle, invisible_ms)
        return await self.call("ChangeInvisibleDuration", request, s.ChangeInvisibleDurationResponse)

    async def forward(self, handle: str, message_id: str = "") -> int:
        request = s.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle, message_id=message_id)
        request.group.name, request.topic.name = "g", "t"
        response = s.ForwardMessageToDeadLetterQueueResponse
        return int((await self.call("ForwardMessageToDeadLetterQueue", request, response)).status.code)

    async def beat(self) -> None:
        request = s.HeartbeatRequest(client_type=definition_pb2.PUSH_CONSUMER)
        request.group.name = "g"
        await self.call("Heartbeat", request, s.HeartbeatResponse)

    async def works_for(self, minutes: int) -> None:
        """The client lives and does nothing but send heartbeats, as often as the SDKs do."""
        for _ in range(minutes * 6):
            await self.clock.advance(MINUTE // 6)
            await self.beat()


@asynccontextmanager
async def a_talk(*, fifo: bool = False, **group: Any) -> AsyncIterator[Talk]:
    clock = FakeClock()
    net = LoopNet(clock)
    result = BrokerSettings(broker_name="a", default_start_from="FIRST", error_hold_ms=0)
    broker = Broker(result, clock=clock, rng=random.Random(1), net=net)
    await broker.open()
    net.serve("a:8081", broker.rpcs())
    talk = Talk(broker, net, clock)
    await talk.clock.during(broker.start([BrokerAddress("default", "a", 8081)]))
    kind = MessageType.FIFO if fifo else MessageType.NORMAL
    await talk.clock.during(broker.catalog.create_topic("t", queues=2, message_type=kind))
    await talk.clock.during(broker.catalog.create_group("g", ordered=fifo, **group))
    try:
        yield talk
        broker.ledger.progress.check()
        broker.long_polls.table.check()
    finally:
        await talk.clock.during(broker.close())


def message_of(broker: Broker) -> Append:
    topic = broker.catalog.topics.get("t")
    assert topic is not None
    return Append(topic.topic_id, 0, 0, 0, b"", b"")


def handle(message: Any) -> str:
    return str(message.system_properties.receipt_handle)


def bodies(messages: list[Any]) -> list[str]:
    return [message.body.decode() for message in messages]


async def test_33_a_receive_whose_answer_was_lost_is_answered_again() -> None:
    """Checklist 33: the same attempt id gets the same messages, as the same delivery."""
    async with a_talk() as talk:
        await talk.send("1", "2", "3")
        lost = await talk.receive(push=True, batch=3, attempt="x")
        again = await talk.receive(push=True, batch=3, attempt="x")
        assert sorted(bodies(again)) == sorted(bodies(lost)) == ["1", "2", "3"]
        assert {one.system_properties.delivery_attempt for one in again} == {1}
        assert await talk.other("another").receive(attempt="x") == []


async def test_33_a_cancelled_receive_gives_back_within_a_second() -> None:
    """Checklist 33: nothing is lost with a poll that its client gave up."""
    async with a_talk() as talk:
        for answered in (False, True):
            poll = asyncio.ensure_future(talk.receiving(poll_ms=10_000, attempt="x"))
            await talk.clock.advance(50)
            if answered:  # all of it is under way when the client gives up
                await talk.broker.ledger.store.append((message_of(talk.broker),))
            poll.cancel()
            await asyncio.gather(poll, return_exceptions=True)
            if not answered:
                await talk.send("1")
            began_ms = talk.clock.monotonic_ms()
            [got] = await (talk if answered else talk.other("next")).receive(poll_ms=5_000, attempt="x")
            assert got.system_properties.delivery_attempt == 1
            assert talk.clock.monotonic_ms() - began_ms <= 1_000


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.slow
async def test_35_a_push_consumer_that_works_for_twenty_minutes_keeps_its_message(fifo: bool) -> None:
    """Checklist 35: standard, and FIFO in a local retry; the rest of its message group waits with it."""
    async with a_talk(fifo=fifo) as talk:
        await talk.send("1", "2", lane="lane" if fifo else "")
        got = await talk.receive(push=True)
        assert len(got) == (1 if fifo else 2)
        for _ in range(2):
            await talk.works_for(10)
            assert await talk.other("idle").receive() == []
        assert (await talk.ack(*map(handle, got))).status.code == OK
        assert bodies(await talk.receive(push=True)) == (["2"] if fifo else [])


async def test_36_a_killed_push_consumers_messages_come_again_and_a_stopped_ones_within_two_seconds() -> None:
    """Checklist 36."""
    async with a_talk() as talk:
        await talk.send("1")
        assert len(await talk.other("killed").receive(push=True)) == 1
        await talk.clock.advance(12_500)
        assert await talk.receive() == []
        await talk.clock.advance(2_500)
        stopping = talk.other("stopped")
        [got] = await stopping.receive(push=True)
        assert got.system_properties.delivery_attempt == 2
        request = s.NotifyClientTerminationRequest()
        request.group.name = "g"
        await stopping.call("NotifyClientTermination", request, s.NotifyClientTerminationResponse)
        began_ms = talk.clock.monotonic_ms()
        [got] = await talk.receive(poll_ms=10_000)
        assert got.system_properties.delivery_attempt == 3
        assert talk.clock.monotonic_ms() - began_ms <= 2_000


async def test_37_acks_are_final_idempotent_and_good_with_an_earlier_handle_of_the_delivery() -> None:
    """Checklist 37."""
    async with a_talk() as talk:
        await talk.send("1")
        [got] = await talk.receive()
        changed = await talk.change(handle(got), 30_000)
        assert changed.status.code == OK
        for one in (handle(got), handle(got), changed.receipt_handle):
            answer = await talk.ack(one)
            assert (answer.status.code, answer.entries[0].status.code) == (OK, OK)
        await talk.clock.advance(MINUTE)
        assert await talk.receive() == []


async def test_38_an_expired_or_malformed_handle_is_invalid_at_both_levels_and_ok_for_rust() -> None:
    """Checklist 38."""
    async with a_talk() as talk:
        await talk.send("1")
        [got] = await talk.receive(invisible_ms=1_000)
        await talk.clock.advance(1_500)
        for bad in (handle(got), "nonsense", "", handle(got)[:-4]):
            answer = await talk.ack(bad)
            assert (answer.status.code, answer.entries[0].status.code) == (INVALID, INVALID), bad
            rust = await talk.other("r", "RUST").ack(bad)
            assert (rust.status.code, rust.entries[0].status.code) == (OK, OK), bad


async def test_39_a_refused_change_echoes_the_handle_of_the_request() -> None:
    """Checklist 39."""
    async with a_talk() as talk:
        await talk.send("1")
        [got] = await talk.receive(invisible_ms=1_000)
        too_long = await talk.change(handle(got), 99 * 3_600_000)
        assert (too_long.status.code, too_long.receipt_handle) == (40011, handle(got))
        await talk.clock.advance(1_500)
        for bad in (handle(got), "nonsense"):
            answer = await talk.change(bad, 1_000)
            assert (answer.status.code, answer.receipt_handle) == (INVALID, bad)


async def test_40_an_invisible_time_of_0_and_of_1_ms_means_now() -> None:
    """Checklist 40; and redelivery is exact to the ms for any other time."""
    async with a_talk() as talk:
        await talk.send("1")
        for attempt, pause_ms in enumerate((0, 1, 700, 12_345), start=1):
            [got] = await talk.receive(poll_ms=20_000)
            assert got.system_properties.delivery_attempt == attempt
            assert (await talk.change(handle(got), pause_ms)).status.code == OK
            began_ms = talk.clock.monotonic_ms()
            [got] = await talk.receive(poll_ms=20_000)
            waited_ms = talk.clock.monotonic_ms() - began_ms
            assert pause_ms - 10 <= waited_ms <= pause_ms + 15
            request = nack_request("g", "t", handle(got), 0, suspend=True)
            answer = await talk.call("ChangeInvisibleDuration", request, s.ChangeInvisibleDurationResponse)
            assert answer.status.code == OK, "a suspended delivery does not count"


async def test_41_what_always_fails_is_delivered_max_attempts_times_and_is_then_a_dead_letter() -> None:
    """Checklist 41; RD-3, RD-19: with `dead_letter_queue` set, and its origin in properties."""
    async with a_talk() as talk:
        await talk.send("poison")
        attempts = []
        while got := await talk.receive(push=True):
            attempts.append(got[0].system_properties.delivery_attempt)
            await talk.change(handle(got[0]), 0)
        assert attempts == list(range(1, 18))
        await talk.clock.advance(100)
        dead = talk.broker.catalog.topics.get("%DLQ%g")
        assert dead is not None
        [letter] = await talk.broker.ledger.store.read_at(dead.topic_id, 0, [0])
        system = definition_pb2.SystemProperties.FromString(letter.system)
        assert (system.dead_letter_queue.topic, system.dead_letter_queue.message_id) == ("t", "id-poison")
        response = definition_pb2.Message.FromString(letter.head).user_properties
        assert (response["DLQ_REASON"], response["DLQ_ATTEMPTS"]) == ("attempts", "17")


async def test_42_the_next_of_a_message_group_comes_only_after_a_forward() -> None:
    """Checklist 42: also a forward without a handle, as C++ sends it; one that is gone is OK."""
    async with a_talk(fifo=True) as talk:
        await talk.send("1", "2", "3", lane="lane")
        [first] = await talk.receive(push=True)
        await talk.works_for(5)
        assert await talk.receive(push=True) == []
        assert await talk.forward(handle(first)) == OK
        [second] = await talk.receive(push=True)
        assert await talk.forward("", second.system_properties.message_id) == OK
        assert await talk.forward(handle(first)) == OK
        assert await talk.forward("nonsense") == OK
        assert bodies([first, second, *(await talk.receive(push=True))]) == ["1", "2", "3"]


async def test_42_acknowledged_ones_of_a_batch_never_come_again_and_order_survives_redelivery_and_restart() -> None:
    """Checklist 42, contract 9.4: redelivery restarts at the failed message only; other message groups go on."""
    async with a_talk(fifo=True) as talk:
        lanes = ("a", "b", "c")
        for number in range(4):
            for lane in lanes:
                await talk.send(f"{lane}{number}", lane=lane)
        done: dict[str, list[str]] = {lane: [] for lane in lanes}
        failed = 0
        while sum(map(len, done.values())) < 12:
            got = await talk.receive(invisible_ms=2_000)
            heads = bodies(got)
            assert len({body[0] for body in heads}) == len(heads), "never two of one message group at once"
            for one in got:
                body = one.body.decode()
                assert body not in done[body[0]], "what was acknowledged came again"
                if failed < 4 and body in {"a0", "b2"}:
                    failed += 1
                    if failed % 2:
                        await talk.change(handle(one), 0)
                    continue  # and once it is left to its time
                await talk.ack(handle(one))
                done[body[0]].append(body)
            if not got:
                await talk.clock.advance(2_000)
        assert done == {lane: [f"{lane}{number}" for number in range(4)] for lane in lanes}


async def test_43_a_failing_node_consumer_waits_the_groups_policy_between_tries() -> None:
    """Checklist 43: 10 s and then more, not 10 ms."""
    async with a_talk(retry=RetryPolicy(kind=RetryKind.EXPONENTIAL, initial_ms=10000, max_ms=20000)) as talk:
        node = talk.other("n", "HTTP")
        await talk.send("1")
        [got] = await node.receive(push=True)
        for pause_ms in (10_000, 20_000, 20_000):
            began_ms = talk.clock.monotonic_ms()
            await node.change(handle(got), 10)  # it takes seconds for milliseconds
            found: list[Any] = []
            while not found:
                found = await node.receive(push=True, poll_ms=10_000)
            [got] = found
            assert pause_ms <= talk.clock.monotonic_ms() - began_ms <= pause_ms + 50
