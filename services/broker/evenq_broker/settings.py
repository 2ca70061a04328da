"""Every setting of the broker, with its unit, bound and meaning; flag over environment over default.

`evenq.serving` loads it (prefix `EVENQ_BROKER_`), refuses what it does not know, and makes the reference page from it.
Nothing else in the program reads the environment.
"""

from __future__ import annotations

import os
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from evenq.errors import BadRequest, SettingsError
from evenq.model.delay_levels import CLASSIC_TEXT, DelayLevels
from evenq.model.names import broker_problem
from evenq.serving.auth import AuthSettings
from evenq.serving.front_limits import FrontLimits
from evenq.serving.tls import TlsSettings
from evenq.store import StoreOptions
from evenq_broker.core.cluster.listeners import check_shared, parse_listeners

__all__ = ["BODY_BYTES_MAX", "BrokerSettings", "StagingSettings", "StoreSettings"]

BODY_BYTES_MAX = (4 << 20) - (64 << 10)  # wire contract 2.5: Node, C# and Rust read at most 4 MiB with properties


_STORE = {one.name: one for one in fields(StoreOptions)}


def _of_store(name: str, **bounds: float) -> Any:
    """A setting that the store declares: its default, text and bounds, of which a server may have narrower ones."""
    one = _STORE[name]
    default = one.default.value if isinstance(one.default, Enum) else one.default
    made: Any = Field(default=default, **{**one.metadata, **bounds})
    return made


class StoreSettings(BaseModel, frozen=True, extra="forbid"):
    """The commit log and its files. What a setting means, and its default, is said by `evenq.store.StoreOptions`."""

    path: Path | None = Field(default=None, description="Data folder; empty = keep everything in memory.")
    segment_bytes: int | None = _of_store("segment_bytes", ge=1 << 16)
    flush: Literal["async", "sync"] = _of_store("flush")
    flush_interval_ms: int = _of_store("flush_interval_ms", le=60_000)
    flush_bytes: int = _of_store("flush_bytes")
    cache_bytes: int = _of_store("cache_bytes")
    disk_free_min_bytes: int | None = _of_store("disk_free_min_bytes")
    disk_used_max_ratio: float = _of_store("disk_used_max_ratio")
    snapshot_log_bytes: int = _of_store("snapshot_log_bytes", ge=1 << 10)
    snapshot_records: int = _of_store("snapshot_records", ge=1_000)
    snapshot_interval_ms: int = _of_store("snapshot_interval_ms", ge=1_000)
    message_index: bool = Field(default=True, description="Keep an index by key and message id.")
    retention_ms: int = _of_store("retention_ms")
    retention_hour: int = _of_store("retention_hour")
    disk_clean_ratio: float = _of_store("disk_clean_ratio")
    disk_force_ratio: float = _of_store("disk_force_ratio")
    memory_bytes_max: int = _of_store("memory_bytes_max", ge=1 << 20)


class StagingSettings(BaseModel, frozen=True, extra="forbid"):
    """Rows that wait for the decision of their batch (Spark's sink)."""

    bytes_max: int = Field(default=4 << 30, ge=1 << 10, description="Most staged bytes of all queries.")
    query_bytes_max: int = Field(
        default=2 << 30, ge=1 << 10, description="Most staged bytes of one query at this broker: bounds its batches."
    )
    timeout_ms: int = Field(
        default=3_600_000,
        ge=1_000,
        description="Time after which staged rows without a decision are dropped, ms (1 h); longer than a batch takes.",
    )
    ask_interval_ms: int = Field(
        default=5_000,
        ge=10,
        description="Time between two looks at decisions that are not carried out everywhere, and the silence after "
        "which a broker asks what became of staged rows, ms.",
    )
    group_bytes: int = Field(
        default=64 << 20,
        ge=1,
        description="Most bytes of a batch that are published in one step; a larger batch comes step by step.",
    )
    decisions_max: int = Field(
        default=10_000, ge=1, description="Most decided batches that may wait for brokers that are away."
    )
    queries_max: int = Field(default=100_000, ge=1, description="Most queries that are remembered.")
    memory_ms: int = Field(
        default=30 * 86_400_000,
        ge=1_000,
        description="How long a query that writes nothing is remembered, ms (30 days): a stream that goes on later may "
        "repeat its last batch. Batch jobs are remembered for twice timeout_ms.",
    )


