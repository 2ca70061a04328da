"""No caller is answered that something is done before its record is safe: every call that changes what a broker keeps (D4).

The store's answer is held back; as long as it is, no call may end. Then it comes, and each ends with OK. And when the
store fails instead, no call says OK. Every call of the broker is one of these, or says in `KEEPS_NOTHING` why not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from evenq_broker.broker import Broker
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.core.state.records import BrokerKnown
from evenq_broker.loops.wire.translation import group_settings
from evenq_proofs.v2_requests import ack_request, nack_request, receive_request, send_request, v2_message

from evenq.errors import HaNotAvailable, StoreError, StoreFull
from evenq.model import GroupConfig, MessageType
from evenq.runtime.clock import FakeClock
from evenq.runtime.tasks import spawn
from evenq.serving.auth.calls import CALLS as ROWS
from evenq.serving.rpc import Action
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2 as v2_admin
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2 as v2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2, data_pb2, groups_pb2, peers_pb2, staging_pb2
from tests.unit.evenq_broker.staged import ABANDON, BEGIN, DECIDE, STAGE, block, decide, named, stage_rows

ACCESS = {method: call.access for method, call in ROWS.items()}
MESSAGING, ADMIN_V2 = "/apache.rocketmq.v2.MessagingService/", "/apache.rocketmq.v2.Admin/"
DATA, GROUPS, ADMIN = "/evenq.v1.Data/", "/evenq.v1.Groups/", "/evenq.v1.Admin/"
QUEUE = common_pb2.Queue(topic="t", broker_name="a", queue_id=0)
MEMBER = "member"
DRAIN = admin_pb2.DrainBrokerRequest(broker_name="a", change=admin_pb2.DrainBrokerRequest.DRAIN)


class Gate:
    """Stands before the store's answers to state records, messages, timers and their ends."""

    def __init__(self, broker: Broker) -> None:
        self._kept: list[tuple[asyncio.Future[Any], asyncio.Future[Any]]] = []
        self.records = 0
        store: Any = broker.ledger.store
        store.append_state = self._held(store.append_state)
        store.append = self._held(store.append)
        store.cancel_timers = self._held(store.cancel_timers)

    def _held(self, write: Callable[..., Any]) -> Callable[..., asyncio.Future[Any]]:
        def held(*args: Any, **options: Any) -> asyncio.Future[Any]:
            self.records += 1
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._kept.append((asyncio.ensure_future(write(*args, **options)), answer))
            return answer

        return held

    async def open(self) -> None:
        """Let what is safe be known; the next records pass at once."""
        kept, self._kept = self._kept, []
        for stored, answer in kept:
            result = await stored
            if not answer.done():  # who waited may be gone
                answer.set_result(result)

    async def fail(self) -> None:
        """The disk says no instead."""
        kept, self._kept = self._kept, []
        for stored, answer in kept:
            await stored
            if not answer.done():
                answer.set_exception(StoreError("the disk is gone"))


def ack(handle: str) -> Any:
    request = ack_request("g", "t")
    request.entries.add(message_id="id", receipt_handle=handle)
    return request


def nack(handle: str) -> Any:
    return nack_request("g", "t", handle, 0)


def forward(handle: str) -> Any:
    request = v2.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle)
    request.group.name, request.topic.name = "g", "t"
    return request


def update_offset(_: str) -> Any:
    request = v2.UpdateOffsetRequest(offset=1)
    request.group.name, request.message_queue.topic.name = "g", "t"
    return request


def reset_group(_: str) -> Any:
    request = v2_admin.ResetGroupOffsetRequest()
    request.group.name, request.topic.name = "g", "t"
    request.reset_timestamp.seconds = 1
    return request


def send_back(_: str) -> Any:
    return data_pb2.SendBackRequest(group="g", queue=QUEUE, queue_offset=0, attempts=99)


def commit(_: str) -> Any:
    return data_pb2.CommitOffsetsRequest(
        group="own", client_id="", offsets=[data_pb2.CommitOffset(queue=QUEUE, offset=1)]
    )


