"""Blocks in, beyond the promises in tests/spec/test_cluster.py."""

from typing import Any

import pytest
from evenq_broker.core.sending.plain_sends import PlainSends
from evenq_broker.rpc.sending import publishing
from evenq_proofs.blocks import block, place

from evenq.errors import Error
from evenq.model import MessageType
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2

READ = PlainSends.read_block


@pytest.fixture(autouse=True, params=["from its bytes", "by the full path"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Blocks of plain messages are read in both ways."""
    way: str = request.param
    if way == "by the full path":
        monkeypatch.setattr(PlainSends, "read_block", lambda self, request: None)
    return way


def plain(queue: common_pb2.Queue, *bodies: str) -> data_pb2.PublishRequest:
    """A block that can be read from its bytes."""
    made = block(queue, *bodies)
    for number, message in enumerate(made.messages):
        message.system_properties.message_id = f"id{number}"
        message.system_properties.born_timestamp.seconds = 1_700_000_000
    return made


async def publish(stage: Any, request: data_pb2.PublishRequest) -> data_pb2.PublishResponse:
    answer: data_pb2.PublishResponse = await stage.call("/evenq.v1.Data/Publish", request, data_pb2.PublishResponse)
    return answer


async def begin(stage: Any, queues: int = 2) -> Any:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=queues))
    return broker


async def test_a_block_without_a_queue_goes_round_the_queues_and_stays_together(stage: Any) -> None:
    await begin(stage)
    response = [await publish(stage, plain(place(-1), "x", "y")) for _ in range(3)]
    assert [(answer.queue.queue_id, answer.first_offset) for answer in response] == [(0, 0), (1, 0), (0, 2)]


async def test_a_block_with_one_bad_message_is_refused_whole(stage: Any) -> None:
    broker = await begin(stage)
    with pytest.raises(Error) as caught:
        await publish(stage, plain(place(0), "x", "", "y"))
    assert caught.value.code == definition_pb2.MESSAGE_BODY_EMPTY
    assert broker.ledger.store.queue_range(broker.catalog.topics.get("t").topic_id, 0) == (0, 0)


@pytest.mark.parametrize(
    ("queue", "code"),
    [
        (place(7), definition_pb2.BAD_REQUEST),
        (place(-2), definition_pb2.BAD_REQUEST),
        (place(0, broker="b"), definition_pb2.PRECONDITION_FAILED),
        (place(0, topic="a b"), definition_pb2.ILLEGAL_TOPIC),
    ],
)
async def test_a_block_for_a_queue_that_is_not_here_is_refused(stage: Any, queue: common_pb2.Queue, code: int) -> None:
    await begin(stage)
    with pytest.raises(Error) as caught:
        await publish(stage, plain(queue, "x"))
    assert caught.value.code == code


async def test_an_empty_block_and_a_foreign_topic_are_refused(stage: Any) -> None:
    await begin(stage)
    foreign = plain(place(0), "x")
    foreign.messages[0].topic.name = "other"
    for request in (block(place(0)), foreign):
        with pytest.raises(Error) as caught:
            await publish(stage, request)
        assert caught.value.code == definition_pb2.MESSAGE_CORRUPTED


async def test_names_in_a_block_are_full_names(stage: Any) -> None:
    """A namespace beside them would be a second name."""
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("X%t", queues=1))
    request = plain(common_pb2.Queue(topic="X%t", queue_id=0), "x")
    request.messages[0].topic.name = "X%t"
    await publish(stage, request)
    request.messages[0].topic.resource_namespace = "Y"
    with pytest.raises(Error, match="a block's topic is a full name, X%t"):
        await publish(stage, request)
    [stored] = await stage.during(broker.ledger.store.read_at(broker.catalog.topics.get("X%t").topic_id, 0, [0]))
    assert definition_pb2.Message.FromString(stored.head).topic == definition_pb2.Resource(name="X%t")


async def test_plain_blocks_are_stored_without_the_full_path(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await stage.broker(duplicates_window_ms=60_000)
    await stage.during(broker.catalog.create_topic("t", queues=2))
    monkeypatch.setattr(PlainSends, "read_block", READ)
    monkeypatch.setattr(publishing, "checked_in_block", None)
    first = await publish(stage, plain(place(1), "x", "yy"))
    assert (first.queue, first.first_offset) == (place(1), 0)
    assert 0 <= stage.clock.now_ms() - first.store_ms < 1_000
    assert not first.offsets
    again = await publish(stage, plain(place(0), "x", "yy", "zzz"))
    assert list(zip(again.queue_ids, again.offsets, strict=True)) == [(1, 0), (1, 1), (0, 0)]
    stats = broker.runtime.stats.topic(broker.catalog.topics.get("t").topic_id)
    assert (stats.duplicates, stats.messages_in) == (2, 3)


@pytest.mark.parametrize("topic", ["", "t"])
async def test_both_ways_store_the_same_bytes(
    stage: Any, monkeypatch: pytest.MonkeyPatch, topic: str, how: str
) -> None:
    if how != "from its bytes":  # the test is about both
        return
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=2))
    for queue_id, reader in ((0, READ), (1, lambda self, request: None)):
        monkeypatch.setattr(PlainSends, "read_block", reader)
        request = plain(place(queue_id), "x", "yy" * 200, "z")
        for number, message in enumerate(request.messages):
            message.topic.name = topic
            message.user_properties["k"] = "v" * number
            message.system_properties.tag = "AB"[number % 2]
            if not topic:
                message.ClearField("topic")
        await publish(stage, request)
    topic_id = broker.catalog.topics.get("t").topic_id
    one, other = [
        [
            (message.head, message.system, message.tag_hash, message.born_ms, message.queue_offset)
            for message in await stage.during(broker.ledger.store.read_at(topic_id, queue_id, range(3)))
        ]
        for queue_id in (0, 1)
    ]
    assert one == other
    assert [offset for *_, offset in one] == [0, 1, 2]
    assert definition_pb2.Message.FromString(one[0][0]).topic.name == "t"


async def test_a_block_goes_where_its_messages_ask_to_if_it_names_no_queue(stage: Any) -> None:
    await begin(stage, queues=4)
    request = plain(place(-1), "x", "y")
    for message in request.messages:
        message.system_properties.queue_id = 3
    assert (await publish(stage, request)).queue.queue_id == 3
    request.messages[0].system_properties.queue_id = 60_000  # there is none
    with pytest.raises(Error, match="belong to 2 queues"):
        await publish(stage, request)
    request.messages[1].system_properties.queue_id = 4
    assert (await publish(stage, request)).queue.queue_id == 0
    request.queue.queue_id = 2
    assert (await publish(stage, request)).queue.queue_id == 2, "what the block names goes before"


async def test_what_a_topic_or_the_broker_does_not_take_is_told_of_plain_blocks_too(stage: Any) -> None:
    broker = await begin(stage)
    await stage.during(broker.catalog.create_topic("fifo", queues=1, message_type=MessageType.FIFO))
    for request, code in (
        (plain(place(0, topic="fifo"), "x"), definition_pb2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (plain(place(0, topic="%RETRY%g"), "x"), definition_pb2.FORBIDDEN),
        (plain(place(0), *["x"] * (publishing.PUBLISH_MAX + 1)), definition_pb2.MESSAGE_CORRUPTED),
    ):
        with pytest.raises(Error) as caught:
            await publish(stage, request)
        assert caught.value.code == code
    broker.catalog.draining = True
    response = await stage.ask("/evenq.v1.Data/Publish", plain(place(0), "x"), data_pb2.PublishResponse)
    assert (response.status.code, response.closed) == (definition_pb2.FORBIDDEN, True)
    assert "being drained" in response.status.message


async def test_a_refused_first_block_makes_no_topic(stage: Any) -> None:
    broker = await stage.broker()
    empty = block(place(0, topic="mine"), "x", "")
    lite = block(place(0, topic="mine"), "x")
    lite.messages[0].system_properties.lite_topic = "one"
    for refused in (empty, lite):
        with pytest.raises(Error):
            await publish(stage, refused)
        assert broker.catalog.topics.get("mine") is None


async def test_the_first_plain_block_makes_its_topic(stage: Any) -> None:
    broker = await stage.broker(default_queues=2)
    assert (await publish(stage, plain(place(5), "x"))).queue.queue_id == 0
    assert broker.catalog.topics.get("t").message_type is MessageType.NORMAL
    assert (await publish(stage, plain(place(1), "x"))).first_offset == 0