class ReplicationSettings(BaseModel, frozen=True, extra="forbid"):
    """Further copies of the broker's log on other machines. Brokers with one `broker_name` are one group."""

    members: str = Field(
        default="",
        description="`id=host:port`, comma-separated, of all brokers of the group, this one too: where they reach each "
        "other, and where readers that take any copy reach followers; empty = one copy.",
    )
    broker_id: int = Field(default=0, ge=0, le=999_999_999, description="Number of this broker among `members`.")
    host: str = Field(default="", description="Address to bind for the other copies; empty = that of `host`.")
    port: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="Port to bind for the other copies; 0 = that of its own entry in `members`.",
    )
    mode: Literal["sync", "memory"] = Field(
        default="sync",
        description="What a copy has before a record counts as committed: sync = it is synced to disk, memory = it is "
        "written (lost if all copies lose power at once).",
    )
    min_in_sync: int = Field(
        default=2, ge=1, le=9, description="Fewest copies in sync; with fewer nothing is taken. Of a new group only."
    )
    record: str = Field(
        default="",
        description="Where the group record is kept: `file:PATH` for brokers on one machine, "
        "`etcd:host:port[,host:port]/KEY`, or `lease:NAME` of Kubernetes.",
    )
    from_one_copy: bool = Field(
        default=False,
        description="A folder of a broker that was alone becomes the first copy of a new group, with all of its "
        "messages; the other `members` are added while it serves (`grow` of `evenq broker`). Any other folder is as "
        "without it, so it may stay.",
    )
    forward_clients: bool = Field(
        default=False,
        description="While this copy follows, it listens at its ports for clients, and connections lead on to the same "
        "ports of the leader's host in `members`: a load balancer may choose any copy. All copies have the same ports "
        "then.",
    )
    etcd_user: str = Field(default="", description="Login of etcd; empty = none.")
    etcd_password: Path | None = Field(default=None, description="File that holds its password.")
    etcd_ca: Path | None = Field(default=None, description="PEM file of the authority that signed etcd's certificate.")
    renew_ms: int = Field(
        default=2_000, ge=10, le=60_000, description="Time between two signs of life of a leader, ms."
    )
    suspect_ms: int = Field(
        default=6_000,
        ge=20,
        le=600_000,
        description="Time without a sign of life after which another broker leads, ms; more than renew_ms.",
    )
    lag_ms: int = Field(
        default=3_000,
        ge=10,
        le=600_000,
        description="Time after which a copy that is silent or behind counts no more, ms.",
    )

    follower_reads: bool = Field(
        default=True,
        description="While this broker follows it answers readers that take committed messages from any copy, at its "
        "address in `members`.",
    )
    far_behind_bytes: int = Field(
        default=0,
        ge=0,
        description="A reader that takes messages from any copy and is further behind the end of the log is told to "
        "read from a follower, bytes; 0 = 40 % of the machine's memory.",  # HA-9, LQ-69
    )

    def behind_bytes_max(self) -> int:
        """`far_behind_bytes`, or what it is by the machine."""
        return self.far_behind_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 40 // 100

    @property
    def addresses(self) -> dict[int, str]:
        """Broker id -> where the others reach it. Raises ValueError."""
        addresses: dict[int, str] = {}
        for part in filter(None, (part.strip() for part in self.members.split(","))):
            number, found, address = part.partition("=")
            if not found or not number.strip().isdecimal() or not address.rpartition(":")[2].isdecimal():
                raise ValueError(f"replication.members holds {part!r}; write id=host:port, as in 0=broker-0:8083")
            if int(number) in addresses:
                raise ValueError(f"replication.members names broker {int(number)} twice; each id is one broker")
            addresses[int(number)] = address.strip()
        return addresses

    def problem(self, *, has_folder: bool) -> str:
        """What is wrong with settings that only together are; empty: nothing. Raises ValueError."""
        addresses = self.addresses
        if not addresses:
            return ""
        if self.broker_id not in addresses:
            return f"replication.broker_id = {self.broker_id} is not among replication.members ({self.members})"
        if self.min_in_sync > len(addresses):
            return f"replication.min_in_sync = {self.min_in_sync} is more than the {len(addresses)} brokers of members"
        if self.from_one_copy and self.broker_id != min(addresses):
            return (
                f"replication.from_one_copy is for the copy that founds the group, the lowest of members: broker "
                f"{min(addresses)}, not {self.broker_id}"
            )
        if not has_folder:
            return "replication needs a data folder: set store.path"
        if not self.record.startswith(("file:", "etcd:", "lease:")):
            places = "file:PATH, etcd:host:port/KEY or lease:NAME"
            return f"replication.record must say where the group record is kept: {places}"
        if not self.renew_ms < self.suspect_ms:
            return (
                f"replication.suspect_ms = {self.suspect_ms} must be more than replication.renew_ms = {self.renew_ms}"
            )
        return ""