def lock(_: str) -> Any:
    return groups_pb2.LockQueuesRequest(group="own", client_id=MEMBER, queues=[QUEUE])


def reset(_: str) -> Any:
    return admin_pb2.ResetOffsetsRequest(group="g", topic="t", to=admin_pb2.EARLIEST)


def send(_: str) -> Any:
    return send_request("t", "another", b"more")


def send_later(_: str) -> Any:
    request = send("")
    request.messages[0].topic.name = "later"
    request.messages[0].system_properties.delivery_timestamp.seconds = FakeClock().now_ms() // 1_000 + 3_600
    request.messages[0].system_properties.message_type = definition_pb2.DELAY
    return request


def send_half(_: str) -> Any:
    request = send("")
    request.messages[0].topic.name = "halves"
    request.messages[0].system_properties.message_type = definition_pb2.TRANSACTION
    return request


def publish(_: str) -> Any:
    request = data_pb2.PublishRequest(queue=common_pb2.Queue(topic="t", broker_name="a", queue_id=-1))
    request.messages.add(body=b"more").system_properties.message_id = "published"
    return request


def end_as(resolution: Any) -> Callable[[str], Any]:
    def end(transaction: str) -> Any:
        request = v2.EndTransactionRequest(transaction_id=transaction, message_id="another", resolution=resolution)
        request.topic.name = "halves"
        return request

    return end


def recall(handle: str) -> Any:
    request = v2.RecallMessageRequest(recall_handle=handle)
    request.topic.name = "later"
    return request


def count(_: str) -> Any:
    counts = [common_pb2.DeliveryCount(offset=0, deliveries=1)]
    return data_pb2.CountDeliveriesRequest(group="own", client_id=MEMBER, queue=QUEUE, counts=counts)


def unsubscribe(_: str) -> Any:
    request = v2_admin.DeleteSubscriptionRequest()
    request.group.name, request.topic.name = "g", "t"
    return request


def abandon(_: str) -> Any:
    return staging_pb2.AbandonRequest(query_id="q", batch_id=0, topics=["t"], tokens=[named("a")])


def begin(_: str) -> Any:
    return staging_pb2.BeginRequest(query_id="q", batch_id=0, topics=["t"], coordinator="a")


def transact(handle: str) -> Any:
    ack = data_pb2.TransactAck(topic="t", receipt_handle=handle)
    return data_pb2.TransactRequest(group="g", acks=[ack], messages=[v2_message("other", "result")])


def put_schedule(_: str) -> Any:
    return admin_pb2.PutScheduleRequest(schedule=admin_pb2.Schedule(topic="t", name="s", every_ms=3_600_000, body=b"x"))


