"""Construction of clients: client ids, message ids, the net, and lazily the parts that need grpc and the loops.

Called by the sync and asyncio classes when a client is created. Only this module of the SDK reads the machine's name,
process id, environment and randomness; the modules below get them as arguments.
"""

from __future__ import annotations

import itertools
import os
import random
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from evenq.client.core.routes.access_points import DEFAULT_ENDPOINT, ENDPOINT_VARIABLE, AccessPoints, access_points
from evenq.client.core.sending.message_id import MessageIds
from evenq.client.loops.sending.outgoing import Encoded
from evenq.errors import BadRequest, BodyEmpty, IllegalAccessPoint, IllegalTopic, SettingsError
from evenq.model import Message, topic_problem
from evenq.runtime.clock import Clock, SystemClock
from evenq.runtime.extras import is_installed, missing
from evenq.runtime.net import Net
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls

if TYPE_CHECKING:
    from evenq.client.core.clients.observer import ClientIdentity
    from evenq.client.loops.clients.troubles import Report
    from evenq.client.loops.consumers.polling import PollLoop
    from evenq.client.loops.consumers.pushing import PushLoop, PushPlan
    from evenq.client.loops.consumers.receiving import ReceiveLoop, SimplePlan
    from evenq.client.loops.groups.membership import MemberPlan
    from evenq.client.loops.groups.rebalance_listener import RebalanceCallback
    from evenq.client.loops.lite.lite_member import LiteMember, LitePlan
    from evenq.client.loops.lite.subscribing import TellEnded
    from evenq.client.loops.reading.listening import RunListener
    from evenq.client.loops.reading.table_reads import TableReads
    from evenq.client.loops.sending.replies import Replies
    from evenq.client.loops.sending.sender import SendLoop
    from evenq.client.loops.transactions.transacting import RunChecker, TransactionLoop
    from evenq.client.options import ProducerOptions, PushOptions
    from evenq.client.rpc.admin import AdminCalls
    from evenq.client.rpc.direct import Direct
    from evenq.client.rpc.lite import RpcLiteCalls
    from evenq.client.rpc.receiving import RpcSimpleCalls
    from evenq.client.rpc.sessions import RpcConsumerCalls
    from evenq.client.rpc.transactions import RpcTransactionCalls

HALF_HOUR_MS = 30 * 60 * 1000  # RB-45
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"

_numbers = itertools.count()
_ids: dict[int, MessageIds] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientContext:
    """Clock, randomness, net and access of a client; tests pass their own."""

    clock: Clock
    rng: random.Random
    net: Net | None = None
    """None: gRPC, created in the client's own loop at its first call, closed with the client."""

    credentials: Credentials | None = None
    """Credentials that sign the calls; None: calls are not signed."""

    tls: Tls | None = None
    """TLS settings; None: plain text, except for brokers whose address has the scheme evenqs."""

    endpoint: str = DEFAULT_ENDPOINT
    """`host:port` of the access points, joined with `;`."""

    @staticmethod
    def real() -> ClientContext:
        """Returns the machine's context. Raises SettingsError for invalid credentials in the environment."""
        rng = random.Random(os.urandom(8))  # noqa: S311 - spreads load, keeps no secret
        return ClientContext(clock=SystemClock(), rng=rng, credentials=Credentials.of_environment(os.environ))

    @staticmethod
    def of(
        given: ClientContext | None,
        credentials: Credentials | None,
        *,
        endpoint: str = "",
        tls: Tls | bool | None = None,
    ) -> ClientContext:
        """Returns the context of a client: the given one or the machine's, with the client's own credentials if it has
        any.

        `endpoint`: empty = EVENQ_ENDPOINT, or the default. `tls`: None = by the scheme of the endpoint, or EVENQ_TLS_*.
        Raises IllegalAccessPoint, SettingsError if endpoint and `tls` contradict each other, BadRequest for a wrong
        type.
        """
        _check_kinds(credentials, endpoint, tls)
        context = given or ClientContext.real()
        points = access_points(endpoint or os.environ.get(ENDPOINT_VARIABLE, "").strip() or DEFAULT_ENDPOINT)
        return replace(
            context,
            credentials=context.credentials if credentials is None else credentials,
            tls=_tls_of(points, tls),
            endpoint=points.endpoint,
        )

    def open_net(self, *, reads_ahead: bool = True) -> Net:
        """Returns the given net or a gRPC net; credentials make it sign. `reads_ahead`: as in `NO_READ_AHEAD`. Raises
        SettingsError for invalid TLS files.
        """
        net = self.net
        if net is None:
            from evenq.wire.net import NO_READ_AHEAD, GrpcNet

            net = GrpcNet(tls=self.tls, options=() if reads_ahead else NO_READ_AHEAD)
        if self.credentials is None:
            return net
        from evenq.wire.signed_net import SignedNet, Signer

        return SignedNet(net, Signer.of(self.credentials, self.clock))

    async def let_go(self, used: Net) -> None:
        """Closes the connections of a client that closes, unless the net was given and may serve others."""
        if self.net is None:
            await used.close()