class BrokerSettings(BaseModel, frozen=True, extra="forbid"):
    """The broker's settings."""

    broker_name: str = Field(default="broker-a", description="Identity of the broker; never its address.")
    cluster: str = Field(
        default="evenq", min_length=1, max_length=127, description="Name of the cluster it belongs to."
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="Address to bind.")
    port: int = Field(default=8081, ge=-1, le=65_535, description="gRPC port without TLS; 0 = any free one, -1 = off.")
    front: Literal["grpcio", "http2"] = Field(
        default="http2", description="Who serves gRPC: evenq's own server on HTTP/2, or that of grpcio."
    )
    front_limits: FrontLimits = Field(default=FrontLimits(), description="Bounds of what clients can make it hold.")
    tls: TlsSettings = Field(default=TlsSettings(), description="Encryption.")
    listeners: str = Field(
        default="",
        description="Further addresses to listen at, `name=host:port`, or `name+tls=host:port` for TLS, "
        "comma-separated; a client is answered with the addresses of the listener it came through.",
    )
    metrics_port: int = Field(default=5557, ge=-1, le=65_535, description="HTTP port of metrics and health; -1 = off.")
    advertise: str = Field(
        default="",
        description="`[broker/][listener=]host:port`, comma-separated, that clients of each listener are told: "
        "`default` (plain text), `tls`, those of `listeners`, and `internal` for other servers; with a broker's name "
        "in front only by that one; empty = what is bound.",
    )
    shared_listeners: str = Field(
        default="",
        description="Names of listeners, comma-separated, whose `advertise` is one address for all brokers: any of "
        "them may answer there.",
    )
    nameservers: str = Field(
        default="",
        description="`host:port`, with evenqs:// in front for TLS, comma-separated; empty = this broker is the whole "
        "cluster.",
    )
    rebalancer: str = Field(
        default="",
        description="`host:port` of the rebalancers, comma-separated, of which one leads; empty = brokers compute for "
        "themselves.",
    )
    zone: str = Field(
        default="",
        max_length=255,
        description="Zone that this broker is in, for strategies that keep reading near; empty = the rebalancer asks "
        "Kubernetes.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Least severe lines to log."
    )
    drain_ms: int = Field(
        default=10_000,
        ge=0,
        le=600_000,
        description="Longest time at shutdown for members to finish, commit and let go of their queues, and for "
        "running calls, ms; longer than the drain_ms of members, shorter than the platform's grace. 0 = for nobody.",
    )
    store: StoreSettings = Field(default=StoreSettings(), description="The commit log.")
    staging: StagingSettings = Field(default=StagingSettings(), description="Rows that wait for a decision.")
    auth: AuthSettings = Field(default=AuthSettings(), description="Who may call.")
    replication: ReplicationSettings = Field(default=ReplicationSettings(), description="Copies on other machines.")

    auto_create_topics: bool = Field(
        default=True, description="Create unknown topics, on every broker, by their first message."
    )
    auto_create_groups: bool = Field(default=True, description="Create unknown groups at first use.")
    default_queues: int = Field(
        default=4, ge=1, le=4096, description="Queues per broker of a topic made without a number (RT-6)."
    )
    priority_levels: int = Field(
        default=10,
        ge=1,
        le=4096,
        description="Levels, each a queue per broker, of a PRIORITY topic made without a number.",
    )
    lite_topics_max: int = Field(default=20_000, ge=1, le=1_000_000, description="Most lite topics of this broker.")
    lite_topics_per_topic_max: int = Field(
        default=10_000, ge=1, le=1_000_000, description="Most lite topics of one topic on this broker."
    )
    lite_topic_size_max: int = Field(default=64, ge=1, le=127, description="Most characters of a lite topic's name.")
    lite_topic_idle_ms: int = Field(
        default=72 * 3_600_000,
        ge=1_000,
        description="So long a lite topic stays, ms (72 h), to which nothing is sent and nobody is subscribed.",
    )
    lite_subscriptions_max: int = Field(
        default=2_000, ge=1, le=100_000, description="Most lite topics of one topic that one client is subscribed to."
    )
    lite_subscriptions_all_max: int = Field(
        default=1_000_000, ge=1, description="Most lite subscriptions of all clients."
    )
    lite_subscription_ms: int = Field(
        default=90_000,
        ge=1_000,
        description="So long after its client told it last a lite subscription counts, ms; clients tell every 30 s.",
    )
    topics_max: int = Field(default=10_000, ge=1, description="Most topics of this broker.")
    groups_max: int = Field(default=10_000, ge=1, description="Most consumer groups of this broker.")
    body_bytes_max: int = Field(default=BODY_BYTES_MAX, ge=1, le=64 << 20, description="Largest message body, bytes.")
    properties_max: int = Field(default=128, ge=1, description="Most user properties of one message.")
    properties_bytes_max: int = Field(
        default=16 << 10, ge=1, description="Most bytes of one message's user properties."
    )
    send_batch_max: int = Field(default=1024, ge=1, description="Most messages in one SendMessage.")
    message_group_home: Literal["cluster", "broker"] = Field(
        default="cluster",
        description="cluster = SendMessage of a message group goes to one broker for the whole cluster, so that "
        "producers of all SDKs share one order; broker = it stays at the broker that its producer chose.",
    )
    duplicates_window_ms: int = Field(
        default=60_000,
        ge=0,
        le=3_600_000,
        description="So long a message that its producer sends again, with the same id, is answered and not stored "
        "again, ms; 0 = off.",
    )
    duplicates_max: int = Field(
        default=100_000,
        ge=1,
        le=10_000_000,
        description="Most message ids remembered for that, about 200 bytes each; the oldest go first.",
    )
    default_group_max_attempts: int = Field(
        default=17, ge=1, le=1000, description="Deliveries before the dead-letter topic (RD-3)."
    )
    default_start_from: Literal["LAST", "FIRST"] = Field(
        default="LAST", description="Where a new group begins to read."
    )

    delay_max_ms: int = Field(
        default=40 * 86_400_000, ge=1, description="Longest time a message may be delayed, ms (40 days)."
    )
    delay_levels: str = Field(
        default=CLASSIC_TEXT,
        description="Delays of the levels 1, 2 ... by name, as in `1s 5s 1m 2h`; retries wait from level 3 on (RD-9).",
    )

    transaction_first_check_ms: int = Field(
        default=6_000, ge=100, le=3_600_000, description="Age of an open transaction at its first check, ms."
    )
    transaction_check_interval_ms: int = Field(
        default=30_000, ge=100, le=3_600_000, description="Time between two checks of an open transaction, ms."
    )
    transaction_checks_max: int = Field(
        default=15, ge=1, le=1_000, description="Checks of an open transaction before it is given up."
    )
    transaction_age_max_ms: int = Field(
        default=3 * 86_400_000, ge=1_000, description="Age at which an open transaction is given up, ms (3 days)."
    )
    transactions_max: int = Field(default=100_000, ge=1, description="Most open transactions of this broker.")
    transaction_decisions_max: int = Field(
        default=100_000, ge=1, description="Decided transactions remembered, so that a repeated decision is told apart."
    )
    stream_commands_max: int = Field(
        default=256, ge=1, description="Most commands that wait for one client's telemetry stream."
    )

    receive_batch_max: int = Field(
        default=32, ge=1, le=1024, description="Most messages in one ReceiveMessage; more is cut silently."
    )
    receive_bytes_max: int = Field(default=8 << 20, ge=1 << 10, description="Most message bytes in one ReceiveMessage.")
    poll_default_ms: int = Field(
        default=5_000,
        ge=1,
        le=15_000,
        description="Long poll of push consumers, and of a receive that names none, ms. An idle push consumer of most "
        "SDKs waits for its poll before it ends.",
    )
    poll_max_ms: int = Field(default=60_000, ge=1, description="Longest poll, ms.")
    poll_margin_ms: int = Field(
        default=500, ge=0, description="A poll ends this long before the caller's deadline, ms."
    )
    polls_max: int = Field(
        default=20_000, ge=1, description="Most parked polls; over it polls are answered empty at once."
    )
    calls_max: int = Field(
        default=50_000,
        ge=1,
        description="Most calls at once, parked polls and open streams among them; more than two for each client.",
    )
    error_hold_ms: int = Field(
        default=1_000, ge=0, le=10_000, description="Delay of an error answer to a push consumer, ms."
    )
    invisible_default_ms: int = Field(default=60_000, ge=1, description="Invisible time when the request has none, ms.")
    invisible_max_ms: int = Field(default=43_200_000, ge=1, description="Longest invisible time, ms (12 h).")
    renew_max_ms: int = Field(
        default=86_400_000, ge=1, description="Longest delivery of a push consumer that stays alive, ms."
    )
    attempt_keep_ms: int = Field(
        default=20_000,
        ge=0,
        description="So long a lost answer is given again to the client that asks with the same attempt id, ms.",
    )
    attempts_max: int = Field(default=20_000, ge=1, description="Most answers remembered for that.")
    inflight_max: int = Field(
        default=20_000,
        ge=1,
        description="Most unfinished deliveries of one group on one queue; about 200 bytes of memory each.",
    )
    client_silence_ms: int = Field(default=120_000, ge=1, description="Silence after which a v2 client is dropped, ms.")
    client_grace_ms: int = Field(
        default=3_000, ge=0, description="Time a v2 client may be without its telemetry stream and any call, ms."
    )
    client_lost_ms: int = Field(
        default=13_000,
        ge=0,
        description="Silence after which what such a client holds is delivered again, ms; above its heartbeat's 10 s.",
    )
    clients_max: int = Field(default=100_000, ge=1, description="Most v2 clients remembered.")

    session_beat_interval_ms: int = Field(default=3_000, ge=10, description="Beat interval told to evenq members, ms.")
    session_timeout_ms: int = Field(
        default=10_000, ge=50, description="Silence after which an evenq member is dropped, ms."
    )
    session_grace_ms: int = Field(default=1_000, ge=0, description="Time a member may be without its stream, ms.")
    revoke_ms: int = Field(
        default=90_000,
        ge=100,
        description="Time after which a queue that a newer decision gives to a waiting member is taken from its holder,"
        " ms; above the longest drain_ms of members.",
    )
    register_interval_ms: int = Field(default=10_000, ge=10, description="Beat interval towards each nameserver, ms.")
    route_settle_ms: int = Field(
        default=2_000,
        ge=0,
        le=60_000,
        description="How long questions for routes wait after a restart of this broker and the first word of a "
        "nameserver, while that has just started too and has not heard from all brokers, ms; below the 3 s that "
        "clients wait for an answer; 0 = not at all.",
    )
    peer_timeout_ms: int = Field(
        default=2_500, ge=10, description="Deadline of calls to other brokers, nameservers and rebalancer, ms."
    )

    stuck_ms: int = Field(
        default=60_000,
        ge=1_000,
        description="Time after which a queue whose oldest message stays unfinished is told as stuck, ms.",
    )
    trace_bytes: int = Field(
        default=4 << 20,
        ge=0,
        le=1 << 30,
        description="Memory for what `evenq message trace ID` tells of the past; 0 = off.",
    )
    client_answer_ms: int = Field(
        default=4_000,
        ge=1,
        le=5_000,
        description="Longest wait for a client that is asked for its stack or a verdict, ms.",
    )
    backup_hold_ms: int = Field(
        default=6 * 3_600_000,
        ge=1_000,
        le=7 * 86_400_000,
        description="Longest time that a running backup keeps retention from deleting log files that it has not read, "
        "ms (6 h); it ends earlier when the disk is full.",
    )

    @property
    def shared_listener_names(self) -> frozenset[str]:
        """The names in `shared_listeners`."""
        return frozenset(filter(None, (name.strip() for name in self.shared_listeners.split(","))))

    @model_validator(mode="after")
    def _check(self) -> Self:
        problem = broker_problem(self.broker_name)
        if problem:
            raise ValueError(problem)
        try:
            DelayLevels.parse(self.delay_levels)
        except BadRequest as error:
            raise ValueError(error.message) from error
        try:
            spots = parse_listeners(self.listeners)
            check_shared(self.shared_listener_names, spots)
        except SettingsError as error:
            raise ValueError(error.message) from error
        problem = self.replication.problem(has_folder=self.store.path is not None)
        if problem:
            raise ValueError(problem)
        if self.replication.forward_clients and 0 in {self.port, self.tls.port, *(spot.port for spot in spots)}:
            raise ValueError(
                "replication.forward_clients: port 0 is another one at each copy; give port, tls.port and listeners "
                "the same numbers at all copies"
            )
        if self.tls.certificate is None and any(spot.listener.tls for spot in spots):
            raise ValueError("listeners has one with TLS, without tls.certificate and tls.key; give both PEM files")
        if self.port < 0 and self.tls.port < 0 and not spots:
            raise ValueError("port and tls.port are both -1, so nothing would be served; give one of them")
        requests_max = self.front_limits.connection_request_bytes_max
        if self.front == "http2" and self.body_bytes_max > requests_max:
            raise ValueError(
                f"body_bytes_max = {self.body_bytes_max} is above front_limits.connection_request_bytes_max = "
                f"{requests_max}: a message could never be complete; lower the first or raise the second"
            )
        return self