CALLS: dict[str, tuple[str, Callable[[str], Any], type[Any]]] = {
    "ack": (MESSAGING + "AckMessage", ack, v2.AckMessageResponse),
    "nack": (MESSAGING + "ChangeInvisibleDuration", nack, v2.ChangeInvisibleDurationResponse),
    "forward": (MESSAGING + "ForwardMessageToDeadLetterQueue", forward, v2.ForwardMessageToDeadLetterQueueResponse),
    "update offset": (MESSAGING + "UpdateOffset", update_offset, v2.UpdateOffsetResponse),
    "reset group": (ADMIN_V2 + "ResetGroupOffset", reset_group, v2_admin.ResetGroupOffsetResponse),
    "commit": (DATA + "CommitOffsets", commit, data_pb2.CommitOffsetsResponse),
    "lock": (GROUPS + "LockQueues", lock, groups_pb2.LockQueuesResponse),
    "reset": (ADMIN + "ResetOffsets", reset, admin_pb2.ResetOffsetsResponse),
    "create topic": (
        ADMIN + "CreateTopic",
        lambda _: admin_pb2.CreateTopicRequest(topic="new", queues=1),
        admin_pb2.CreateTopicResponse,
    ),
    "delete topic": (
        ADMIN + "DeleteTopic",
        lambda _: admin_pb2.DeleteTopicRequest(topic="other"),
        admin_pb2.DeleteTopicResponse,
    ),
    "create group": (
        ADMIN + "CreateGroup",
        lambda _: admin_pb2.CreateGroupRequest(group="new"),
        admin_pb2.CreateGroupResponse,
    ),
    "settings of a group from another broker": (
        ADMIN + "CreateGroup",
        lambda _: admin_pb2.CreateGroupRequest(
            group="new", local=True, settings=group_settings(GroupConfig(name="new", group_id=1, revised_ms=1))
        ),
        admin_pb2.CreateGroupResponse,
    ),
    "forget a broker": (
        ADMIN + "ForgetBroker",
        lambda _: admin_pb2.ForgetBrokerRequest(broker_name="b", local=True),
        admin_pb2.ForgetBrokerResponse,
    ),
    "drain": (ADMIN + "DrainBroker", lambda _: DRAIN, admin_pb2.DrainBrokerResponse),
    "delete group": (
        ADMIN + "DeleteGroup",
        lambda _: admin_pb2.DeleteGroupRequest(group="idle"),
        admin_pb2.DeleteGroupResponse,
    ),
    "another broker's changes": (
        "/evenq.v1.Peers/CatalogChanges",
        lambda _: peers_pb2.CatalogChangesRequest(
            changes=[peers_pb2.CatalogChange(name="idle", at_ms=1 << 42, waiting=["a", "c"])]
        ),
        peers_pb2.CatalogChangesResponse,
    ),
    "scale": (
        ADMIN + "ScaleTopic",
        lambda _: admin_pb2.ScaleTopicRequest(topic="t", queues=3),
        admin_pb2.ScaleTopicResponse,
    ),
    "permit": (
        ADMIN + "PermitTopic",
        lambda _: admin_pb2.PermitTopicRequest(topic="t", permission=definition_pb2.READ),
        admin_pb2.PermitTopicResponse,
    ),
    "send": (MESSAGING + "SendMessage", send, v2.SendMessageResponse),
    "send later": (MESSAGING + "SendMessage", send_later, v2.SendMessageResponse),
    "send half": (MESSAGING + "SendMessage", send_half, v2.SendMessageResponse),
    "send back": (DATA + "SendBack", send_back, data_pb2.SendBackResponse),
    "publish": (DATA + "Publish", publish, data_pb2.PublishResponse),
    "transact": (DATA + "Transact", transact, data_pb2.TransactResponse),
    "commit half": (MESSAGING + "EndTransaction", end_as(definition_pb2.COMMIT), v2.EndTransactionResponse),
    "roll back half": (MESSAGING + "EndTransaction", end_as(definition_pb2.ROLLBACK), v2.EndTransactionResponse),
    "recall": (MESSAGING + "RecallMessage", recall, v2.RecallMessageResponse),
    "count": (DATA + "CountDeliveries", count, data_pb2.CountDeliveriesResponse),
    "unsubscribe": (ADMIN_V2 + "DeleteSubscription", unsubscribe, v2_admin.DeleteSubscriptionResponse),
    "stage": (STAGE, lambda _: stage_rows(block(["x"])), staging_pb2.StageResponse),
    "decide": (DECIDE, lambda _: decide({"a": ["a"]}), staging_pb2.DecideResponse),
    "abandon": (ABANDON, abandon, staging_pb2.AbandonResponse),
    "begin": (BEGIN, begin, staging_pb2.BeginResponse),
    "put schedule": (ADMIN + "PutSchedule", put_schedule, admin_pb2.PutScheduleResponse),
    "pause schedule": (
        ADMIN + "PauseSchedule",
        lambda _: admin_pb2.PauseScheduleRequest(topic="t", name="s", paused=True),
        admin_pb2.PauseScheduleResponse,
    ),
    "run schedule": (
        ADMIN + "RunSchedule",
        lambda _: admin_pb2.RunScheduleRequest(topic="t", name="s", message_id="now"),
        admin_pb2.RunScheduleResponse,
    ),
    "delete schedule": (
        ADMIN + "DeleteSchedule",
        lambda _: admin_pb2.DeleteScheduleRequest(topic="t", name="s"),
        admin_pb2.DeleteScheduleResponse,
    ),
    "give schedule": (
        "/evenq.v1.Peers/GiveSchedule",
        lambda _: peers_pb2.GiveScheduleRequest(broker_name="b", topic="t", name="s"),
        peers_pb2.GiveScheduleResponse,
    ),
}