def _check_kinds(credentials: object, endpoint: object, tls: object) -> None:
    if not isinstance(endpoint, str):
        raise IllegalAccessPoint(f"endpoint is {endpoint!r:.80}; give a text, for example '{DEFAULT_ENDPOINT}'")
    if tls is not None and not isinstance(tls, Tls | bool):
        raise BadRequest(f"tls is {tls!r:.80}; give True, or evenq.Tls(ca='ca.pem')")
    if credentials is not None and not isinstance(credentials, Credentials):  # the value may be a secret
        raise BadRequest(
            f"credentials is a {type(credentials).__name__}; give evenq.Credentials(access_key=..., secret_key=...)"
        )


def _tls_of(points: AccessPoints, tls: Tls | bool | None) -> Tls | None:
    if points.tls is not None and tls is not None and points.tls != bool(tls):
        raise SettingsError(
            f"the endpoint {points.addresses[0]} and tls={tls!r} contradict each other; write evenqs:// for TLS and "
            "evenq:// for plain text, or leave out tls"
        )
    if isinstance(tls, Tls):
        return tls
    if tls is False or points.tls is False:
        return None
    return Tls.of_environment(os.environ) or (Tls() if tls or points.tls else None)


def new_client_id(clock: Clock) -> str:
    """Returns `host@pid@n@base36(time)`, unique per client object (wire contract 2.1)."""
    number, text = clock.now_ms(), ""
    while number:
        number, digit = divmod(number, 36)
        text = DIGITS[digit] + text
    return f"{socket.gethostname()}@{os.getpid()}@{next(_numbers)}@{text}"


def placed(options: PushOptions) -> PushOptions:
    """Returns the options, with EVENQ_ZONE and EVENQ_INSTANCE where they are empty. Raises BadRequest."""
    zone = options.zone or os.environ.get("EVENQ_ZONE", "")
    instance = options.instance or os.environ.get("EVENQ_INSTANCE", "")
    return replace(options, zone=zone, instance=instance)


def admin_calls(context: ClientContext, client_id: str, timeout_ms: int) -> AdminCalls:
    from evenq.client.rpc.admin import AdminCalls

    return AdminCalls(context.open_net(), endpoint=context.endpoint, client_id=client_id, timeout_ms=timeout_ms)


def producer_parts(
    context: ClientContext,
    client_id: str,
    options: ProducerOptions,
    *,
    left: Callable[[int, int], None],
    run_checker: RunChecker,
) -> tuple[RpcTransactionCalls, SendLoop, Replies, TransactionLoop]:
    """Returns the calls of a producer and the parts that work over them; all share the routes of the sender."""
    from evenq.client.loops.sending.replies import Replies
    from evenq.client.loops.sending.sender import SendLoop
    from evenq.client.loops.transactions.transacting import TransactionLoop
    from evenq.client.rpc.transactions import RpcTransactionCalls

    clock, rng = context.clock, context.rng
    calls = RpcTransactionCalls(
        context.open_net(), endpoint=context.endpoint, client_id=client_id, timeout_ms=options.timeout_ms
    )
    several = len(access_points(context.endpoint).targets) > 1
    sending = SendLoop(calls, clock=clock, rng=rng, options=options, left=left, several_access_points=several)
    replies = Replies(
        calls, clock=clock, rng=rng, options=options, route=sending.route, route_changed=sending.route_changed
    )
    transacting = TransactionLoop(
        calls,
        clock=clock,
        rng=rng,
        options=options,
        route=sending.route,
        route_changed=sending.route_changed,
        run_checker=run_checker,
    )
    return calls, sending, replies, transacting


def direct_part(
    context: ClientContext, calls: RpcTransactionCalls, sending: SendLoop, options: ProducerOptions
) -> Direct | None:
    """Returns a sync producer's path in the caller's thread; None if it must not be used. Called in the loop."""
    from evenq.client.rpc.direct import Direct

    make = getattr(calls.net, "blocking", None)
    # The loop keeps the table of faults, and a given net may have no sockets.
    net = None if make is None or options.latency_faults else make()
    if net is None:
        return None
    timeout_ms = min(options.timeout_ms, options.send_timeout_ms)
    turn = context.rng.randrange(1 << 16)
    direct = Direct(net, calls, route=sending.fresh_route, timeout_ms=timeout_ms, first_turn=turn)
    direct.look_after_connections(context.clock)
    return direct


def pushing_parts(
    context: ClientContext,
    client_id: str,
    plan: PushPlan,
    *,
    identity: ClientIdentity,
    run_listener: RunListener,
    tell: RebalanceCallback | None,
    report: Report | None,
) -> tuple[RpcConsumerCalls, PushLoop]:
    """Returns the calls of a push consumer and its engine, not started."""
    from evenq.client.loops.consumers.pushing import PushLoop

    table = _table_reads(plan.options.tables)
    calls = _consumer_calls(context, client_id, plan)
    return calls, PushLoop(
        calls,
        plan=plan,
        client_id=client_id,
        clock=context.clock,
        rng=context.rng,
        run_listener=run_listener,
        tell=tell,
        report=report,
        identity=identity,
        table=table,
    )


