"""Every call of every server, by every kind of caller, under every kind of namespace: who is let in, and that no answer
holds a body its reader may not have.

Real nameserver, rebalancer, broker and replication calls behind their doors, two tenants X and Y and names without a
namespace. Calls come from the descriptors, verdicts from `access_matrix.txt`. At the end nothing of the others has
changed.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import pkgutil
import random
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import evenq_broker.app
import evenq_broker.settings
import evenq_nameserver.app
import evenq_nameserver.settings
import evenq_rebalancer.app
import evenq_rebalancer.settings
import pytest
from evenq_broker.core.replication.actions import HandedOver
from evenq_broker.core.replication.group_view import ReplicaGroupView, one_copy
from evenq_broker.loops.replication.peer_links import PeerLinks
from evenq_broker.rpc.replication.copies import copy_rpcs
from evenq_broker.rpc.replication.replication import record_rpcs, replication_rpcs
from evenq_broker.runtime import Runtime
from google.protobuf.message_factory import GetMessageClass

import evenq.wire.stubs.apache.rocketmq.v2
import evenq.wire.stubs.evenq.v1
from evenq.errors import Error, NotFound
from evenq.runtime.clock import SystemClock
from evenq.serving.auth.server_auth import Auth, AuthSettings
from evenq.serving.front.grpc_server import open_grpc_server
from evenq.wire.net import GrpcNet
from evenq.wire.signature import Secret, authorization, date_time
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as d
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2 as s

AT_ONCE = 48
PLANTED = 60
UNAUTHORIZED, FORBIDDEN, OK = 40100, 40300, 20000
M = "/apache.rocketmq.v2.MessagingService/"

# ------------------------------------------------------------------------------------------------ who calls


@dataclass(frozen=True)
class Caller:
    """A kind of caller and what it may do with names of its tenant."""

    user: str
    rights: str = ""
    tenant: str = "X"
    secret: str = ""
    """Another than the file's."""
    old: bool = False
    """Signs with a date of long ago."""
    signed: bool = True

    @property
    def known(self) -> bool:
        return self.signed and not self.old and not self.secret and self.user not in {"stranger", "leaver"}

    @property
    def everything(self) -> bool:
        return self.user in {"root", "evenq-internal"}

    def may(self, right: str, tenant: str) -> bool:
        """By the words of the table."""
        if self.everything:
            return True
        kind, _, action = right.partition(":")
        own = {one.partition(":")[2] for one in self.rights.split() if one.startswith(kind + ":")}
        named = kind == "cluster" or tenant == self.tenant
        return named and bool({action, "*"} & own or (own and action == "describe"))


CALLERS = {
    "nobody signed": Caller("owner", signed=False),
    "unknown user": Caller("stranger", "topic:* group:* cluster:*"),
    "wrong secret": Caller("owner", "topic:* group:*", secret="not-the-owners"),
    "wrong secret of the servers": Caller("evenq-internal", secret="not-the-servers"),
    "revoked": Caller("leaver", "topic:* group:* cluster:*"),
    "old date": Caller("owner", "topic:* group:*", old=True),
    "no grant": Caller("idle"),
    "other tenant": Caller("other", "topic:* group:*", "Y"),
    "topics only": Caller("topics", "topic:*"),
    "groups only": Caller("groups", "group:*"),
    "describe": Caller("looker", "topic:describe group:describe"),
    "publish": Caller("publisher", "topic:publish"),
    "consume": Caller("consumer", "topic:consume group:consume"),
    "operate": Caller("mover", "topic:operate group:operate"),
    "operate and publish": Caller("replayer", "topic:operate topic:publish group:operate"),
    "owner": Caller("owner", "topic:* group:*"),
    "cluster describe": Caller("viewer", "cluster:describe"),
    "cluster operate": Caller("captain", "cluster:*"),
    "admin": Caller("root"),
    "internal": Caller("evenq-internal"),
}
OUTSIDERS = [name for name, caller in CALLERS.items() if caller.tenant != "Y" and not caller.everything]
INSIDERS = [name for name in CALLERS if name not in OUTSIDERS]


