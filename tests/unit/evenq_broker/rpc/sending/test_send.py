"""SendMessage (wire contract 3.7): a verdict at both levels, queues in turn, limits reached."""

from typing import Any

import pytest
from evenq_broker.core.sending.plain_sends import PlainSends
from evenq_broker.rpc.sending.send import SendHandler, _ok_entry
from evenq_broker.runtime import limits_of

from evenq.errors import StoreFull
from evenq.model import MessageType
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

OK = 20000
READ = PlainSends.read


@pytest.fixture(autouse=True, params=["from its bytes", "by the full path"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain messages are read in both ways."""
    if request.param == "by the full path":
        monkeypatch.setattr(PlainSends, "read", lambda self, request: None)


def request(*bodies: bytes, topic: str = "t", lane: str = "") -> service_pb2.SendMessageRequest:
    made = service_pb2.SendMessageRequest()
    for number, body in enumerate(bodies):
        message = made.messages.add(body=body)
        message.topic.name = topic
        message.system_properties.message_id = f"id{number}"
        message.system_properties.born_timestamp.seconds = 1_700_000_000
        if lane:
            message.system_properties.message_group = lane
    return made


async def send(stage: Any, response: service_pb2.SendMessageRequest, language: str = "JAVA") -> Any:
    return await stage.ask("SendMessage", response, service_pb2.SendMessageResponse, language=language)


def codes(answer: Any) -> tuple[int, list[int]]:
    return answer.status.code, [entry.status.code for entry in answer.entries]


async def test_messages_of_no_group_go_round_the_queues_and_those_of_one_stay_together(stage: Any) -> None:
    broker = await stage.broker(default_queues=4)
    for _ in range(8):
        assert codes(await send(stage, request(b"x"))) == (OK, [OK])
    topic = broker.catalog.topics.get("t")
    assert [broker.ledger.store.queue_range(topic.topic_id, queue) for queue in range(4)] == [(0, 2)] * 4
    for _ in range(4):
        await send(stage, request(b"x", topic="fifo", lane="one"))
    fifo = broker.catalog.topics.get("fifo")
    assert fifo.message_type is MessageType.FIFO, "a topic made by its first message takes what that is"
    assert sorted(broker.ledger.store.queue_range(fifo.topic_id, queue)[1] for queue in range(4)) == [0, 0, 0, 4]


async def test_each_entry_names_its_message_and_its_offset(stage: Any) -> None:
    await stage.broker(default_queues=1)
    await send(stage, request(b"before"))
    answer = await send(stage, request(b"a", b"b", b"c"))
    assert [(entry.message_id, entry.offset) for entry in answer.entries] == [("id0", 1), ("id1", 2), ("id2", 3)]


async def test_a_refused_first_message_makes_no_topic(stage: Any) -> None:
    """Else it would keep its type, which the next message may not have."""
    broker = await stage.broker()
    blank = request(b"x", topic="mine", lane="L" * 300)
    for refused in (request(b"", topic="mine"), blank):
        status, entries = codes(await send(stage, refused))
        assert status >= 40000
        assert entries == [status]
        assert broker.catalog.topics.get("mine") is None
    mixed = request(b"x", b"y", topic="mine")
    mixed.messages[0].system_properties.message_group = "L" * 300
    _, entries = codes(await send(stage, mixed))
    assert entries[1] == OK
    assert broker.catalog.topics.get("mine").message_type is MessageType.NORMAL, "the type of the one that is taken"


async def test_verdicts_stand_at_both_levels(stage: Any) -> None:
    await stage.broker()
    assert codes(await send(stage, request(b""))) == (41302, [41302])
    assert codes(await send(stage, request(b"", b""))) == (41302, [41302, 41302])
    assert codes(await send(stage, request(b"x", b""))) == (30000, [OK, 41302])
    assert codes(await send(stage, request(b""), "RUST")) == (40000, [40000])


async def test_the_limits_of_the_settings_are_reached_and_told(stage: Any) -> None:
    broker = await stage.broker(body_bytes_max=10, send_batch_max=2, topics_max=1, properties_max=1)
    assert limits_of(broker.runtime).body_bytes_max == 10
    assert codes(await send(stage, request(b"x" * 10))) == (OK, [OK])
    over = await send(stage, request(b"x" * 11))
    assert over.status.code == 41301
    assert "11 bytes" in over.status.message
    many = await send(stage, request(b"x", b"x", b"x"))
    assert codes(many) == (42900, [42900] * 3)
    assert "holds 3 messages, the limit is 2" in many.status.message
    assert (await send(stage, request(b"x", topic="second"))).status.code == 42900
    properties = request(b"x")
    properties.messages[0].user_properties.update({"a": "1", "b": "2"})
    assert (await send(stage, properties)).status.code == 43101


@pytest.mark.parametrize("topic", ["%DLQ%g", "%RETRY%g", "SCHEDULE_TOPIC_XXXX"])
async def test_the_brokers_own_topics_are_refused_and_not_made(stage: Any, topic: str) -> None:
    broker = await stage.broker()
    assert codes(await send(stage, request(b"x", topic=topic))) == (40300, [40300])
    assert broker.catalog.topics.get(topic) is None


async def test_a_full_disk_is_told_and_nothing_is_counted(stage: Any) -> None:
    broker = await stage.broker()
    await send(stage, request(b"x"))
    broker.ledger.store._state.set_full(StoreFull("the broker's disk is 95% full"))
    refused = await send(stage, request(b"y"))
    assert codes(refused) == (42900, [42900])
    assert "95% full" in refused.status.message
    assert broker.runtime.stats.messages_in == 1


async def test_what_a_client_may_not_say_of_a_delivery_is_taken_out(stage: Any) -> None:
    broker = await stage.broker(default_queues=1)
    result = request(b"x")
    result.messages[0].system_properties.store_timestamp.seconds = 5
    await send(stage, result)
    [stored] = await broker.ledger.store.read_at(1, 0, [0])
    system = definition_pb2.SystemProperties.FromString(stored.system)
    assert not system.HasField("store_timestamp")
    assert system.store_host == "a:8081"


async def test_plain_messages_are_stored_without_the_full_path(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await stage.broker(duplicates_window_ms=60_000)
    await send(stage, request(b"first", topic="t"))
    monkeypatch.setattr(PlainSends, "read", READ)
    monkeypatch.setattr(SendHandler, "check", None)
    assert codes(await send(stage, request(b"a", b"b", b"c"))) == (OK, [OK] * 3)
    assert codes(await send(stage, request(b"a", b"b", b"c", b"d"))) == (OK, [OK] * 4)
    topic = broker.catalog.topics.get("t")
    assert broker.runtime.stats.topic(topic.topic_id).duplicates == 3
    assert broker.runtime.stats.messages_in == 5
    stored = [
        message for queue in range(8) for message in await broker.ledger.store.read_at(topic.topic_id, queue, range(5))
    ]
    assert broker.runtime.stats.topic(topic.topic_id).bytes_in == sum(len(one.head) + len(one.system) for one in stored)


async def test_what_a_topic_or_the_broker_does_not_take_is_told_of_plain_messages_too(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("fifo", queues=1, message_type=MessageType.FIFO))
    assert codes(await send(stage, request(b"x", topic="fifo"))) == (40014, [40014])
    broker.catalog.draining = True
    await stage.during(broker.catalog.create_topic("t", queues=1))
    refused = await send(stage, request(b"x"))
    assert "being drained" in refused.status.message


@pytest.mark.parametrize("size", [1, 34, 127, 128, 300])
@pytest.mark.parametrize("offset", [0, 127, 128, 16_384, 1 << 40])
def test_an_entry_of_the_answer_is_what_protobuf_reads(size: int, offset: int) -> None:
    answer = service_pb2.SendMessageResponse.FromString(_ok_entry(b"i" * size, offset))
    (entry,) = answer.entries
    assert (entry.message_id, entry.offset, entry.status.code) == ("i" * size, offset, 20000)