async def given(on: Any, name: str, handle: str) -> str:
    """What the call needs beside what is `prepared`; its handle."""
    broker = on.brokers[0]
    if name in ("send half", "commit half", "roll back half"):
        await on.during(broker.catalog.create_topic("halves", queues=1, message_type=MessageType.TRANSACTION))
    if name in ("send later", "recall"):
        await on.during(broker.catalog.create_topic("later", queues=1, message_type=MessageType.DELAY))
    if name in ("commit half", "roll back half"):
        (entry,) = (await on.ask("SendMessage", send_half(""), v2.SendMessageResponse)).entries
        return str(entry.transaction_id)
    if name == "recall":
        (entry,) = (await on.ask("SendMessage", send_later(""), v2.SendMessageResponse)).entries
        return str(entry.recall_handle)
    if name == "delete group":
        await on.call(ADMIN + "CreateGroup", admin_pb2.CreateGroupRequest(group="idle"), admin_pb2.CreateGroupResponse)
    if name in ("pause schedule", "run schedule", "delete schedule", "give schedule"):
        await on.call(ADMIN + "PutSchedule", put_schedule(""), admin_pb2.PutScheduleResponse)
    if name == "forget a broker":
        broker.cluster.known.brokers.apply(BrokerKnown("b"))
    if name == "count":
        begin_at = data_pb2.CommitOffsetsRequest(
            group="own", client_id="", offsets=[data_pb2.CommitOffset(queue=QUEUE, offset=0)]
        )
        await on.call(DATA + "CommitOffsets", begin_at, data_pb2.CommitOffsetsResponse)
        await on.call(GROUPS + "LockQueues", lock(""), groups_pb2.LockQueuesResponse)
    if name in ("stage", "decide", "abandon"):
        await on.call(BEGIN, begin(""), staging_pb2.BeginResponse)
    if name in ("decide", "abandon"):
        await on.call(STAGE, stage_rows(block(["x"])), staging_pb2.StageResponse)
    return handle


async def prepared(stage: Any) -> tuple[Broker, str]:
    """A broker with a message in flight to group `g`, topic `other`, and a member of group `own`; the handle."""
    broker: Broker = await stage.broker(default_start_from="FIRST", default_queues=1)
    send = send_request("t", "id")
    await stage.ask("SendMessage", send, v2.SendMessageResponse)
    create = admin_pb2.CreateTopicRequest(topic="other", queues=1)
    await stage.call(ADMIN + "CreateTopic", create, admin_pb2.CreateTopicResponse)
    for group in ("g", "own"):
        made = admin_pb2.CreateGroupRequest(group=group)
        await stage.call(ADMIN + "CreateGroup", made, admin_pb2.CreateGroupResponse)
    member = Member(client_id=MEMBER, protocol=Protocol.EVENQ)
    broker.membership.members.join("own", member, now_ms=stage.clock.monotonic_ms(), lease_ms=3_600_000)
    receive = receive_request("g", "t", invisible_ms=60_000, batch_size=1)
    frames = await stage.frames("ReceiveMessage", receive, v2.ReceiveMessageResponse)
    (handle,) = [f.message.system_properties.receipt_handle for f in frames if f.HasField("message")]
    return broker, handle