def users_file(*, leaver: bool) -> str:
    def entry(caller: Caller) -> str:
        if caller.user == "evenq-internal":
            return "internal = true"
        if caller.user == "root":
            return "admin = true"
        grants = []
        for kind in ("topic", "group", "cluster"):
            actions = [one.partition(":")[2] for one in caller.rights.split() if one.startswith(kind + ":")]
            resource = kind if kind == "cluster" else f"{kind}:{caller.tenant}%*"
            if actions:
                grants.append(f'{{ resource = "{resource}", actions = {actions!r} }}'.replace("'", '"'))
        return f"allow = [{', '.join(grants)}]"

    known = {one.user: one for one in CALLERS.values() if one.known or (leaver and one.user == "leaver")}
    return "\n".join(f'[users.{user}]\nsecret = "secret-of-{user}"\n{entry(one)}' for user, one in known.items())


def headers(caller: Caller, namespace: str, now_ms: int) -> dict[str, str]:
    fields = {"x-mq-client-id": f"client-of-{caller.user}", "x-mq-language": "JAVA"}
    if namespace:
        fields["x-mq-namespace"] = namespace
    if caller.signed:
        date = "20240102T030405Z" if caller.old else date_time(now_ms)
        secret = Secret(caller.secret or f"secret-of-{caller.user}")
        fields |= {"authorization": authorization(caller.user, secret, date), "x-mq-date-time": date}
    return fields


# ------------------------------------------------------------------------------------------------ what is called


@dataclass(frozen=True)
class Naming:
    """One way to name things."""

    title: str
    tenant: str
    """Whose names are meant: X, Y, or "" for those without a namespace."""
    header: str = ""
    own: str = ""
    """Namespace of the Resources themselves."""
    prefix: str = ""
    """In front of the name that is written."""

    def name(self, plain: str) -> str:
        for system in ("%RETRY%", "%DLQ%"):
            if plain.startswith(system):
                return system + self.prefix + plain.removeprefix(system)
        return self.prefix + plain


V2_NAMINGS = (
    Naming("no header, full name of one's own", "X", prefix="X%"),
    Naming("own header", "X", header="X"),
    Naming("foreign header", "Y", header="Y"),
    Naming("own Resource, foreign header", "X", header="Y", own="X"),
    Naming("foreign Resource, own header", "Y", header="X", own="Y"),
    Naming("no header, bare name", ""),
    Naming("own header, foreign full name", "X", header="X", prefix="Y%"),
)
V1_NAMINGS = (
    Naming("no header, full name of one's own", "X", prefix="X%"),
    Naming("own header, full name of one's own", "X", header="X", prefix="X%"),
    Naming("foreign header, full name of one's own", "X", header="Y", prefix="X%"),
    Naming("own header, foreign full name", "Y", header="X", prefix="Y%"),
    Naming("own header, bare name", "", header="X"),
)


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    server: str
    call: str
    variant: str
    needs: tuple[str, ...]

    def code(self, caller: Caller, naming: Naming) -> int:
        """40100, 40300, or 0 for a client who is let in."""
        if not caller.known:
            unsigned = not caller.signed and self.call.endswith("Heartbeat") and self.server == "none"
            return 0 if unsigned else UNAUTHORIZED
        match self.needs:
            case ("never",):
                return FORBIDDEN
            case ("internal",):
                return 0 if caller.user == "evenq-internal" else FORBIDDEN
            case ("admin",):
                return 0 if caller.everything else FORBIDDEN
            case ("known",):
                return 0
        return 0 if all(caller.may(right, naming.tenant) for right in self.needs) else FORBIDDEN


