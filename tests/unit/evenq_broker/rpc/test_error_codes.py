"""The error lists of wire contract 1.5 and 3.4 to 3.14, walked: what is wrong, and the code at both levels.

Codes that need a whole machine (a full disk, a peer that is away) are proven by tests/integration/test_bad_input.py and
test_transactions.py; those of the pull path by test_offsets.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from evenq.model import MessageType, Permission
from evenq.wire.convert import set_duration_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as d
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2 as s

OK, BAD_REQUEST, FORBIDDEN = 20000, 40000, 40300
ACCESS_POINT, TOPIC, GROUP, TAG, KEY, MESSAGE_GROUP, PROPERTY = 40001, 40002, 40003, 40004, 40005, 40006, 40007
TRANSACTION, MESSAGE_ID, FILTER, INVISIBLE, DELIVERY_TIME, HANDLE = 40008, 40009, 40010, 40011, 40012, 40013
CONFLICT, CORRUPTED, CLIENT_ID, LITE_TOPIC = 40014, 40016, 40017, 40020
NO_TOPIC, NO_GROUP, TOO_LARGE, EMPTY, LITE_TOPICS, SUBSCRIPTIONS, PROPERTIES = (
    40402,
    40403,
    41301,
    41302,
    42901,
    42902,
    43101,
)
HOUR = 3_600_000


async def strict(stage: Any, **settings: Any) -> Any:
    """A broker that makes nothing by itself, with a topic of each kind and group `g`."""
    fields = {"auto_create_topics": False, "auto_create_groups": False, "error_hold_ms": 0, **settings}
    broker = await stage.broker(default_start_from="FIRST", **fields)
    for kind in MessageType:
        await stage.during(broker.catalog.create_topic(kind.value.lower(), queues=1, message_type=kind))
    await stage.during(broker.catalog.create_group("g"))
    return broker


def message(topic: str = "normal", body: bytes = b"x", properties: Any = (), **fields: Any) -> d.Message:
    made = d.Message(body=body, user_properties=dict(properties))
    made.topic.name = topic
    made.system_properties.message_id = "id"
    for name, value in fields.items():
        if name == "keys":
            made.system_properties.keys.extend(value)
        elif name == "due_s":
            made.system_properties.delivery_timestamp.seconds = value
        elif name == "recovery_ms":
            set_duration_ms(made.system_properties.orphaned_transaction_recovery_duration, value)
        elif name == "digest":
            made.system_properties.body_digest.type, made.system_properties.body_digest.checksum = d.MD5, value
        else:
            setattr(made.system_properties, name, value)
    return made


BAD_MESSAGES: list[tuple[int, dict[str, Any]]] = [
    (TOPIC, {"topic": ""}),
    (TOPIC, {"topic": "a b"}),
    (TOPIC, {"topic": "x" * 128}),
    (NO_TOPIC, {"topic": "nowhere"}),
    (FORBIDDEN, {"topic": "%DLQ%g"}),
    (FORBIDDEN, {"topic": "TBW102"}),
    (EMPTY, {"body": b""}),
    (TOO_LARGE, {"body": b"x" * 2001}),
    (TAG, {"tag": ""}),
    (TAG, {"tag": " \t"}),
    (TAG, {"tag": "a|b"}),
    (TAG, {"tag": "a\x7fb"}),
    (KEY, {"keys": [""]}),
    (KEY, {"keys": ["good", "  "]}),
    (KEY, {"keys": ["a\nb"]}),
    (KEY, {"keys": [str(number) for number in range(129)]}),
    (MESSAGE_GROUP, {"topic": "fifo", "message_group": ""}),
    (MESSAGE_GROUP, {"topic": "fifo", "message_group": "   "}),
    (MESSAGE_GROUP, {"topic": "fifo", "message_group": "x" * 64}),
    (MESSAGE_GROUP, {"topic": "fifo", "message_group": "ü" * 32}),
    (PROPERTY, {"properties": {"": "x"}}),
    (PROPERTY, {"properties": {"a\0b": "x"}}),
    (PROPERTIES, {"properties": {str(number): "x" for number in range(129)}}),
    (PROPERTY, {"properties": {"UNIQ_KEY": "x"}}),
    (PROPERTIES, {"properties": {"a": "x" * (16 << 10)}}),
    (PROPERTIES, {"tag": "x" * ((16 << 10) + 1)}),
    (PROPERTIES, {"keys": ["x" * ((16 << 10) + 1)]}),
    (PROPERTIES, {"keys": ["x" * 1000] * 10, "tag": "x" * 4000, "properties": {"a": "x" * 3000}}),
    (PROPERTIES, {"keys": ["x" * 1000], "tag": "x" * 4000, "trace_context": "x" * (256 << 10)}),
    (MESSAGE_ID, {"message_id": ""}),
    (MESSAGE_ID, {"message_id": "  "}),
    (MESSAGE_ID, {"message_id": "x" * 256}),
    (DELIVERY_TIME, {"topic": "delay", "due_s": 1 << 40}),
    (BAD_REQUEST, {"topic": "transaction", "message_type": d.TRANSACTION, "recovery_ms": HOUR + 1}),
    (BAD_REQUEST, {"topic": "priority", "priority": -1}),
    (LITE_TOPIC, {"topic": "lite", "lite_topic": ""}),
    (LITE_TOPIC, {"topic": "lite", "lite_topic": "a b"}),
    (LITE_TOPIC, {"topic": "lite", "lite_topic": "x" * 65}),
    (CORRUPTED, {"digest": "0" * 32}),
    (CORRUPTED, {"body_encoding": d.GZIP, "body": b"not packed"}),
    (CONFLICT, {"message_type": d.FIFO}),
    (CONFLICT, {"message_type": d.DELAY, "message_group": "a"}),
    (CONFLICT, {"message_type": d.TRANSACTION, "topic": "transaction", "due_s": 1}),
    (CONFLICT, {"message_group": "a"}),
    (CONFLICT, {"due_s": 1}),
    (CONFLICT, {"priority": 1}),
    (CONFLICT, {"lite_topic": "a"}),
    (CONFLICT, {"topic": "fifo"}),
    (CONFLICT, {"topic": "delay"}),
    (CONFLICT, {"topic": "lite"}),
    (CONFLICT, {"topic": "mixed", "priority": 1}),
    (CONFLICT, {"topic": "priority", "priority": 1, "message_group": "a"}),
    (FORBIDDEN, {"topic": "closed"}),
]


async def test_each_way_a_message_may_be_wrong_has_its_code_at_both_levels_and_stores_nothing(stage: Any) -> None:
    broker = await strict(stage, body_bytes_max=2000)
    await stage.during(broker.catalog.create_topic("closed", queues=1))
    closed = broker.catalog.topics.get("closed")
    broker.catalog.topics.put(closed.__class__(**{**_fields(closed), "permission": Permission.READ}))
    before = broker.ledger.store.stats.log_end
    for code, fields in BAD_MESSAGES:
        request = s.SendMessageRequest(messages=[message(**fields)])
        answer = await stage.ask("SendMessage", request, s.SendMessageResponse)
        found = (answer.status.code, [entry.status.code for entry in answer.entries])
        assert found == (code, [code]), (fields, answer.status.message)
        assert 20 < len(answer.status.message) < 500
    assert broker.ledger.store.stats.log_end == before
    for messages in ([], [message(), message("fifo", message_group="a")]):
        request = s.SendMessageRequest(messages=messages)
        assert (await stage.ask("SendMessage", request, s.SendMessageResponse)).status.code == CORRUPTED
    request = s.SendMessageRequest(messages=[message(), message(body=b""), message(tag="|")])
    mixed = await stage.ask("SendMessage", request, s.SendMessageResponse)
    assert (mixed.status.code, [e.status.code for e in mixed.entries]) == (30000, [OK, EMPTY, TAG])


def _fields(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


async def test_routes_and_assignments_of_what_is_not_there_are_told(stage: Any) -> None:
    await strict(stage)
    for topic, host, port, code in (
        ("normal", "a", 8081, OK),
        ("normal", "", 8081, ACCESS_POINT),
        ("normal", " ", 8081, ACCESS_POINT),
        ("normal", "a", 0, ACCESS_POINT),
        ("normal", "a", 65_536, ACCESS_POINT),
        ("normal", "a", -1, ACCESS_POINT),
        ("normal", None, 0, ACCESS_POINT),
        ("", "a", 8081, TOPIC),
        ("a/b", "a", 8081, TOPIC),
        ("nowhere", "a", 8081, NO_TOPIC),
        ("%SYS%no-such", "a", 8081, NO_TOPIC),
        ("%DLQ%g", "a", 8081, NO_TOPIC),
        ("TBW102", "a", 8081, TOPIC),
    ):
        route, assignment = s.QueryRouteRequest(), s.QueryAssignmentRequest()
        assignment.group.name = "g"
        for request in (route, assignment):
            request.topic.name = topic
            if host is not None:
                request.endpoints.addresses.add(host=host, port=port)
        response = (await stage.ask("QueryRoute", route, s.QueryRouteResponse)).status
        assert response.code == code, (topic, host, port, response.message)
        if host is not None:
            assert (await stage.ask("QueryAssignment", assignment, s.QueryAssignmentResponse)).status.code == code
    request = s.QueryAssignmentRequest()
    request.endpoints.addresses.add(host="a", port=8081)
    for group, code in (("", GROUP), ("a b", GROUP), ("x" * 121, GROUP), ("nobody", NO_GROUP)):
        request.topic.name, request.group.name = "normal", group
        assert (await stage.ask("QueryAssignment", request, s.QueryAssignmentResponse)).status.code == code


def receive_request(
    topic: str = "normal",
    group: str = "g",
    *,
    sql: str | None = None,
    tags: str = "*",
    invisible_ms: int | None = 10_000,
) -> s.ReceiveMessageRequest:
    request = s.ReceiveMessageRequest(batch_size=32)
    request.group.name, request.message_queue.topic.name = group, topic
    request.filter_expression.type = d.TAG if sql is None else d.SQL
    request.filter_expression.expression = tags if sql is None else sql
    if invisible_ms is not None:
        set_duration_ms(request.invisible_duration, invisible_ms)
    set_duration_ms(request.long_polling_timeout, 0)
    return request


async def receive(stage: Any, request: s.ReceiveMessageRequest) -> tuple[int, str]:
    frames = await stage.frames("ReceiveMessage", request, s.ReceiveMessageResponse)
    assert frames[0].HasField("status")
    assert len(frames) == 1
    return frames[0].status.code, frames[0].status.message


BAD_SQL = [
    "", " ", "a", "a =", "= 1", "a = = 1", "a = 'x", "a == 1", "a = 1 AND", "a IN ()", "a IN (1,", "a BETWEEN 1",
    "a BETWEEN 1 AND", "NOT", "()", "(a = 1", "a = 1)", "a LIKE 'x%'", "SELECT * FROM t", "a = 1; DROP TABLE t", "a = 1 -- x",
    "a = \0", "a IS NULL NULL", "a CONTAINS 5", "a = 0x", "\"", "'", "a ? b", "ä = ", "a = 1 OR OR b = 2",
    "(" * 10_000, "NOT " * 10_000, "(" * 3_000 + "a = 1" + ")" * 3_000, "a = 1 OR " * 5_000 + "a = 1",
    "a IN (" + ",".join("'x'" for _ in range(5_000)) + ")", "a = '" + "x" * 100_000 + "'", "a = " + "9" * 5_000, "x" * 50_000,
    "- " * 2_000 + "1 = a", "a = " + "(" * 60 + "NOT " * 60,
]  # fmt: skip


@pytest.mark.parametrize("expression", BAD_SQL, ids=lambda text: ascii(text)[:24])
async def test_malformed_and_monstrous_sql_is_refused_in_one_short_sentence(stage: Any, expression: str) -> None:
    await strict(stage)
    code, response = await receive(stage, receive_request(sql=expression))
    assert code == FILTER, response
    assert 10 < len(response) < 500
    assert (await receive(stage, receive_request(sql="a = 1")))[0] == 40401, "others are served"


async def test_each_way_a_receive_may_be_wrong_has_its_code(stage: Any) -> None:
    broker = await strict(stage)
    await stage.during(broker.catalog.create_topic("closed", queues=1))
    closed = broker.catalog.topics.get("closed")
    broker.catalog.topics.put(closed.__class__(**{**_fields(closed), "permission": Permission.NONE}))
    for code, request in (
        (TOPIC, receive_request("")),
        (TOPIC, receive_request("a b")),
        (NO_TOPIC, receive_request("nowhere")),
        (NO_TOPIC, receive_request("%SYS%no-such")),
        (NO_TOPIC, receive_request("%RETRY%g")),
        (TOPIC, receive_request("SCHEDULE_TOPIC_XXXX")),
        (GROUP, receive_request(group="")),
        (GROUP, receive_request(group="a b")),
        (NO_GROUP, receive_request(group="nobody")),
        (FILTER, receive_request(tags="a|b")),
        (INVISIBLE, receive_request(invisible_ms=0)),
        (INVISIBLE, receive_request(invisible_ms=12 * HOUR + 1)),
        (INVISIBLE, receive_request(invisible_ms=-5_000)),
        (FORBIDDEN, receive_request("closed")),
    ):
        found = await receive(stage, request)
        assert found[0] == code, (request, found)


async def test_names_that_are_the_brokers_are_never_made_by_asking(stage: Any) -> None:
    """Also where topics are created automatically."""
    broker = await strict(stage, auto_create_topics=True, auto_create_groups=True)
    before = len(broker.catalog.topics)
    for name in ("%SYS%no-such", "%DLQ%never", "%RETRY%never", "%", "TRANS_CHECK_MAX_TIME_TOPIC"):
        assert (await receive(stage, receive_request(name)))[0] in {TOPIC, NO_TOPIC}, name
        request = s.QueryRouteRequest()
        request.topic.name = name
        request.endpoints.addresses.add(host="a", port=8081)
        assert (await stage.ask("QueryRoute", request, s.QueryRouteResponse)).status.code in {TOPIC, NO_TOPIC}
        sent = s.SendMessageRequest(messages=[message(name)])
        assert (await stage.ask("SendMessage", sent, s.SendMessageResponse)).status.code in {FORBIDDEN, NO_TOPIC}
    assert len(broker.catalog.topics) == before


async def test_the_ends_of_transactions_recalls_and_forwards_have_their_codes(stage: Any) -> None:
    await strict(stage)
    half = s.SendMessageRequest(messages=[message("transaction", message_type=d.TRANSACTION)])
    sent = await stage.ask("SendMessage", half, s.SendMessageResponse)
    good = sent.entries[0].transaction_id
    for text, topic, resolution, code in (
        ("", "transaction", d.COMMIT, TRANSACTION),
        ("nonsense", "transaction", d.COMMIT, TRANSACTION),
        (good[:-1] + ("0" if good[-1] != "0" else "1"), "transaction", d.COMMIT, TRANSACTION),
        (good.replace(".a.", ".z."), "transaction", d.COMMIT, TRANSACTION),
        (good, "normal", d.COMMIT, TRANSACTION),
        ("x" * 100_000, "transaction", d.COMMIT, TRANSACTION),
        (good, "transaction", d.TRANSACTION_RESOLUTION_UNSPECIFIED, OK),
        (good, "transaction", 77, OK),
        (good, "transaction", d.ROLLBACK, OK),
        (good, "transaction", d.ROLLBACK, OK),
        (good, "transaction", d.COMMIT, OK),
    ):
        end = s.EndTransactionRequest(transaction_id=text, message_id="id")
        end.resolution = resolution  # type: ignore[assignment]  # a number that may be none of them
        end.topic.name = topic
        assert (await stage.ask("EndTransaction", end, s.EndTransactionResponse)).status.code == code, text[:50]
    now_s = stage.clock.now_ms() // 1000
    delayed = s.SendMessageRequest(messages=[message("delay", due_s=now_s + 60)])
    handle = (await stage.ask("SendMessage", delayed, s.SendMessageResponse)).entries[0].recall_handle
    for text, topic, code in (
        ("", "delay", BAD_REQUEST),
        ("nonsense", "delay", BAD_REQUEST),
        (handle[:-1] + ("0" if handle[-1] != "0" else "1"), "delay", BAD_REQUEST),
        (handle.replace(".a.", ".z."), "delay", BAD_REQUEST),
        (handle, "normal", BAD_REQUEST),
        (handle, "delay", OK),
        (handle, "delay", OK),
    ):
        recall = s.RecallMessageRequest(recall_handle=text)
        recall.topic.name = topic
        assert (await stage.ask("RecallMessage", recall, s.RecallMessageResponse)).status.code == code, text
    late = s.SendMessageRequest(messages=[message("delay", due_s=now_s + 70)])
    handle = (await stage.ask("SendMessage", late, s.SendMessageResponse)).entries[0].recall_handle
    await stage.clock.advance(71_000)
    recall = s.RecallMessageRequest(recall_handle=handle)
    recall.topic.name = "delay"
    assert (await stage.ask("RecallMessage", recall, s.RecallMessageResponse)).status.code == BAD_REQUEST
    forward = s.ForwardMessageToDeadLetterQueueRequest(receipt_handle="nonsense", message_id="id")
    forward.group.name, forward.topic.name = "nobody", "nowhere"
    response = s.ForwardMessageToDeadLetterQueueResponse
    assert (await stage.ask("ForwardMessageToDeadLetterQueue", forward, response)).status.code == OK


async def test_lite_subscriptions_have_their_codes_and_their_bounds(stage: Any) -> None:
    broker = await strict(stage, lite_subscriptions_max=3, lite_topics_per_topic_max=4)

    async def sync(
        names: list[str], *, topic: str = "lite", group: str = "g", action: int = 0, client: str = "c"
    ) -> int:
        request = s.SyncLiteSubscriptionRequest(lite_topic_set=names)
        request.action = action  # type: ignore[assignment]  # a number that may be none of them
        request.topic.name, request.group.name = topic, group
        answer = await stage.ask("SyncLiteSubscription", request, s.SyncLiteSubscriptionResponse, client=client)
        return int(answer.status.code)

    assert await sync(["a"], client="") == CLIENT_ID
    assert await sync(["a"], action=9) == BAD_REQUEST
    assert await sync(["a"], topic="") == TOPIC
    assert await sync(["a"], topic="nowhere") == NO_TOPIC
    assert await sync(["a"], topic="normal") == TOPIC
    assert await sync(["a"], group="a b") == GROUP
    assert await sync(["a"], group="nobody") == NO_GROUP
    for name in ("", " ", "a b", "x" * 65):
        assert await sync([name]) == LITE_TOPIC
    assert await sync(["a", "b", "c"], action=2) == OK
    assert await sync(["d"]) == SUBSCRIPTIONS
    assert await sync(["a", "b", "c", "d"], action=2) == SUBSCRIPTIONS
    codes = []
    for number in range(6):
        request = s.SendMessageRequest(messages=[message("lite", lite_topic=f"n{number}")])
        codes.append((await stage.ask("SendMessage", request, s.SendMessageResponse)).entries[0].status.code)
    assert set(codes) == {OK, LITE_TOPICS}
    assert len(broker.clients.table) <= 2
