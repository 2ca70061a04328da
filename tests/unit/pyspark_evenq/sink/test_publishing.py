"""Writing without a decision: each row is acknowledged, and knows its place if it may be sent again."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from pyspark_evenq.options.sink import WriteOptions
from pyspark_evenq.sink.publishing import publish
from pyspark_evenq.sink.staging import TaskAttempt

from evenq.errors import BadRequest, SettingsError

LATER = pa.array([dt.datetime(2200, 1, 1, tzinfo=dt.UTC)] * 3, pa.timestamp("us", "UTC"))


def published(
    broker: Any, *bodies: str, delivery: str = "idempotent", query: str = "q", batch: int = 0, partition: int = 0,
    columns: dict[str, Any] | None = None, topic: str = "flights", **more: str,
) -> int:  # fmt: skip
    given = {"endpoints": broker.endpoint, "topic": topic, "delivery": delivery, "blockRows": "2", "inFlight": "2"}
    attempt = TaskAttempt(query_id=query, batch_id=batch, partition_id=partition, attempt_id=0)
    rows = pa.record_batch({"body": pa.array(bodies), **(columns or {})})
    return publish(WriteOptions.parse(given | more), attempt, iter([rows]))


def ids(broker: Any) -> list[str]:
    """Of the messages since the last call."""
    found = [message.system_properties.message_id for message in broker.sink.messages]
    broker.sink.published.clear()
    broker.sink.sent.clear()
    return sorted(found)


def test_a_row_has_the_id_of_its_query_batch_partition_place_and_content(broker: Any) -> None:
    """43: without the batch, the next batch's rows would be taken for those that were sent."""
    assert published(broker, "a", "b", "c") == 3
    first = ids(broker)
    assert len(set(first)) == 3
    published(broker, "a", "b", "c")
    assert ids(broker) == first, "sent again"
    for other in ({"batch": 1}, {"partition": 1}, {"query": "r"}):
        published(broker, "a", "b", "c", **other)  # type: ignore[arg-type]
        assert not set(ids(broker)) & set(first), other
    published(broker, "a", "a", "c")
    again = ids(broker)
    assert len(set(again)) == 3, "equal rows have their places"
    assert len(set(again) & set(first)) == 2, "and another row in a place is another message"
    published(broker, "a", "b", "c", columns={"tag": pa.array(["t", None, None])})
    assert len(set(ids(broker)) & set(first)) == 2


def test_at_least_once_gives_each_attempt_ids_of_its_own(broker: Any) -> None:
    seen: set[str] = set()
    for _ in range(2):
        published(broker, "a", "b", delivery="atLeastOnce")
        seen.update(ids(broker))
    assert len(seen) == 4


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("delayed", [False, True])
def test_a_call_that_is_refused_fails_the_task(broker: Any, at: int, delayed: bool) -> None:
    """Also the last one, whose answer comes when all rows were handed over."""
    broker.sink.refuses = lambda request: any(bytes(one.body) == b"abc"[at : at + 1] for one in request.messages)
    with pytest.raises(BadRequest, match="refused by the test"):
        published(broker, "a", "b", "c", columns={"deliveryTimestamp": LATER} if delayed else None)


def test_a_delayed_row_that_is_refused_among_others_fails_the_task(broker: Any) -> None:
    """43: a send is accepted as a whole, and each of its messages has a status of its own."""
    broker.sink.refuses_entry = lambda message: bytes(message.body) == b"b"
    with pytest.raises(BadRequest, match="refused by the test"):
        published(broker, "a", "b", "c", columns={"deliveryTimestamp": LATER})
    assert broker.sink.published == []


def test_delayed_rows_are_sent_and_others_published_by_priority(broker: Any) -> None:
    published(
        broker, "a", "b", "c", columns={"deliveryTimestamp": pa.concat_arrays([LATER[:1], pa.nulls(2, LATER.type)])}
    )
    assert [bytes(one.body) for request in broker.sink.sent for one in request.messages] == [b"a"]
    assert sorted(bytes(one.body) for request in broker.sink.published for one in request.messages) == [b"b", b"c"]
    ids(broker)
    published(broker, "a", "b", columns={"priority": pa.array([1, None], pa.int32())})
    assert [len(request.messages) for request in broker.sink.published] == [1, 1], "a block is for one queue"


def at_queue(queue_id: int, **more: Any) -> dict[str, Any]:
    return {"brokerName": pa.array(["broker-a"]), "queueId": pa.array([queue_id], pa.int32()), **more}


@pytest.mark.parametrize("delivery", ["idempotent", "atLeastOnce"])
def test_a_delayed_row_goes_to_the_queue_that_it_names(broker: Any, delivery: str) -> None:
    published(broker, "a", delivery=delivery, columns=at_queue(1, deliveryTimestamp=LATER[:1]))
    [message] = broker.sink.messages
    assert message.system_properties.queue_id == 1


def test_a_delayed_row_for_queue_0_is_refused(broker: Any) -> None:
    """Brokers take 0 in a sent message for no queue, because some SDKs always leave it there."""
    with pytest.raises(SettingsError, match="a row names queue 0 of broker broker-a and has a deliveryTimestamp"):
        published(broker, "a", columns=at_queue(0, deliveryTimestamp=LATER[:1]))
    assert broker.sink.messages == []
    published(broker, "a", columns=at_queue(0, deliveryTimestamp=LATER[:1], messageGroup=pa.array(["g"])))
    published(broker, "a", columns=at_queue(0))
    assert len(broker.sink.messages) == 2, "the queue of a group is that of its hash; a block names its queue"


def test_the_id_of_a_row_is_that_of_earlier_versions_whatever_queue_it_names(broker: Any) -> None:
    published(broker, "a", columns={"deliveryTimestamp": LATER[:1]})
    [without] = ids(broker)
    published(broker, "a", columns=at_queue(1, deliveryTimestamp=LATER[:1]))
    assert ids(broker) == [without]


def test_every_column_arrives(broker: Any) -> None:
    columns = {
        "tag": pa.array(["t"]), "keys": pa.array([["k1", "k2"]]), "messageGroup": pa.array(["g"]),
        "properties": pa.array([[("p", "v")]], pa.map_(pa.string(), pa.string())),
    }  # fmt: skip
    published(broker, "a", columns=columns)
    [message] = broker.sink.messages
    system = message.system_properties
    assert (system.tag, list(system.keys), system.message_group) == ("t", ["k1", "k2"], "g")
    assert (dict(message.user_properties), message.topic.name) == ({"p": "v"}, "flights")
    assert broker.sink.published[0].queue.queue_id >= 0, "the queue of its group"
