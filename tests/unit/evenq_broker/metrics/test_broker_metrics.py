"""What Prometheus reads of a broker: every listed metric with its labels, and series that end with what they count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.core.state.records import BrokerKnown, ChangeKind
from evenq_broker.loops.resizing.resizing import scale
from evenq_broker.metrics.broker_metrics import broker_metrics, constant_labels, staging_metrics, transaction_metrics
from evenq_proofs.v2_requests import ack_request, receive_request, v2_message

from evenq.model import FilterExpression, Generation, MessageQueue, MessageType, Subscription
from evenq.serving.program.metrics import MetricKind, exposition
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import staging_pb2
from tests.unit.evenq_broker.staged import DECIDE, STAGE, block, decide, stage_rows

CONSTANT = 'cluster="evenq",node_id="a",node_type="broker"'


def page(broker: Any) -> dict[str, float]:
    """Series (without the constant labels) -> value."""
    text = exposition(broker_metrics(broker), constant_labels(broker.runtime)).decode()
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, rest = line.partition("{")
        if line.startswith("#") or not rest:
            continue
        labels, _, number = rest.rpartition("} ")
        kept = sorted(label for label in labels.split(",") if label not in CONSTANT.split(","))
        assert len(labels.split(",")) == len(kept) + 3, line
        found[f"{name}{{{','.join(kept)}}}"] = float(number)
    return found


async def busy(stage: Any) -> Any:
    """Four messages of topic `t`: group `g` finished one, holds another; two are fresh."""
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=1))
    await stage.during(broker.catalog.create_group("g", start_from="FIRST"))
    send = service_pb2.SendMessageRequest(messages=[v2_message("t", f"id{number}", b"12345") for number in range(4)])
    await stage.ask("SendMessage", send, service_pb2.SendMessageResponse)
    receive = receive_request("g", "t", invisible_ms=10_000, batch_size=2)
    frames = await stage.frames("ReceiveMessage", receive, service_pb2.ReceiveMessageResponse)
    handles = [f.message.system_properties.receipt_handle for f in frames if f.HasField("message")]
    ack = ack_request("g", "t", handles[0])
    answer = await stage.ask("AckMessage", ack, service_pb2.AckMessageResponse)
    assert answer.status.code == definition_pb2.OK
    return broker


def differ(broker: Any) -> None:
    """Two members of group `g` filter topic `t` differently."""
    for client_id in ("c", "d"):
        result = Subscription("t", FilterExpression(client_id))
        broker.membership.members.join(
            "g",
            Member(client_id=client_id, protocol=Protocol.V2, subscriptions=(result,)),
            now_ms=broker.runtime.clock.monotonic_ms(),
            lease_ms=60_000,
        )


async def test_what_filters_leave_out_and_where_they_differ_are_told(stage: Any) -> None:
    broker = await busy(stage)
    assert 'evenq_broker_differing_filters{consumer_group="g",topic="t"}' not in page(broker)
    differ(broker)
    receive = service_pb2.ReceiveMessageRequest(batch_size=2)
    receive.group.name, receive.message_queue.topic.name = "g", "t"
    receive.invisible_duration.seconds = 10
    receive.filter_expression.type, receive.filter_expression.expression = definition_pb2.SQL, "TAGS = 'none'"
    await stage.frames("ReceiveMessage", receive, service_pb2.ReceiveMessageResponse)
    found = page(broker)
    assert found['evenq_broker_filtered_total{consumer_group="g",topic="t"}'] == 2
    assert found['evenq_broker_differing_filters{consumer_group="g",topic="t"}'] == 2


async def test_the_numbers_are_those_of_the_messages(stage: Any) -> None:
    broker = await busy(stage)
    broker.membership.locks.acquire("g", "c", MessageQueue("t", "a", 0), Generation(1, 1))
    broker.membership.locks.wait("g", "d", MessageQueue("t", "a", 0))
    broker.membership.locks.wait("g", "e", MessageQueue("t", "a", 0))
    found = page(broker)
    both = 'consumer_group="g",topic="t"'
    for series, number in {
        'rocketmq_messages_in_total{message_type="normal",topic="t"}': 4,
        f"rocketmq_messages_out_total{{{both}}}": 2,
        f"evenq_broker_acks_total{{{both}}}": 1,
        f"evenq_broker_redeliveries_total{{{both}}}": 0,
        f"rocketmq_send_to_dlq_messages_total{{{both}}}": 0,
        f"rocketmq_consumer_lag_messages{{{both}}}": 3,
        f"rocketmq_consumer_inflight_messages{{{both}}}": 1,
        'rocketmq_consumer_connections{consumer_group="g"}': 1,
        'evenq_broker_locked_queues{consumer_group="g"}': 1,
        'evenq_broker_wanted_queues{consumer_group="g"}': 1,
        "rocketmq_producer_connections{}": 0,
        "rocketmq_topic_number{}": 1,
        "rocketmq_consumer_group_number{}": 1,
        "evenq_broker_polls_parked{}": 0,
    }.items():
        assert found.get(series) == number, (series, found)
    assert found['rocketmq_throughput_in_total{message_type="normal",topic="t"}'] >= 20
    assert found[f"rocketmq_throughput_out_total{{{both}}}"] >= 10
    assert found["rocketmq_storage_size{}"] > 0
    assert found["evenq_store_batches_total{}"] > 0


class SpanCounts:
    """The counters of a span export."""

    exported = failed = dropped = 0

    def __len__(self) -> int:
        return 0


async def test_each_listed_metric_has_a_series_and_counters_say_so_in_their_names(stage: Any) -> None:
    broker = await busy(stage)
    broker.membership.locks.acquire("g", "c", MessageQueue("t", "a", 0))
    differ(broker)
    broker.sessions.duplicates["g"] = 1
    await stage.during(scale(broker.kernel, "t", 2, membership=broker.membership))
    await stage.during(scale(broker.kernel, "t", 1, membership=broker.membership))
    await stage.during(broker.catalog.create_topic("payments", message_type=MessageType.TRANSACTION))
    await stage.during(broker.catalog.create_topic("%DLQ%g", queues=1, system=True))
    broker.cluster.known.brokers.apply(BrokerKnown("gone", gone_ms=1))
    broker.change_sender.remember(ChangeKind.GROUP_DELETED, "g", waiting=["gone"])
    broker.rebalancer = SimpleNamespace(connected=True, changed=lambda **_: None)
    broker.span_export, broker.span_follower = SpanCounts(), SimpleNamespace(missed=0)
    await stage.during(broker.catalog.create_group("evenq-table-t"))
    metrics = broker_metrics(broker)
    found = {series.partition("{")[0].removesuffix("_bucket") for series in page(broker)}
    broker.span_export = broker.span_follower = None  # they have nothing to close
    for metric in metrics:
        assert metric.name in found
        assert (metric.kind is MetricKind.COUNTER) == metric.name.endswith("_total"), metric.name
        assert metric.help
        assert metric.unit


async def test_the_series_of_a_deleted_topic_and_group_are_gone(stage: Any) -> None:
    broker = await busy(stage)
    await stage.during(broker.catalog.delete_topic("t"))
    assert not [series for series in page(broker) if 'topic="t"' in series]
    await stage.during(broker.catalog.delete_group("g"))
    stage_left = [s for s in page(broker) if 'consumer_group="g"' in s and "connections" not in s]
    assert stage_left == []


async def test_rows_wait_are_published_and_dropped(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=1))

    def read() -> dict[str, Any]:
        return {
            metric.name.removeprefix("evenq_broker_"): dict(metric.read())
            for metric in staging_metrics(staging=broker.staging)
        }

    await stage.call(STAGE, stage_rows(block(["a", "b"])), staging_pb2.StageResponse)
    await stage.call(STAGE, stage_rows(block(["c"]), token="lost"), staging_pb2.StageResponse)
    found = read()
    assert found["staged_rows"] == {(): 3}
    assert found["staged_bytes"][()] > 0
    await stage.call(DECIDE, decide({"a": ["a"]}), staging_pb2.DecideResponse)
    found = read()
    assert (found["staged_rows"], found["staged_bytes"]) == ({(): 0}, {(): 0})
    assert found["staged_rows_total"] == {("staged",): 3, ("published",): 2, ("dropped",): 1}
    assert found["stagings_dropped_total"] == found["staging_decisions_total"] == {(): 1}
    assert found["staging_decisions_open"] == {(): 0}


async def test_open_and_ended_transactions_are_told_by_topic(stage: Any) -> None:
    broker = await stage.broker()
    topic = await stage.during(broker.catalog.create_topic("payments", message_type=MessageType.TRANSACTION))
    await stage.during(broker.catalog.create_topic("plain"))
    broker.transactions.table.begin(5, topic.topic_id, first_ms=0, due_ms=1)
    broker.transactions.stats.committed[topic.topic_id] = 3
    broker.transactions.stats.missed = 2
    found = {
        metric.name: list(metric.read())
        for metric in transaction_metrics(broker.catalog, transactions=broker.transactions)
    }
    assert found["rocketmq_half_messages"] == [(("payments",), 1)]
    assert found["rocketmq_commit_messages_total"] == [(("payments",), 3)]
    assert found["rocketmq_rollback_messages_total"] == [(("payments",), 0)]
    assert found["evenq_broker_transaction_checks_total"] == [(("sent",), 0), (("relayed",), 0), (("missed",), 2)]