def started(stage: Any, name: str, handle: str) -> tuple[asyncio.Task[Any], type[Any]]:
    method, make, response = (CALLS | QUESTIONS)[name]
    headers = {"x-mq-client-id": MEMBER, "x-mq-language": "JAVA"}
    call = stage.net.unary("a:8081", method, make(handle).SerializeToString(), timeout_ms=600_000, metadata=headers)
    return spawn(call, name=name), response


A_READ = "changes nothing"
IN_MEMORY = "kept in memory, and the client says it again"
RECEIVES = "see the tests of receives below"
OF_COPIES = "kept in the group's record or by other copies; tests of replication"
KEEPS_NOTHING = {
    MESSAGING + "Heartbeat": IN_MEMORY,
    MESSAGING + "Telemetry": IN_MEMORY,
    MESSAGING + "SyncLiteSubscription": IN_MEMORY,
    MESSAGING + "NotifyClientTermination": "what is not released by it comes back when its time is over",
    MESSAGING + "QueryAssignment": A_READ,
    MESSAGING + "ReceiveMessage": RECEIVES,
    MESSAGING + "PullMessage": A_READ,
    ADMIN_V2 + "ChangeLogLevel": "until the process ends",
    ADMIN_V2 + "QueryMessage": A_READ,
    ADMIN_V2 + "PrintThreadStackTrace": "the client is asked",
    ADMIN_V2 + "VerifyMessage": "the client is asked",
    ADMIN_V2 + "AdminSendMessage": "not offered",
    MESSAGING + "GetOffset": A_READ,
    DATA + "Pull": A_READ,
    DATA + "Scan": A_READ,
    DATA + "RelayCheck": IN_MEMORY,
    GROUPS + "Session": IN_MEMORY,
    GROUPS
    + "UnlockQueues": "a lock that is given again later; the next owner's record stands behind it in the journal",
    ADMIN + "MoveLeader": OF_COPIES,
    ADMIN + "ChangeCopies": OF_COPIES,
    ADMIN + "ElectUnclean": OF_COPIES,
    ADMIN + "FindMessages": A_READ,
    ADMIN + "ListSchedules": A_READ,
    ADMIN + "MoveSchedule": "the giver's step is held here; those of the taker: test_schedule_moves.py",
    "/evenq.v1.Assignment/Query": A_READ,
    "/evenq.v1.Assignment/SetMessageRequestMode": "the rebalancer's",
    "/evenq.v1.Backup/Fetch": A_READ,
    "/evenq.v1.DeadLetters/Replay": "a stream that tells of what it did; test_replay.py",
    "/evenq.v1.Staging/RollForward": "asked again until the batch is settled; test_staging.py",
    "/evenq.v1.Staging/Outcome": "asked again until it is answered; test_deciding.py",
    **{f"/evenq.v1.Replication/{name}": OF_COPIES for name in ("Link", "FetchSnapshot", "FetchRecords")},
    **{
        f"/evenq.v1.Peers/{name}": IN_MEMORY
        for name in ("Interest", "GroupSettings", "LiteSubscriptions", "LiteReady", "Clients")
    },
}
"""Calls that may change something and are not held here, and why."""

OF_OTHERS = {"/evenq.v1.Assignment/Report"} | {method for method in ACCESS if method.startswith("/evenq.v1.Registry/")}
"""Calls of rebalancer and nameserver."""


def test_every_call_that_may_change_something_is_held_here_or_says_why_not() -> None:
    changing = {method for method, access in ACCESS.items() if access.action is not Action.DESCRIBE} - OF_OTHERS
    held = {method for method, _, _ in CALLS.values()}
    assert changing - held - set(KEEPS_NOTHING) == set(), "hold their records, or say why there are none"
    assert set(KEEPS_NOTHING) & held == set()
    assert set(KEEPS_NOTHING) <= changing


