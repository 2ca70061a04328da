"""Any broker answers for any other, over one hop."""

from typing import Any

import pytest
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.rpc.cluster.forwarding import MARK, caller_of, forward, mark, owner_of, owner_of_handle

from evenq.errors import ConnectionFailed
from evenq.model import BrokerAddress, MessageType
from evenq.model.lanes import home_of
from evenq.serving.auth.users import Users
from evenq.serving.rpc import ACTS_FOR, RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

V2 = "/apache.rocketmq.v2.MessagingService/"


def context(deadline_ms: int | None = None, **headers: str) -> RpcContext:
    return RpcContext("/s/Call", list(headers.items()), "127.0.0.1:1", deadline_ms)


class Peer:
    """A net that notes the one call it gets."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int, dict[str, str]]] = []

    async def unary(self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Any = None) -> bytes:
        self.seen.append((address, method, timeout_ms, dict(metadata)))
        return request.upper()


async def test_a_call_is_forwarded_to_a_known_other_broker_and_only_once(stage: Any) -> None:
    broker = await stage.broker("a")
    other = RegisteredBroker(name="b", addresses=(BrokerAddress("default", "b", 8081),))
    broker.catalog.routes.snapshot("nameserver:1", "identity", [other], 0)
    assert owner_of(broker.kernel, "b", context(), cluster=broker.cluster) == "b:8081"
    assert owner_of(broker.kernel, "b", context(**{MARK: "1"}), cluster=broker.cluster) is None
    for name in ("", "a", "unknown"):
        assert owner_of(broker.kernel, name, context(), cluster=broker.cluster) is None
    handle = broker.ledger.handles.make(1, 1, 0, 0, 1, 5)
    assert owner_of_handle(broker.kernel, handle, context(), cluster=broker.cluster) is None
    assert (
        owner_of_handle(broker.kernel, handle.replace("e1.a.", "e1.b."), context(), cluster=broker.cluster) == "b:8081"
    )
    assert owner_of_handle(broker.kernel, "nonsense", context(), cluster=broker.cluster) is None


async def test_a_handle_of_a_broker_that_is_away_is_not_refused_for_good(stage: Any) -> None:
    broker = await stage.broker("a")
    handle = broker.ledger.handles.make(1, 1, 0, 0, 1, 5).replace("e1.a.", "e1.b.")
    group, topic = definition_pb2.Resource(name="g"), definition_pb2.Resource(name="t")
    entry = service_pb2.AckMessageEntry(message_id="1", receipt_handle=handle)
    calls = {
        "AckMessage": service_pb2.AckMessageRequest(group=group, topic=topic, entries=[entry]),
        "ChangeInvisibleDuration": service_pb2.ChangeInvisibleDurationRequest(
            group=group, topic=topic, receipt_handle=handle
        ),
        "ForwardMessageToDeadLetterQueue": service_pb2.ForwardMessageToDeadLetterQueueRequest(
            group=group, topic=topic, receipt_handle=handle
        ),
    }

    async def codes() -> dict[str, int]:
        responses = {name: getattr(service_pb2, f"{name}Response") for name in calls}
        answers = {name: await stage.ask(name, calls[name], responses[name]) for name in calls}
        return {name: answer.status.code for name, answer in answers.items()}

    assert (await codes())["AckMessage"] == definition_pb2.INVALID_RECEIPT_HANDLE, "there is no such broker"
    broker.cluster.known.brokers.look({"b": "1"}, 0)
    assert set((await codes()).values()) == {ConnectionFailed.code}


async def test_the_callers_headers_go_along_with_a_mark_and_the_time_that_is_left(stage: Any) -> None:
    broker = await stage.broker("a", peer_timeout_ms=2_500)
    broker.runtime.net = peer = Peer()
    now_ms = broker.runtime.clock.monotonic_ms()
    fields = {"x-mq-client-id": "c", "x-mq-language": "GO", "authorization": "secret", "x-other": "1"}
    assert await forward(broker.runtime, "b:8081", b"abc", context(now_ms + 1_000, **fields)) == b"ABC"
    await forward(broker.runtime, "b:8081", b"abc", context(None))
    await forward(broker.runtime, "b:8081", b"abc", context(now_ms + 60_000))
    (address, method, timeout_ms, headers), *others = peer.seen
    assert (address, method, timeout_ms) == ("b:8081", "/s/Call", 800)
    assert headers == {MARK: "1", "x-mq-client-id": "c", "x-mq-language": "GO"}
    assert [one[2] for one in others] == [2_500, 2_500]


@pytest.mark.parametrize(("own", "header"), [("", "X"), ("X", ""), ("X", "Y"), ("X", "X")])
async def test_a_call_that_is_passed_on_keeps_its_one_meaning(stage: Any, own: str, header: str) -> None:
    """Sent at one broker, kept at another, taken and acknowledged through the first one: never `X%X%t`, never `t`."""
    brokers = {name: await stage.broker(name, default_start_from="FIRST", default_queues=1) for name in "ab"}
    for broker in brokers.values():
        for topic in ("t", "X%t"):
            await stage.during(broker.catalog.create_topic(topic, queues=1, message_type=MessageType.FIFO))
        for group in ("g", "X%g"):
            await stage.during(broker.catalog.create_group(group))
    views = [broker.cluster.own.now() for broker in brokers.values()]
    for broker in brokers.values():
        broker.catalog.routes.snapshot("nameserver", "n", views, broker.runtime.clock.monotonic_ms())
        broker.cluster.routes_changed()
    home = home_of("lane", "ab")
    away = "b" if home == "a" else "a"
    metadata = {"x-mq-client-id": "c", "x-mq-namespace": header}
    topic, group = (definition_pb2.Resource(resource_namespace=own, name=name) for name in "tg")

    async def ask(name: str, request: Any, response: Any) -> Any:
        encoded = request.SerializeToString()
        call = stage.net.unary(f"{away}:8081", V2 + name, encoded, timeout_ms=60_000, metadata=metadata)
        return response.FromString(await stage.during(call))

    async def receive() -> list[Any]:
        request = service_pb2.ReceiveMessageRequest(group=group, batch_size=1)
        request.message_queue.topic.CopyFrom(topic)
        request.message_queue.broker.name = home
        request.invisible_duration.seconds = 5
        encoded = request.SerializeToString()
        frames = stage.net.stream(f"{away}:8081", V2 + "ReceiveMessage", encoded, timeout_ms=60_000, metadata=metadata)
        return [service_pb2.ReceiveMessageResponse.FromString(frame) async for frame in frames]

    send = service_pb2.SendMessageRequest()
    for number in range(2):
        message = send.messages.add(topic=topic, body=b"b")
        message.system_properties.message_id = f"id{number}"
        message.system_properties.message_group = "lane" if number else home_group(away)
    assert (await ask("SendMessage", send, service_pb2.SendMessageResponse)).status.code == definition_pb2.OK
    ends = {
        (name, topic.name): broker.ledger.store.queue_range(topic.topic_id, 0)[1]
        for name, broker in brokers.items()
        for topic in broker.catalog.topics.all()
    }
    assert ends == {(home, "X%t"): 1, (away, "X%t"): 1, (home, "t"): 0, (away, "t"): 0}
    frames = await stage.during(receive())
    [got] = [frame.message for frame in frames if frame.HasField("message")]
    assert got.topic == topic
    ack = service_pb2.AckMessageRequest(group=group, topic=topic)
    ack.entries.add(message_id="id1", receipt_handle=got.system_properties.receipt_handle)
    assert (await ask("AckMessage", ack, service_pb2.AckMessageResponse)).status.code == definition_pb2.OK
    assert not any(queue.pending for queue in brokers[home].ledger.progress.queues())


def home_group(broker: str) -> str:
    """A message group that is at home there."""
    return next(f"lane-{number}" for number in range(100) if home_of(f"lane-{number}", "ab") == broker)


USERS = Users.parse(
    b'[users.evenq-internal]\nsecret = "long-enough"\ninternal = true\n[users.orders]\nsecret = "long-enough-too"\n'
)


@pytest.mark.parametrize(
    ("signer", "said", "owner"),
    [
        ("orders", None, "orders"),
        ("orders", "root", "orders"),
        ("evenq-internal", "orders", "orders"),
        ("evenq-internal", "", "evenq-internal"),
        ("evenq-internal", None, "evenq-internal"),
        ("", "root", ""),
    ],
)
def test_a_call_goes_on_as_its_users_however_many_servers_it_passes(signer: str, said: str | None, owner: str) -> None:
    """A receive goes on twice where the first broker does not know its topic. What a client says of itself is nothing."""
    call = context(**({} if said is None else {ACTS_FOR: said}))
    call.caller = USERS.get(signer) if signer else None
    assert caller_of(call) == owner
    assert mark(call).get(ACTS_FOR, "") == owner
