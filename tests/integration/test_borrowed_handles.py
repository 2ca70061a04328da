"""Handles, ids and tokens in the hands of another user: what the server gave to one tenant does nothing for another.

One broker that takes signed calls only, two tenants with topics and groups of their own and one topic and group that both
may use. The other tenant knows every handle and every client id, as if it had read them from a log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from evenq_proofs.nets import open_net

import evenq
from evenq.runtime.clock import SystemClock
from evenq.testing import LocalCluster
from evenq.wire.net import GrpcNet
from evenq.wire.signature import Secret, authorization, date_time
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as d
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2 as s
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2, groups_pb2

V2 = "/apache.rocketmq.v2.MessagingService/"
NOTHING_NEW = 40401
OK, BAD_REQUEST, FORBIDDEN, INVALID_HANDLE, INVALID_TRANSACTION = 20000, 40000, 40300, 40013, 40008


def grants(name: str) -> str:
    rows = [("topic", f"{name}-*"), ("group", f"{name}-*"), ("topic", "shared"), ("group", "shared")]
    replies = '{ resource = "topic:evenq-replies", actions = ["publish", "reply"] }, '
    return replies + ", ".join(
        f'{{ resource = "{kind}:{pattern}", actions = {["publish", "consume"] if kind == "topic" else ["consume"]} }}'
        for kind, pattern in rows
    ).replace("'", '"')


FILE = "\n".join(
    [
        '[users.evenq-internal]\nsecret = "internal-secret"\ninternal = true',
        '[users.root]\nsecret = "secret-of-root"\nadmin = true',
        *(f'[users.{name}]\nsecret = "secret-of-{name}"\nallow = [{grants(name)}]' for name in ("ann", "ben")),
    ]
)


def prepare(admin: evenq.Admin) -> None:
    for name in ("ann-plain", "ann-questions", "ben-plain", "shared", "evenq-replies"):
        admin.create_topic(name, queues=1)
    for name in ("ann-half", "ben-half"):
        admin.create_topic(name, queues=1, message_type="TRANSACTION")
    for name in ("ann-later", "ben-later"):
        admin.create_topic(name, queues=1, message_type="DELAY")
    for name in ("ann-readers", "ben-readers", "shared"):
        admin.create_group(name)


pytestmark = pytest.mark.cluster(
    users=FILE,
    broker_settings={"DEFAULT_START_FROM": "FIRST", "AUTO_CREATE_TOPICS": "false"},
    admin=evenq.Credentials(access_key="root", secret_key="secret-of-root"),
    prepare=prepare,
)


@pytest.fixture
def endpoint(cluster: LocalCluster) -> str:
    return cluster.endpoint


class Tenant:
    """Calls of one user."""

    def __init__(self, net: GrpcNet, endpoint: str, name: str, client_id: str = "") -> None:
        self._net, self._endpoint, self._name = net, endpoint, name
        self.client_id = client_id or f"client-of-{name}"

    def headers(self, client_id: str = "") -> dict[str, str]:
        date = date_time(SystemClock().now_ms())
        return {
            "x-mq-client-id": client_id or self.client_id,
            "x-mq-language": "JAVA",
            "x-mq-date-time": date,
            "authorization": authorization(self._name, Secret(f"secret-of-{self._name}"), date),
        }

    async def call(self, method: str, request: Any, answer: type[Any], *, client_id: str = "") -> Any:
        path = method if method.startswith("/") else V2 + method
        raw = await self._net.unary(
            self._endpoint, path, request.SerializeToString(), timeout_ms=60_000, metadata=self.headers(client_id)
        )
        return answer.FromString(raw)

    async def send(self, topic: str, **system: Any) -> Any:
        message = d.Message(topic=d.Resource(name=topic), body=b"x")
        message.system_properties.message_id = f"0{topic.encode().hex():0<33.33}"
        for key, value in system.items():
            if key == "delivery_ms":
                message.system_properties.delivery_timestamp.FromMilliseconds(value)
            else:
                setattr(message.system_properties, key, value)
        response = await self.call("SendMessage", s.SendMessageRequest(messages=[message]), s.SendMessageResponse)
        assert response.status.code == OK, response.status
        return response.entries[0]

    async def receive(self, topic: str, group: str, *, client_id: str = "") -> list[Any]:
        request = s.ReceiveMessageRequest(group=d.Resource(name=group), batch_size=1)
        request.message_queue.topic.name = topic
        request.message_queue.broker.name = "broker-a"
        request.filter_expression.expression = "*"
        request.invisible_duration.FromSeconds(60)
        request.long_polling_timeout.FromSeconds(20)
        frames = self._net.stream(
            self._endpoint, V2 + "ReceiveMessage", request.SerializeToString(), timeout_ms=60_000,
            metadata=self.headers(client_id),
        )  # fmt: skip
        return [s.ReceiveMessageResponse.FromString(frame) async for frame in frames]

    async def session(self, group: str, member_id: str, incarnation: int = 0) -> Any:
        """The first event of a session that then ends."""

        async def requests() -> AsyncIterator[bytes]:
            member = groups_pb2.Member(client_id=member_id)
            join = groups_pb2.Join(group=group, member=member, incarnation=incarnation)
            yield groups_pb2.SessionRequest(join=join).SerializeToString()
            await asyncio.Event().wait()

        frames = self._net.stream(
            self._endpoint, "/evenq.v1.Groups/Session", requests(), timeout_ms=60_000, metadata=self.headers()
        )
        try:
            async for frame in frames:
                return groups_pb2.SessionEvent.FromString(frame)
        finally:
            await frames.aclose()


@asynccontextmanager
async def story(endpoint: str) -> AsyncIterator[tuple[Tenant, Tenant]]:
    async with open_net() as net:
        yield Tenant(net, endpoint, "ann"), Tenant(net, endpoint, "ben")


async def test_a_transaction_is_ended_by_those_who_may_publish_to_its_topic(endpoint: str) -> None:
    async with story(endpoint) as (ann, ben):
        half = await ann.send("ann-half", message_type=d.TRANSACTION)

        async def end(who: Tenant, topic: str) -> int:
            request = s.EndTransactionRequest(
                topic=d.Resource(name=topic), message_id=half.message_id, transaction_id=half.transaction_id,
                resolution=d.COMMIT,
            )  # fmt: skip
            return int((await who.call("EndTransaction", request, s.EndTransactionResponse)).status.code)

        assert [await end(ben, topic) for topic in ("ben-half", "ann-half", "")] == [
            INVALID_TRANSACTION, FORBIDDEN, FORBIDDEN,
        ]  # fmt: skip
        assert await end(ann, "ann-half") == OK


async def test_a_recall_handle_is_of_its_topic(endpoint: str) -> None:
    async with story(endpoint) as (ann, ben):
        later_ms = SystemClock().now_ms() + 600_000
        sent = await ann.send("ann-later", message_type=d.DELAY, delivery_ms=later_ms)

        async def recall(who: Tenant, topic: str) -> int:
            request = s.RecallMessageRequest(topic=d.Resource(name=topic), recall_handle=sent.recall_handle)
            return int((await who.call("RecallMessage", request, s.RecallMessageResponse)).status.code)

        assert [await recall(ben, topic) for topic in ("ben-later", "ann-later", "")] == [
            BAD_REQUEST, FORBIDDEN, FORBIDDEN,
        ]  # fmt: skip
        assert await recall(ann, "ann-later") == OK


async def test_a_receipt_handle_is_of_its_group_and_topic(endpoint: str) -> None:
    async with story(endpoint) as (ann, ben):
        await ann.send("ann-plain")
        (handle,) = [
            frame.message.system_properties.receipt_handle
            for frame in await ann.receive("ann-plain", "ann-readers")
            if frame.HasField("message")
        ]

        async def ack(who: Tenant, topic: str, group: str) -> int:
            request = s.AckMessageRequest(topic=d.Resource(name=topic), group=d.Resource(name=group))
            request.entries.add(receipt_handle=handle, message_id="m")
            return int((await who.call("AckMessage", request, s.AckMessageResponse)).status.code)

        async def hide(who: Tenant, topic: str, group: str) -> int:
            request = s.ChangeInvisibleDurationRequest(
                topic=d.Resource(name=topic), group=d.Resource(name=group), receipt_handle=handle
            )
            request.invisible_duration.FromSeconds(0)
            answer = await who.call("ChangeInvisibleDuration", request, s.ChangeInvisibleDurationResponse)
            return int(answer.status.code)

        for change in (ack, hide):
            assert await change(ben, "ben-plain", "ben-readers") == INVALID_HANDLE
            for topic, group in (("ann-plain", "ann-readers"), ("ben-plain", "ann-readers"), ("", "")):
                assert await change(ben, topic, group) == FORBIDDEN
        bury = s.ForwardMessageToDeadLetterQueueRequest(
            topic=d.Resource(name="ben-plain"), group=d.Resource(name="ben-readers"), receipt_handle=handle
        )
        # A handle that is of no use is OK here, because clients repeat this call for ever; it buries nothing.
        await ben.call("ForwardMessageToDeadLetterQueue", bury, s.ForwardMessageToDeadLetterQueueResponse)
        assert await ack(ann, "ann-plain", "ann-readers") == OK


async def test_a_client_id_is_its_users_also_in_a_group_that_both_may_use(endpoint: str) -> None:
    async with story(endpoint) as (ann, ben):
        queue = common_pb2.Queue(topic="shared", broker_name="broker-a", queue_id=0)
        assert (await ann.session("shared", ann.client_id, incarnation=7)).HasField("welcome")
        lock = groups_pb2.LockQueuesRequest(group="shared", client_id=ann.client_id, queues=[queue])
        held = await ann.call("/evenq.v1.Groups/LockQueues", lock, groups_pb2.LockQueuesResponse)
        assert held.status.code == OK

        for incarnation in (0, 7, 8):
            taken = await ben.session("shared", ann.client_id, incarnation)
            assert taken.refused.status.code == FORBIDDEN
        for call, answer in (
            (lock, groups_pb2.LockQueuesResponse),
            (groups_pb2.UnlockQueuesRequest(group="shared", client_id=ann.client_id, queues=[queue]),
             groups_pb2.UnlockQueuesResponse),
        ):  # fmt: skip
            method = "/evenq.v1.Groups/" + type(call).__name__.removesuffix("Request")
            assert (await ben.call(method, call, answer)).status.code == FORBIDDEN
        goodbye = s.NotifyClientTerminationRequest(group=d.Resource(name="shared"))
        answered = await ben.call(
            "NotifyClientTermination", goodbye, s.NotifyClientTerminationResponse, client_id=ann.client_id
        )
        assert answered.status.code == FORBIDDEN
        frames = await ben.receive("shared", "shared", client_id=ann.client_id)
        assert [frame.status.code for frame in frames] == [FORBIDDEN]
        assert (await ben.session("shared", ben.client_id)).HasField("welcome")


async def test_replies_reach_who_asked_and_nobody_else(endpoint: str) -> None:
    """A right to `consume` the topic of replies showed every tenant's replies to each."""
    keys = evenq.Credentials(access_key="ann", secret_key="secret-of-ann")

    def answer(requests: list[evenq.ReceivedMessage]) -> None:
        for request in requests:
            producer.send_async(evenq.reply_to(request, b"the answer"))

    with (
        evenq.Producer(endpoint=endpoint, credentials=keys) as producer,
        evenq.PushConsumer(
            group="ann-readers",
            endpoint=endpoint,
            credentials=keys,
            listener=answer,
            subscriptions={"ann-questions": "*"},
            start_from="FIRST",
        ),
    ):
        question = evenq.Message(topic="ann-questions", body=b"?")
        assert producer.request(question, timeout_ms=60_000).body == b"the answer"
    async with story(endpoint) as (_, ben):
        for tag, code in (("*", FORBIDDEN), ("", FORBIDDEN), (f"reply-{0:024x}", NOTHING_NEW)):
            pull = data_pb2.PullRequest(client_id=ben.client_id, batch_max=32, committed=-1)
            pull.queue.topic, pull.queue.broker_name = "evenq-replies", "broker-a"
            pull.filter.expression = tag
            answer = await ben.call("/evenq.v1.Data/Pull", pull, data_pb2.PullResponse)
            assert (answer.status.code, len(answer.messages)) == (code, 0), tag


def test_what_servers_write_is_their_owners_alone(cluster: LocalCluster) -> None:
    """Data folders, journals and logs hold messages and names of all tenants."""
    written = [path for path in cluster.folder.rglob("*") if path.is_file()]
    assert len(written) >= 5
    assert [str(path) for path in written if path.stat().st_mode & 0o077] == []
