"""What a group cannot handle, as numbers: nacks, lapsed deliveries, waits for a retry, ages, dead letters."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from evenq_broker.core.dead_letters.delayed_retries import SEEN_MAX, DelayedRetries
from evenq_broker.loops.diagnosis.watching import look_once
from evenq_broker.metrics.backlog_metrics import backlog_metrics, retries_waiting, single_queue_metrics
from evenq_broker.stats import AGE_BOUNDS_MS, SIZE_BOUNDS, GroupTopicStats, TopicStats
from evenq_proofs.v2_requests import ack_request, nack_request, receive_request, v2_message

from evenq.errors import Error, StoreFull
from evenq.model.retry import RetryKind, RetryPolicy
from evenq.serving.program.metrics import Distribution
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2, data_pb2


def read(broker: Any, name: str) -> dict[tuple[str, ...], Any]:
    """Labels -> value of one metric."""
    for metric in (
        *backlog_metrics(
            broker.kernel, lite=broker.lite, delayed_retries=broker.delayed_retries, backlog=broker.backlog
        ),
        *single_queue_metrics(
            broker.kernel, lite=broker.lite, delayed_retries=broker.delayed_retries, backlog=broker.backlog
        ),
    ):
        if metric.name == name:
            return dict(metric.read())
    raise AssertionError(name)


async def filled(stage: Any, count: int, **group: Any) -> Any:
    broker = await stage.broker(default_queues=1, client_silence_ms=10_000_000, client_lost_ms=10_000_000)
    await stage.during(broker.catalog.create_topic("t", queues=1))
    await stage.during(broker.catalog.create_group("g", start_from="FIRST", **group))
    send = service_pb2.SendMessageRequest(messages=[v2_message("t", f"id{number}") for number in range(count)])
    await stage.ask("SendMessage", send, service_pb2.SendMessageResponse)
    return broker


async def receive(stage: Any, *, renews: bool = False, invisible_ms: int = 10_000) -> list[str]:
    request = receive_request("g", "t", poll_ms=1, invisible_ms=invisible_ms, batch_size=9, auto_renew=renews)
    frames = await stage.frames("ReceiveMessage", request, service_pb2.ReceiveMessageResponse)
    return [f.message.system_properties.receipt_handle for f in frames if f.HasField("message")]


async def change(stage: Any, handle: str, ms: int, *, suspend: bool = False) -> None:
    request = nack_request("g", "t", handle, ms, suspend=suspend)
    answer = await stage.ask("ChangeInvisibleDuration", request, service_pb2.ChangeInvisibleDurationResponse)
    assert answer.status.code == definition_pb2.OK


async def test_a_nack_is_a_failure_that_waits_until_its_next_delivery(stage: Any) -> None:
    broker = await filled(stage, 2)
    first, _ = await receive(stage)
    assert read(broker, "evenq_broker_given_back_total") == {("g", "t"): 0}
    await change(stage, first, 0)
    await look_once(broker.kernel, lite=broker.lite, stuck_queues=broker.stuck_queues, backlog=broker.backlog)
    assert read(broker, "evenq_broker_given_back_total") == {("g", "t"): 1}
    assert read(broker, "evenq_broker_retries_waiting") == {("g",): 1}
    await receive(stage)
    await look_once(broker.kernel, lite=broker.lite, stuck_queues=broker.stuck_queues, backlog=broker.backlog)
    assert read(broker, "evenq_broker_retries_waiting") == {("g",): 0}, "it is being worked on"


async def test_a_delivery_that_is_put_off_is_no_failure(stage: Any) -> None:
    broker = await filled(stage, 1)
    (handle,) = await receive(stage, renews=True)
    await change(stage, handle, 20_000, suspend=True)
    await stage.clock.advance(20_001)
    broker.ledger.progress.expire(broker.runtime.now_ms())
    await look_once(broker.kernel, lite=broker.lite, stuck_queues=broker.stuck_queues, backlog=broker.backlog)
    for name in ("evenq_broker_timed_out_total", "evenq_broker_given_back_total"):
        assert read(broker, name) == {("g", "t"): 0}
    assert read(broker, "evenq_broker_retries_waiting") == {("g",): 0}


async def test_more_time_for_a_simple_consumer_is_no_failure_and_a_lapse_is_one(stage: Any) -> None:
    broker = await filled(stage, 1)
    (handle,) = await receive(stage, invisible_ms=10_000)
    await change(stage, handle, 20_000)
    await look_once(broker.kernel, lite=broker.lite, stuck_queues=broker.stuck_queues, backlog=broker.backlog)
    assert read(broker, "evenq_broker_given_back_total") == {("g", "t"): 0}
    assert read(broker, "evenq_broker_retries_waiting") == {("g",): 0}
    await stage.clock.advance(20_001)
    broker.ledger.progress.expire(broker.runtime.now_ms())
    await look_once(broker.kernel, lite=broker.lite, stuck_queues=broker.stuck_queues, backlog=broker.backlog)
    assert read(broker, "evenq_broker_timed_out_total") == {("g", "t"): 1}
    assert read(broker, "evenq_broker_retries_waiting") == {("g",): 1}


async def test_what_a_consumer_sends_back_waits_as_a_delayed_copy_and_then_is_unread(stage: Any) -> None:
    retry = RetryPolicy(kind=RetryKind.CUSTOMIZED, delays_ms=(10_000,))
    broker = await filled(stage, 1, retry=retry)
    back = data_pb2.SendBackRequest(group="g", queue_offset=0, attempts=1)
    back.queue.CopyFrom(common_pb2.Queue(topic="t", broker_name="a", queue_id=0))
    await stage.call("/evenq.v1.Data/SendBack", back, data_pb2.SendBackResponse)
    assert read(broker, "evenq_broker_given_back_total") == {("g", "t"): 1}
    assert retries_waiting(broker.catalog, delayed_retries=broker.delayed_retries, backlog=broker.backlog) == {"g": 1}
    shown = admin_pb2.DescribeGroupRequest(group="g")
    answer = await stage.call("/evenq.v1.Admin/DescribeGroup", shown, admin_pb2.DescribeGroupResponse)
    assert (answer.troubles.retries_waiting, answer.troubles.given_back) == (1, 1)
    await stage.during(stage.clock.sleep_ms(11_000))
    assert retries_waiting(broker.catalog, delayed_retries=broker.delayed_retries, backlog=broker.backlog) == {}
    topic = broker.catalog.topics.get("%RETRY%g")
    assert broker.ledger.store.queue_range(topic.topic_id, 0) == (0, 1), "now it is a message to read"


@pytest.mark.parametrize("full", [False, True])
async def test_a_copy_that_is_due_before_its_store_is_answered_or_is_not_stored_does_not_wait_for_ever(
    stage: Any, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    retry = RetryPolicy(kind=RetryKind.CUSTOMIZED, delays_ms=(1,))
    broker = await filled(stage, 1, retry=retry)
    append = broker.ledger.store.append

    async def slowly(messages: Any, **options: Any) -> Any:
        if not options.get("timers"):
            return await append(messages, **options)
        if full:
            raise StoreFull("no room")
        stored = await append(messages, **options)
        retries = broker.catalog.topics.get("%RETRY%g").topic_id
        while broker.ledger.store.queue_range(retries, 0) == (0, 0):
            await stage.clock.sleep_ms(1)
        return stored

    monkeypatch.setattr(broker.ledger.store, "append", slowly)
    back = data_pb2.SendBackRequest(group="g", queue_offset=0, attempts=1)
    back.queue.CopyFrom(common_pb2.Queue(topic="t", broker_name="a", queue_id=0))
    with pytest.raises(Error) if full else nullcontext():
        await stage.call("/evenq.v1.Data/SendBack", back, data_pb2.SendBackResponse)
    assert retries_waiting(broker.catalog, delayed_retries=broker.delayed_retries, backlog=broker.backlog) == {}


async def test_the_age_is_that_of_the_oldest_unfinished_message(stage: Any) -> None:
    broker = await filled(stage, 2)
    handles = await receive(stage)
    await stage.clock.advance(7_000)
    await look_once(broker.kernel, lite=broker.lite, stuck_queues=broker.stuck_queues, backlog=broker.backlog)
    assert read(broker, "rocketmq_consumer_lag_latency")["g", "t"] >= 7_000
    assert read(broker, "evenq_queue_lag_seconds")["g", "t", "0"] >= 7
    assert read(broker, "evenq_queue_lag_messages")["g", "t", "0"] == 2
    ack = ack_request("g", "t", *handles)
    await stage.ask("AckMessage", ack, service_pb2.AckMessageResponse)
    await look_once(broker.kernel, lite=broker.lite, stuck_queues=broker.stuck_queues, backlog=broker.backlog)
    assert read(broker, "rocketmq_consumer_lag_latency") == {("g", "t"): 0}
    assert read(broker, "evenq_queue_lag_messages") == {("g", "t", "0"): 0}


async def test_deliveries_and_sizes_are_counted_in_buckets(stage: Any) -> None:
    broker = await filled(stage, 3)
    await stage.clock.advance(2_000)
    await receive(stage)
    ages = read(broker, "evenq_broker_delivery_seconds")["g", "t"]
    assert isinstance(ages, Distribution)
    assert ages.counts[AGE_BOUNDS_MS.index(5_000)] == sum(ages.counts) == 3
    assert ages.total == pytest.approx(6, abs=0.2)
    sizes = read(broker, "rocketmq_message_size")["t", "normal"]
    assert (sizes.counts[0], sizes.total) == (
        3,
        broker.runtime.stats.topic(broker.catalog.topics.get("t").topic_id).bytes_in,
    )


def test_buckets_take_what_is_between_their_bounds() -> None:
    topic, group = TopicStats(), GroupTopicStats()
    topic.came([SIZE_BOUNDS[0], SIZE_BOUNDS[0] + 1, SIZE_BOUNDS[-1] + 1])
    assert [topic.sizes[0], topic.sizes[1], topic.sizes[-1], topic.messages_in] == [1, 1, 1, 3]
    topic.came([])
    group.went([0, 99_000, 100_000], 100_000)
    assert (group.ages[AGE_BOUNDS_MS.index(600_000)], group.ages[AGE_BOUNDS_MS.index(1_000)], group.ages[0]) == (
        1,
        1,
        1,
    )
    group.went([], 100_000)
    group.went([100_001], 100_000)  # the clock was set back
    assert (sum(group.ages), group.ages_total_ms) == (4, 101_000)


def test_delayed_retries_are_counted_once_and_those_of_an_earlier_life_not_at_all() -> None:
    retries = DelayedRetries()
    retries.begin(1_000)
    for _ in range(3):
        retries.put(7)
    retries.due(7, 999)
    assert retries.waiting(7) == 3, "it was given back before the restart"
    for _ in range(2):  # the store was full: the same timer is asked about again
        retries.due(7, 1_000)
    assert retries.waiting(7) == 2
    retries.due(8, 2_000)
    retries.forget_topic(7)
    assert (retries.waiting(7), retries.waiting(8)) == (0, 0)
    for number in range(SEEN_MAX + 10):
        retries.put(9)
        retries.due(9, 5_000 + number)
    assert retries.waiting(9) == 0