def table() -> list[Row]:
    rows = []
    for line in Path(__file__).with_name("access_matrix.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            server, call, *needs = line.split()
            method, _, variant = call.partition("#")
            rows.append(Row(server, "/" + method, variant, tuple(needs)))
    return rows


def calls_of_the_protos() -> dict[str, Any]:
    found = {}
    for package in (evenq.wire.stubs.apache.rocketmq.v2, evenq.wire.stubs.evenq.v1):
        for one in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            descriptor = getattr(importlib.import_module(one.name), "DESCRIPTOR", None)
            for service in descriptor.services_by_name.values() if descriptor is not None else ():
                found |= {f"/{service.full_name}/{method.name}": method for method in service.methods}
    return found


CALLS = calls_of_the_protos()


def test_every_call_of_the_protos_has_its_row_and_no_row_is_of_another_call() -> None:
    assert {row.call for row in table()} == set(CALLS)
    both = {row.call for row in table() if row.server == "rebalancer"} - {"/evenq.v1.Assignment/Report"}
    assert both <= {row.call for row in table() if row.server == "broker"}


GONE = {"DeleteTopic", "DeleteGroup", "DeleteSubscription", "ResetGroupOffset"}
"""Calls that end something: of names that were never made, so that the rest can go on."""


def filled(message: Any, naming: Naming, topic: str, group: str, path: str = "") -> None:
    """Every field that names a topic or a group, named."""
    for one in message.DESCRIPTOR.fields:
        at = f"{path}.{one.name}"
        inner = one.message_type
        if inner is not None and inner.GetOptions().map_entry:
            continue
        if inner is not None and inner.full_name == "apache.rocketmq.v2.Resource":
            target = getattr(message, one.name)
            resource = target.add() if one.is_repeated else target
            resource.resource_namespace = naming.own
            resource.name = naming.name(group if one.name == "group" else topic)
        elif inner is not None and inner.file.package in {"apache.rocketmq.v2", "evenq.v1"} and at.count(".") < 4:
            if one.containing_oneof is not None and one.name in {"publishing", "beat", "leave", "status"}:
                continue
            if at.startswith((".recover", ".verify", ".print", ".notify", ".reconnect", ".thread")):
                continue  # what servers send
            nested = inner._concrete_class()
            filled(nested, naming, topic, group, at)
            if nested.ByteSize():
                target = getattr(message, one.name)
                target.add().CopyFrom(nested) if one.is_repeated else target.CopyFrom(nested)
        elif inner is None and one.type == one.TYPE_STRING and not one.is_repeated:
            if one.name in {"topic", "to_topic"}:
                setattr(message, one.name, naming.name(topic))
            elif one.name in {"group", "source_group"}:
                setattr(message, one.name, naming.name(group))


_numbers = itertools.count()


@dataclass
class Stage:
    """The servers and what was planted in them."""

    broker: evenq_broker.app.BrokerApp
    targets: Mapping[str, str]
    net: GrpcNet
    clock: SystemClock
    ids: dict[str, str] = field(default_factory=dict)
    """By tenant: the id of a stored message."""
    handles: dict[str, str] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    """Receipt handle and message id of a message in flight, by tenant."""
    transaction: str = ""
    recall: str = ""
    leaks: set[tuple[str, str]] = field(default_factory=set)
    """(call, whose body) of answers to those who may: the check can fail."""

    def request(self, row: Row, naming: Naming) -> bytes:
        name = row.call.rpartition("/")[2]
        topic, group = ("gone", "gone") if name in GONE else ("orders", "billing")
        message = GetMessageClass(CALLS[row.call].input_type)()
        filled(message, naming, topic, group)
        special = getattr(self, _snake(row.call.rpartition(".")[2]), None)
        if special is not None:
            special(message, naming, row.variant)
        encoded: bytes = message.SerializeToString()
        return encoded

    def victim(self, naming: Naming) -> str:
        """Whose message in flight is aimed at: that of the names without a namespace under a header, else Y's."""
        return "" if naming.header == "X" else "Y"

    def _messaging_query_route(self, m: Any, n: Naming, _: str) -> None:
        m.endpoints.addresses.add(host="127.0.0.1", port=8081)

    _messaging_query_assignment = _messaging_query_route

    def _messaging_heartbeat(self, m: Any, n: Naming, variant: str) -> None:
        if variant:
            m.ClearField("group")

    def _messaging_send_message(self, m: Any, n: Naming, variant: str) -> None:
        m.messages[0].body = b"of the caller"
        m.messages[0].system_properties.message_id = f"{random.Random(len(n.title)).getrandbits(100):034X}"
        if variant:  # complete, so that it is read from its bytes
            m.messages[0].system_properties.born_timestamp.seconds = 1_700_000_000
            m.messages[0].system_properties.ClearField("dead_letter_queue")
        if variant in {"retry", "dlq"}:
            m.messages[0].topic.name = n.name({"retry": "%RETRY%billing", "dlq": "%DLQ%billing"}[variant])

    def _messaging_receive_message(self, m: Any, n: Naming, _: str) -> None:
        m.batch_size = 1
        m.message_queue.id = -1
        m.filter_expression.expression = "*"
        m.invisible_duration.seconds = 300
        m.long_polling_timeout.seconds = 0

    def _messaging_ack_message(self, m: Any, n: Naming, _: str) -> None:
        del m.entries[:]
        m.entries.add(message_id=self.held[self.victim(n)], receipt_handle=self.handles[self.victim(n)])

    def _messaging_change_invisible_duration(self, m: Any, n: Naming, _: str) -> None:
        m.receipt_handle = self.handles[self.victim(n)]
        m.invisible_duration.seconds = 0

    def _messaging_forward_message_to_dead_letter_queue(self, m: Any, n: Naming, variant: str) -> None:
        m.message_id = self.held[self.victim(n)]
        m.receipt_handle = "" if variant else self.handles[self.victim(n)]

    def _messaging_pull_message(self, m: Any, n: Naming, _: str) -> None:
        m.filter_expression.expression = "*"

    def _messaging_end_transaction(self, m: Any, n: Naming, _: str) -> None:
        m.transaction_id, m.resolution = self.transaction, d.COMMIT

    def _messaging_recall_message(self, m: Any, n: Naming, _: str) -> None:
        m.recall_handle = self.recall

    def _messaging_telemetry(self, m: Any, n: Naming, variant: str) -> None:
        m.ClearField("settings")
        resource = d.Resource(resource_namespace=n.own, name=n.name("orders" if variant else "billing"))
        if variant:
            m.settings.publishing.topics.append(resource)
        else:
            m.settings.subscription.group.CopyFrom(resource)

    def _admin_change_log_level(self, m: Any, n: Naming, _: str) -> None:
        m.level = 77

    def _admin_query_message(self, m: Any, n: Naming, variant: str) -> None:
        if variant:
            owner = "Y" if n.tenant == "X" and n.header else n.tenant
            m.message_id = self.ids.get(owner, self.ids[""])

    def _admin_verify_message(self, m: Any, n: Naming, _: str) -> None:
        m.client_id, m.message_id = "client-of-other", self.ids["Y"]

    def _admin_admin_send_message(self, m: Any, n: Naming, _: str) -> None:
        m.body = b"of the caller"

    def _data_publish(self, m: Any, n: Naming, variant: str) -> None:
        m.queue.queue_id = -1
        m.messages[0].topic.ClearField("resource_namespace")
        m.messages[0].body = b"of the caller"
        m.messages[0].system_properties.message_id = f"{len(n.title):034X}"
        if variant:  # complete, so that it is read from its bytes
            m.queue.broker_name = ""
            m.messages[0].system_properties.born_timestamp.seconds = 1_700_000_000
            m.messages[0].system_properties.ClearField("dead_letter_queue")

    def _data_pull(self, m: Any, n: Naming, variant: str) -> None:
        m.committed = -1
        if variant:
            m.group = ""

    def _data_scan(self, m: Any, n: Naming, _: str) -> None:
        m.end = 1_000

    def _admin_scale_topic(self, m: Any, n: Naming, _: str) -> None:
        m.queues = 1

    def _admin_permit_topic(self, m: Any, n: Naming, _: str) -> None:
        m.permission = d.READ_WRITE

    def _admin_reset_offsets(self, m: Any, n: Naming, variant: str) -> None:
        m.dry_run = True
        if variant:
            m.topic, m.local = "", True

    def _admin_list_scheduled(self, m: Any, n: Naming, variant: str) -> None:
        if variant:
            m.topic = ""

    def _admin_list_schedules(self, m: Any, n: Naming, variant: str) -> None:
        m.name = ""
        if variant:
            m.topic = ""

    def _admin_find_messages(self, m: Any, n: Naming, variant: str) -> None:
        m.ClearField("queue")
        m.ClearField("positions")
        if variant:
            m.message_id = self.ids["Y"]
            m.queue.topic = m.topic
            m.positions.add(queue=m.queue)
        if variant in {"everywhere", "local"}:
            m.topic, m.local = "", variant == "local"

    def _admin_trace_message(self, m: Any, n: Naming, _: str) -> None:
        m.message_id, m.group = self.ids["Y"], ""

    def _dead_letters_list(self, m: Any, n: Naming, variant: str) -> None:
        m.bodies = bool(variant)

    def _dead_letters_replay(self, m: Any, n: Naming, variant: str) -> None:
        m.max = 1
        m.filter.expression = "nothing-has-this-tag"
        if variant:
            m.to_topic = ""

    def _staging_begin(self, m: Any, n: Naming, _: str) -> None:
        m.query_id = f"query {next(_numbers)}"  # a query is of the user who began it
        m.topics.append(n.name("orders"))

    _staging_decide = _staging_abandon = _staging_begin

    def _peers_lite_ready(self, m: Any, n: Naming, _: str) -> None:
        m.wait_ms = 0

    def _registry_unregister(self, m: Any, n: Naming, _: str) -> None:
        m.broker_name = "never-here"

    # -------------------------------------------------------------------------------------------- one call

    async def call(self, row: Row, naming: Naming, caller: Caller) -> tuple[int, bytes]:
        """The verdict, and every byte that came back."""
        request, target = self.request(row, naming), self.targets[row.server]
        result = headers(caller, naming.header, self.clock.now_ms())
        method, came = CALLS[row.call], b""
        try:
            if not method.server_streaming:
                came = await self.net.unary(target, row.call, request, timeout_ms=60_000, metadata=result)
                return _code(method, came), came
            done = asyncio.Event()
            requests = _open(request, done) if method.client_streaming else request
            limit_ms = 8_000 if method.client_streaming else 30_000
            frames = self.net.stream(target, row.call, requests, timeout_ms=limit_ms, metadata=result)
            code = 0
            try:
                async for frame in frames:
                    code, came = code or _code(method, frame), came + frame
                    if method.client_streaming or row.call.endswith("WatchRoutes"):
                        break
            finally:
                done.set()
                await frames.aclose()
        except Error as error:
            return error.code, came
        return code, came

    async def cell(self, row: Row, naming: Naming, who: str) -> Iterator[str]:
        caller = CALLERS[who]
        code, came = await self.call(row, naming, caller)
        wanted = row.code(caller, naming)
        problems = []
        if wanted and code not in {UNAUTHORIZED, FORBIDDEN, OK} and CALLS[row.call].client_streaming:
            # On a busy machine gRPC's client may lose why a stream ended, or the time is over: that says nothing.
            code, came = await self.call(row, naming, caller)
        got = code if code in {UNAUTHORIZED, FORBIDDEN} else 0
        where = f"{row.server} {row.call}#{row.variant} by {who} under {naming.title}"
        if got != wanted:
            problems.append(f"{where}: {got}, not {wanted}")
        for tenant in ("X", "Y", ""):
            for kind, right in (("topic", "topic:consume"), ("letter", "group:consume")):
                if _canary(kind, tenant) in came:
                    self.leaks.add((row.call, kind))
                    if not caller.may(right, tenant):
                        problems.append(f"{where}: the answer holds a body of {tenant or 'nobody'}'s {kind}")
        return iter(problems)


def _snake(call: str) -> str:
    """`_messaging_send_message` of MessagingService/SendMessage."""
    return "".join(f"_{part.lower()}" for part in re.findall("[A-Z][a-z]+", call.replace("Service/", "")))


def _canary(kind: str, tenant: str) -> bytes:
    return f"CANARY-{kind}-of-{tenant or 'nobody'}.".encode()


def _code(method: Any, answer: bytes) -> int:
    message = GetMessageClass(method.output_type).FromString(answer)
    if method.full_name == "evenq.v1.Groups.Session":
        return int(message.refused.status.code)
    known = "status" in message.DESCRIPTOR.fields_by_name
    code = int(message.status.code) if known else 0
    return 0 if code == d.OK else code


async def _open(request: bytes, done: asyncio.Event) -> AsyncIterator[bytes]:
    yield request
    await done.wait()


# ------------------------------------------------------------------------------------------------ the stage


async def plant(stage: Stage, tenant: str) -> None:
    """Messages, a dead letter, a message in flight; for Y also a half message and one for later."""
    naming = Naming("", tenant, prefix=f"{tenant}%" if tenant else "")
    broker = stage.broker.broker
    for topic in ("orders", "held", "payments", "later"):
        kind = {"payments": "TRANSACTION", "later": "DELAY"}.get(topic, "NORMAL")
        await broker.catalog.create_topic(naming.name(topic), queues=1, message_type=evenq.MessageType(kind))
    for group in ("billing", "holders"):
        await broker.catalog.create_group(naming.name(group), start_from=evenq.StartFrom.FIRST)

    async def ask(name: str, request: Any) -> bytes:
        result = headers(CALLERS["admin"], "", stage.clock.now_ms())
        return await stage.net.unary(
            stage.targets["broker"], M + name, request.SerializeToString(), timeout_ms=60_000, metadata=result
        )

    async def send(topic: str, body: bytes, kind: int = d.NORMAL) -> s.SendResultEntry:
        request = s.SendMessageRequest()
        message = request.messages.add(body=body)
        message.topic.name = naming.name(topic)
        system = message.system_properties
        system.message_id, system.message_type = f"{random.getrandbits(120):034X}", kind  # type: ignore[assignment]
        if kind == d.DELAY:
            system.delivery_timestamp.seconds = stage.clock.now_ms() // 1_000 + 3_600
        answer = s.SendMessageResponse.FromString(await ask("SendMessage", request))
        assert answer.status.code == d.OK, answer
        return answer.entries[0]

    async def take(topic: str, group: str) -> d.Message:
        request = s.ReceiveMessageRequest(batch_size=1)
        request.group.name, request.message_queue.topic.name = naming.name(group), naming.name(topic)
        request.message_queue.id, request.invisible_duration.seconds = -1, 3_600
        request.filter_expression.expression = "*"
        result = headers(CALLERS["admin"], "", stage.clock.now_ms())
        encoded = request.SerializeToString()
        frames = stage.net.stream(
            stage.targets["broker"], M + "ReceiveMessage", encoded, timeout_ms=60_000, metadata=result
        )
        answers = [s.ReceiveMessageResponse.FromString(frame) async for frame in frames]
        return next(one.message for one in answers if one.HasField("message"))

    await send("orders", _canary("letter", tenant))
    dead = await take("orders", "billing")
    bury = s.ForwardMessageToDeadLetterQueueRequest(receipt_handle=dead.system_properties.receipt_handle)
    bury.group.name, bury.topic.name = naming.name("billing"), naming.name("orders")
    await ask("ForwardMessageToDeadLetterQueue", bury)
    # The letter's original would show its body to readers of the topic.
    topic = broker.catalog.topics.get(naming.name("orders"))
    assert topic is not None
    await broker.catalog.delete_topic(topic.name)
    await broker.catalog.create_topic(topic.name, queues=1)
    for _ in range(PLANTED):
        stage.ids[tenant] = (await send("orders", _canary("topic", tenant))).message_id
    # In flight under the names that the calls use: only who may consume them may end it.
    held = await take("orders", "billing")
    stage.handles[tenant] = held.system_properties.receipt_handle
    stage.held[tenant] = held.system_properties.message_id
    if tenant == "Y":
        stage.transaction = (await send("payments", b"half", d.TRANSACTION)).transaction_id
        stage.recall = (await send("later", b"late", d.DELAY)).recall_handle


def state(stage: Stage, tenant: str) -> Any:
    """What outsiders may not change: messages stored, deliveries in flight, groups and topics."""
    broker, prefix = stage.broker.broker, f"{tenant}%" if tenant else ""
    mine = [topic for topic in broker.catalog.topics.all() if _tenant(topic.name) == tenant]
    ends = {topic.name: broker.ledger.store.queue_range(topic.topic_id, 0) for topic in mine}
    group, topic = broker.catalog.groups.get(f"{prefix}billing"), broker.catalog.topics.get(f"{prefix}orders")
    assert group is not None
    assert topic is not None
    queue = broker.ledger.progress.queue(group.group_id, topic.topic_id, 0)
    assert queue is not None
    pending = {offset: (entry.number, entry.deadline_ms) for offset, entry in queue.pending.items()}
    groups = sorted(group.name for group in broker.catalog.groups.all() if _tenant(group.name) == tenant)
    return ends, pending, queue.committed, groups


def _tenant(name: str) -> str:
    plain = name.removeprefix("%DLQ%").removeprefix("%RETRY%")
    return plain.partition("%")[0] if "%" in plain else ""


@dataclass
class Servers:
    """Nameserver, rebalancer, broker, and a broker that follows."""

    everything: list[Any]

    async def reload(self) -> None:
        for server in self.everything:
            assert await server._auth.reload()


class ReplicationServer:
    """What a broker that follows serves: the calls of replication behind the guard, and nothing else of a broker."""

    def __init__(self, auth: AuthSettings, clock: SystemClock, net: GrpcNet) -> None:
        self._auth, self._clock = Auth(auth, clock=clock), clock
        runtime = Runtime(evenq_broker.settings.BrokerSettings(), clock=clock, rng=random.Random(3), net=net)
        self._links = PeerLinks(runtime, {0: "127.0.0.1:1", 1: "127.0.0.1:2"}, 0, lambda _: None)
        self._runtime = runtime
        self.port = 0

    def view(self) -> ReplicaGroupView:
        return one_copy("broker-a", broker_id=0, epoch=1, address="")

    async def hand_over(self, to: int | None) -> HandedOver:
        raise AssertionError("a copy does not serve this call at its address for the other copies")

    async def given(self, _wanted: object) -> bytes:
        raise NotFound("nothing is given here")

    async def start(self) -> None:
        rpcs = self._auth.rpcs(
            [*replication_rpcs(self._links), *record_rpcs(self._links.incoming, self), *copy_rpcs(self._runtime, self)]
        )
        self._server = await open_grpc_server(rpcs, host="127.0.0.1", port=0, clock=self._clock)
        self._auth.start()
        self.port = self._server.port

    async def close(self) -> None:
        await self._links.close()
        await self._server.stop()
        await self._auth.close()


async def started(folder: Path, *, guarded: bool = True) -> tuple[Stage, Servers]:
    users = folder / "users.toml"
    users.write_text(users_file(leaver=True))
    auth = AuthSettings(enabled=guarded, users=users, reload_ms=60_000, clock_skew_ms=420_000)
    clock, net = SystemClock(), GrpcNet()
    shared: Any = {"port": 0, "host": "127.0.0.1", "metrics_port": -1, "auth": auth, "drain_ms": 200}
    nameserver = evenq_nameserver.app.Nameserver(
        evenq_nameserver.settings.NameserverSettings(**shared), clock=clock, rng=random.Random(1)
    )
    rebalancer = evenq_rebalancer.app.Rebalancer(evenq_rebalancer.settings.RebalancerSettings(**shared), clock=clock)
    await nameserver.start()
    await rebalancer.start()
    broker = evenq_broker.app.BrokerApp(
        evenq_broker.settings.BrokerSettings(
            **shared,
            nameservers=f"127.0.0.1:{nameserver.port}",
            rebalancer=f"127.0.0.1:{rebalancer.port}",
            auto_create_topics=False,
            auto_create_groups=True,
            default_queues=1,
        ),
        clock=clock,
        rng=random.Random(2),
        net=net,
    )
    await broker.start()
    replica = ReplicationServer(auth, clock, net)
    await replica.start()
    targets = {"broker": broker.port, "nameserver": nameserver.port, "rebalancer": rebalancer.port}
    targets["replica"] = replica.port
    stage = Stage(broker, {name: f"127.0.0.1:{port}" for name, port in targets.items()}, net, clock)
    return stage, Servers([replica, broker, rebalancer, nameserver])


def cells(callers: list[str]) -> Iterator[tuple[Row, Naming, str]]:
    for row in table():
        for naming in V2_NAMINGS if "apache" in row.call else V1_NAMINGS:
            for who in callers:
                yield row, naming, who


async def judged(stage: Stage, callers: list[str]) -> tuple[int, list[str]]:
    room, problems, count = asyncio.Semaphore(AT_ONCE), list[str](), 0

    async def one(row: Row, naming: Naming, who: str) -> None:
        async with room:
            problems.extend(await stage.cell(row, naming, who))

    async with asyncio.TaskGroup() as group:
        for cell in cells(callers):
            group.create_task(one(*cell))
            count += 1
    return count, problems


QUICK = ["nobody signed", "owner"], ["other tenant"]
"""Outsiders and insiders that meet every right or none: a fifth of the cells, for those who wait."""


@pytest.mark.parametrize(
    ("outsiders", "insiders", "cells_min"),
    [
        pytest.param(*QUICK, 1_500, id="few callers"),
        pytest.param(OUTSIDERS, INSIDERS, 12_000, marks=pytest.mark.slow, id="all callers"),
    ],
)
async def test_every_cell_is_as_the_table_says_and_no_answer_holds_a_foreign_body(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], outsiders: list[str], insiders: list[str], cells_min: int
) -> None:
    stage, servers = await started(tmp_path)
    try:
        for tenant in ("", "Y", "X"):
            await plant(stage, tenant)
        leaver = CALLERS["revoked"]
        rows = {
            row.server: row
            for row in table()
            if row.call.rpartition("/")[2] in {"QueryRoute", "GetRoutes", "Explain", "FetchSnapshot"}
        }
        for row in rows.values():  # each server remembers this signature as a right one
            assert (await stage.call(row, V2_NAMINGS[0], leaver))[0] != UNAUTHORIZED
        (tmp_path / "users.toml").write_text(users_file(leaver=False))
        await servers.reload()
        before = [state(stage, tenant) for tenant in ("", "Y")]
        outside, problems = await judged(stage, outsiders)
        for tenant, was in zip(("", "Y"), before, strict=True):
            if state(stage, tenant) != was:
                problems.append(f"outsiders changed what is of {tenant or 'nobody'}: {was} is {state(stage, tenant)}")
        timer = stage.broker.broker.ledger.recalls.read(stage.recall)
        inside, more = await judged(stage, insiders)
        if not await stage.broker.broker.ledger.store.cancel_timers([timer.timer_id]):
            more.append("Y's message for later was recalled under another name")
        with capsys.disabled():
            print(f"\naccess matrix: {outside + inside} cells, {len(problems + more)} wrong")
        assert outside + inside >= cells_min
        assert problems + more == [], "\n" + "\n".join(sorted(problems + more, reverse=True)[:100])
        bodies = {call.rpartition("/")[2] for call, _ in stage.leaks}
        assert bodies == {"ReceiveMessage", "PullMessage", "Pull", "Scan", "FindMessages", "QueryMessage", "List"}
    finally:
        for server in servers.everything:
            await server.close()
        await stage.net.close()