@pytest.mark.parametrize("name", CALLS)
async def test_no_call_ends_before_its_record_is_safe(stage: Any, name: str) -> None:
    broker, handle = await prepared(stage)
    handle = await given(stage, name, handle)
    gate = Gate(broker)
    call, response = started(stage, name, handle)
    await stage.clock.advance(2_000)
    assert gate.records > 0, "it wrote nothing, so this test proves nothing"
    assert not call.done(), "answered before the record was on disk"
    for _ in range(20):
        await gate.open()
        await stage.clock.advance(200)
    answer = response.FromString(await call)
    assert answer.status.code == 20000, answer.status


@pytest.mark.parametrize("name", CALLS)
async def test_no_call_says_ok_when_the_record_could_not_be_written(stage: Any, name: str) -> None:
    broker, handle = await prepared(stage)
    handle = await given(stage, name, handle)
    gate = Gate(broker)
    call, response = started(stage, name, handle)
    for _ in range(20):
        await stage.clock.advance(100)
        await gate.fail()
    await stage.clock.advance(60_000)
    assert call.done()
    answer = response.FromString(call.result())
    if name == "lock":
        assert not any(queue.granted for queue in answer.queues), answer
        return
    assert not is_ok(response, call, name), answer


def is_ok(response: type[Any], call: asyncio.Task[Any], name: str) -> bool:
    """Whether a caller was answered that it is done."""
    answer = response.FromString(call.result())
    if name == "lock":
        return any(queue.granted for queue in answer.queues)
    if any(one.error for one in getattr(answer, "brokers", ())):
        return False
    entries = [entry.status.code for entry in getattr(answer, "entries", ())]
    return 20000 in (entries or [answer.status.code])


@pytest.mark.parametrize("name", CALLS)
async def test_the_same_call_again_is_not_told_ok_while_the_record_of_the_first_is_not_safe(
    stage: Any, name: str
) -> None:
    broker, handle = await prepared(stage)
    handle = await given(stage, name, handle)
    gate = Gate(broker)
    first, response = started(stage, name, handle)
    await stage.clock.advance(2_000)
    again, _ = started(stage, name, handle)
    await stage.clock.advance(2_000)
    assert not first.done()
    assert not (again.done() and is_ok(response, again, name)), "a failover would take that back"
    for _ in range(20):
        await gate.open()
        await stage.clock.advance(200)
    assert is_ok(response, first, name)
    await again


@pytest.mark.parametrize("name", CALLS)
async def test_what_was_refused_once_is_told_ok_only_when_it_was_recorded_after_all(stage: Any, name: str) -> None:
    broker, handle = await prepared(stage)
    handle = await given(stage, name, handle)
    store = broker.ledger.store
    store.refuse(HaNotAvailable("1 of 2 copies are in sync"))
    for _ in range(2):
        refused, response = started(stage, name, handle)
        await stage.clock.advance(60_000)
        assert not (refused.done() and is_ok(response, refused, name))
        refused.cancel()
    store.refuse(None)
    gate = Gate(broker)
    call, _ = started(stage, name, handle)
    await stage.clock.advance(2_000)
    if call.done():
        assert not is_ok(response, call, name) or gate.records == 0, "answered before the record was on disk"
    for _ in range(20):
        await gate.open()
        await stage.clock.advance(200)
    owed = broker.ledger.journal.safe()
    for _ in range(5):
        await stage.clock.advance(200)
        await gate.open()
    assert owed is None or owed.done(), "what was refused is in the log now"
    if call.done() and is_ok(response, call, name):
        assert gate.records > 0, "it was never written"