def polling_parts(
    context: ClientContext, client_id: str, plan: MemberPlan, *, tell: RebalanceCallback | None
) -> tuple[RpcConsumerCalls, PollLoop]:
    """Returns the calls of a pull consumer and its engine, not started."""
    from evenq.client.loops.consumers.polling import PollLoop

    table = _table_reads(plan.options.tables)
    calls = _consumer_calls(context, client_id, plan)
    return calls, PollLoop(
        calls, plan=plan, client_id=client_id, clock=context.clock, rng=context.rng, tell=tell, table=table
    )


def receiving_parts(context: ClientContext, client_id: str, plan: SimplePlan) -> tuple[RpcSimpleCalls, ReceiveLoop]:
    """Returns the calls of a simple consumer and its engine, not started."""
    from evenq.client.loops.consumers.receiving import ReceiveLoop
    from evenq.client.loops.reading.group_start import GroupStart
    from evenq.client.rpc.receiving import RpcSimpleCalls

    calls = RpcSimpleCalls(
        context.open_net(), endpoint=context.endpoint, client_id=client_id, timeout_ms=plan.options.timeout_ms
    )
    clock, rng = context.clock, context.rng
    receiving = ReceiveLoop(
        calls, group=plan.group, subscriptions=plan.subscriptions, clock=clock, rng=rng, options=plan.options
    )
    start_ms = plan.start_timestamp_ms or clock.now_ms() - HALF_HOUR_MS
    receiving.starts = GroupStart(
        calls,
        receiving.routes,
        group=plan.group,
        start_from=plan.start_from,
        timestamp_ms=start_ms,
        troubles=receiving.troubles,
    )
    return calls, receiving


def lite_parts(
    context: ClientContext,
    client_id: str,
    plan: LitePlan,
    *,
    identity: ClientIdentity,
    tell: TellEnded | None,
    run_listener: RunListener | None,
    report: Report | None = None,
) -> tuple[RpcLiteCalls, LiteMember]:
    """Returns the calls of a consumer of lite topics and its engine, not started."""
    from evenq.client.loops.lite.lite_member import LiteMember
    from evenq.client.rpc.lite import RpcLiteCalls

    calls = RpcLiteCalls(
        context.open_net(),
        endpoint=context.endpoint,
        client_id=client_id,
        timeout_ms=plan.options.timeout_ms,
        push=run_listener is not None,
    )
    return calls, LiteMember(
        calls,
        plan,
        clock=context.clock,
        rng=context.rng,
        tell=tell,
        run_listener=run_listener,
        report=report,
        identity=identity,
    )


def _table_reads(place: str | Path) -> TableReads | None:
    """Returns the reader of a folder or URL of tables; None: not given. Raises SettingsError without the packages."""
    if not place:
        return None
    if not is_installed("pyarrow"):
        raise SettingsError(missing("a consumer with tables", "pyarrow"))
    from evenq.client.loops.reading.table_reads import TableReads
    from evenq.tables.consuming import ConsumedTable
    from evenq.tables.folder import table_target

    return TableReads(ConsumedTable(table_target(str(place))))


def _consumer_calls(context: ClientContext, client_id: str, plan: MemberPlan) -> RpcConsumerCalls:
    from evenq.client.rpc.sessions import RpcConsumerCalls

    return RpcConsumerCalls(
        context.open_net(), endpoint=context.endpoint, client_id=client_id, timeout_ms=plan.options.timeout_ms
    )


class Encoder:
    """Checks and encodes messages, in the caller's thread."""

    def __init__(self, clock: Clock, *, compression: str = "", packed_from: int = 0) -> None:
        """Bodies of `packed_from` bytes or more are packed by the method `compression` ("" = none)."""
        from evenq.client.rpc.messages import encode
        from evenq.wire.packing import check_method

        check_method(compression)
        self._encode = encode
        self._compression = compression
        self._packed_from = packed_from
        self._clock = clock
        self._host = socket.gethostname()
        self._legal: set[str] = set()
        self._ids = _process_ids()

    def encode(self, message: Message) -> Encoded:
        """Returns the encoded message. Raises IllegalTopic, BodyEmpty; the server checks everything else."""
        if message.topic not in self._legal:
            problem = topic_problem(message.topic)
            if problem:
                raise IllegalTopic(problem)
            self._legal.add(message.topic)
        if not message.body:
            raise BodyEmpty(f"a message for {message.topic} has no body; send at least one byte")
        now_ms = self._clock.now_ms()
        message_id = message.message_id or self._ids.next(now_ms)
        content = self._encode(
            message,
            message_id=message_id,
            born_ms=now_ms,
            born_host=self._host,
            compression=self._compression,
            packed_from=self._packed_from,
        )
        return Encoded(message_id, content)


def _process_ids() -> MessageIds:
    process_id = os.getpid()
    # By process: a forked child would otherwise continue its parent's counter and create the same ids.
    if process_id not in _ids:
        _ids[process_id] = MessageIds(mac=uuid.getnode(), process_id=process_id)
    return _ids[process_id]