SPELLINGS = {
    "header": lambda tenant: Naming("", tenant, header=tenant),
    "Resource": lambda tenant: Naming("", tenant, own=tenant),
    "Resource, not the header": lambda tenant: Naming("", tenant, header="Y", own=tenant),
    "full name": lambda tenant: Naming("", tenant, prefix=f"{tenant}%"),
}


async def test_without_authentication_too_a_namespace_never_means_the_bare_name(tmp_path: Path) -> None:
    """Each call of the public protocol under each spelling of X, where things exist, and of Z, where none does: the
    same verdict, no body of others, and nothing of others is changed.
    """
    stage, servers = await started(tmp_path, guarded=False)
    anybody = Caller("root", signed=False)
    try:
        for tenant in ("", "Y", "X"):
            await plant(stage, tenant)
        before = [state(stage, tenant) for tenant in ("", "Y")]
        problems = []
        for row in table():
            for tenant in ("X", "Z") if "apache" in row.call else ():
                codes = {}
                for spelling, naming in SPELLINGS.items():
                    codes[spelling], came = await stage.call(row, naming(tenant), anybody)
                    foreign = [one for one in ("", "Y", "X") if one != tenant and _canary("topic", one) in came]
                    problems += [f"{row.call}#{row.variant} as {spelling}: a body of {one!r}" for one in foreign]
                if len(set(codes.values())) > 1:
                    problems.append(f"{row.call}#{row.variant} of {tenant}: {codes}")
            if [state(stage, tenant) for tenant in ("", "Y")] != before:
                problems.append(f"{row.call}#{row.variant} changed what is of others")
                before = [state(stage, tenant) for tenant in ("", "Y")]
        assert problems == [], "\n".join(["", *problems])
        sent = state(stage, "X")[0]["X%orders"]
        assert sent[1] > PLANTED, "what was sent under the namespace is in it"
    finally:
        for server in servers.everything:
            await server.close()
        await stage.net.close()