@pytest.mark.parametrize("name", CALLS)
async def test_what_only_the_journal_refused_once_is_told_ok_only_when_it_is_recorded(
    stage: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of the log may be stored, and the state record that belongs to it refused a moment later."""
    broker, handle = await prepared(stage)
    handle = await given(stage, name, handle)

    def full(_: bytes) -> asyncio.Future[Any]:
        raise StoreFull("no space")

    with monkeypatch.context() as patch:
        patch.setattr(broker.ledger.store, "append_state", full)
        refused, response = started(stage, name, handle)
        await stage.clock.advance(60_000)
        refused.cancel()
        owed = bool(broker.ledger.journal._owed)
    gate = Gate(broker)
    call, _ = started(stage, name, handle)
    await stage.clock.advance(2_000)
    assert not (owed and call.done() and is_ok(response, call, name)), "answered before the record was on disk"
    for _ in range(20):
        await gate.open()
        await stage.clock.advance(200)
    await call


# Receives: they rest on their own record where there are copies (R12).


async def receiving(stage: Any) -> tuple[Broker, Gate, asyncio.Task[list[Any]]]:
    """A leader of copies with one message, and a receive of it that waits for its record."""
    broker, _ = await prepared(stage)
    send = send_request("t", "another", b"y")
    await stage.ask("SendMessage", send, v2.SendMessageResponse)
    broker.runtime.leadership = replace(broker.runtime.leadership, attach=lambda _: None)
    receive = receive_request("g", "t", invisible_ms=60_000, batch_size=1)
    gate = Gate(broker)
    call = spawn(stage.frames("ReceiveMessage", receive, v2.ReceiveMessageResponse), name="receive")
    await stage.clock.advance(2_000)
    return broker, gate, call


async def test_a_leader_of_copies_hands_out_nothing_before_the_delivery_is_committed(stage: Any) -> None:
    _, gate, call = await receiving(stage)
    assert gate.records > 0
    assert not call.done(), "a successor would not know of this delivery"
    for _ in range(5):
        await gate.open()
        await stage.clock.advance(200)
    assert sum(frame.HasField("message") for frame in await call) == 1


async def test_a_leader_that_was_deposed_meanwhile_hands_out_nothing(stage: Any) -> None:
    _, gate, call = await receiving(stage)
    await gate.fail()
    await stage.clock.advance(1_000)
    frames = await call
    assert not any(frame.HasField("message") for frame in frames)
    assert [frame.status.code for frame in frames if frame.HasField("status")] != [20000]


# What changes nothing: a leader that was deposed while it did not run knows nothing of its successor.


def get_offset(_: str) -> Any:
    request = v2.GetOffsetRequest()
    request.group.name, request.message_queue.topic.name = "g", "t"
    return request


def query_offsets(_: str) -> Any:
    return data_pb2.QueryOffsetsRequest(group="g", queues=[QUEUE])


QUESTIONS: dict[str, tuple[str, Callable[[str], Any], type[Any]]] = {
    "get offset": (MESSAGING + "GetOffset", get_offset, v2.GetOffsetResponse),
    "query offsets": (DATA + "QueryOffsets", query_offsets, data_pb2.QueryOffsetsResponse),
}
CHANGE_NOTHING = ("ack", "forward", "update offset", "commit", "reset", "get offset", "query offsets")


@pytest.mark.parametrize("name", CHANGE_NOTHING)
async def test_a_leader_of_copies_tells_and_confirms_progress_only_while_it_can_commit(stage: Any, name: str) -> None:
    broker, handle = await prepared(stage)
    handle = await given(stage, name, handle)
    if name == "get offset":
        await stage.during(started(stage, "update offset", handle)[0])
    first, response = started(stage, name, handle)
    await stage.clock.advance(2_000)
    assert is_ok(response, first, name)
    broker.runtime.leadership = replace(broker.runtime.leadership, attach=lambda _: None)
    gate = Gate(broker)
    leads, _ = started(stage, name, handle)
    await stage.clock.advance(2_000)
    assert not (leads.done() and is_ok(response, leads, name)), "a successor may know better"
    for _ in range(20):
        await gate.open()
        await stage.clock.advance(200)
    assert is_ok(response, leads, name)
    deposed, _ = started(stage, name, handle)
    for _ in range(5):
        await stage.clock.advance(1_000)
        await gate.fail()
    assert not (deposed.done() and is_ok(response, deposed, name))
    deposed.cancel()
