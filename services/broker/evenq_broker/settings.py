"""Every setting of the broker, with its unit, bound and meaning; flag over environment over default.

`evenq.serving` loads it (prefix `EVENQ_BROKER_`), refuses what it does not know, and makes the reference page from it.
Nothing else in the program reads the environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, Field, model_validator

from evenq.errors import BadRequest, SettingsError
from evenq.model.delay_levels import CLASSIC_TEXT, DelayLevels
from evenq.model.names import broker_problem
from evenq.serving.auth import AuthSettings
from evenq.serving.front_limits import FrontLimits
from evenq.serving.tls import TlsSettings
from evenq.store import StoreOptions
from evenq_broker.core.listeners import check_shared, parse_listeners

__all__ = ["BODY_BYTES_MAX", "Settings", "StagingSettings", "StoreSettings"]

BODY_BYTES_MAX = (4 << 20) - (64 << 10)  # wire contract 2.5: Node, C# and Rust read at most 4 MiB with properties


_STORE = StoreOptions()
"""The store says its defaults once; a server of its own has no others."""


class StoreSettings(BaseModel, frozen=True, extra="forbid"):
    """The commit log and its files."""

    path: Path | None = Field(default=None, description="Data folder; empty = keep everything in memory.")
    segment_bytes: int | None = Field(
        default=_STORE.segment_bytes,
        ge=1 << 16,
        le=1 << 31,
        description="Size of one commit-log file, bytes; empty = by the volume: 1/16 of it, 16 MiB to 1 GiB. A folder "
        "keeps the size that it was made with.",
    )
    flush: Literal["async", "sync"] = Field(
        default=_STORE.flush.value, description="sync = one fsync before each acknowledgement (grouped)."
    )
    flush_interval_ms: int = Field(
        default=_STORE.flush_interval_ms, ge=1, le=60_000, description="Async flush: longest time between fsyncs, ms."
    )
    flush_bytes: int = Field(default=_STORE.flush_bytes, ge=1, description="Async flush: most bytes between fsyncs.")
    cache_bytes: int = Field(
        default=_STORE.cache_bytes, ge=0, description="Newest part of the log kept in memory for readers, bytes."
    )
    disk_free_min_bytes: int | None = Field(
        default=_STORE.disk_free_min_bytes,
        ge=0,
        description="Refuse messages when less is free on the disk, bytes; empty = 1/20 of the volume, at most 1 GiB.",
    )
    disk_used_max_ratio: float = Field(
        default=_STORE.disk_used_max_ratio, gt=0, le=1, description="Refuse messages when the disk is fuller than this."
    )
    snapshot_log_bytes: int = Field(
        default=_STORE.snapshot_log_bytes,
        ge=1 << 10,
        description="Growth of the log between two snapshots, bytes: bounds a restart.",
    )
    snapshot_interval_ms: int = Field(
        default=_STORE.snapshot_interval_ms,
        ge=1_000,
        description="Longest time between two snapshots of a log that grows, ms.",
    )
    message_index: bool = Field(default=True, description="Keep an index by key and message id.")
    retention_ms: int = Field(
        default=_STORE.retention_ms, ge=0, description="How long messages are kept, ms (72 h); 0 = for ever."
    )
    retention_hour: int = Field(
        default=_STORE.retention_hour,
        ge=-1,
        le=23,
        description="Hour of the day, UTC, in which expired files are deleted; -1 = any.",
    )
    disk_clean_ratio: float = Field(
        default=_STORE.disk_clean_ratio,
        gt=0,
        le=1,
        description="Delete expired files at any hour when the disk is fuller than this.",
    )
    disk_force_ratio: float = Field(
        default=_STORE.disk_force_ratio,
        gt=0,
        le=1,
        description="Delete the oldest files, read or not, when the disk is fuller than this; 1 = never.",
    )
    memory_bytes_max: int = Field(
        default=_STORE.memory_bytes_max, ge=1 << 20, description="Without a path: refuse messages over it, bytes."
    )


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


class Settings(BaseModel, frozen=True, extra="forbid"):
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
        description="Further doors, `name=host:port`, or `name+tls=host:port` for TLS, comma-separated; a client is "
        "answered with the addresses of the door it came through.",
    )
    metrics_port: int = Field(default=5557, ge=-1, le=65_535, description="HTTP port of metrics and health; -1 = off.")
    advertise: str = Field(
        default="",
        description="`[broker/][listener=]host:port`, comma-separated, that clients of each door are told: `default` "
        "(plain text), `tls`, those of `listeners`, and `internal` for other servers; with a broker's name in front "
        "only by that one; empty = what is bound.",
    )
    shared_listeners: str = Field(
        default="",
        description="Names of doors, comma-separated, whose `advertise` is one address for all brokers: any of them "
        "may answer there.",
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

    @property
    def shared_door_names(self) -> frozenset[str]:
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
            check_shared(self.shared_door_names, spots)
        except SettingsError as error:
            raise ValueError(error.message) from error
        if self.tls.certificate is None and any(spot.listener.tls for spot in spots):
            raise ValueError("listeners opens a TLS door without tls.certificate and tls.key; give both PEM files")
        if self.port < 0 and self.tls.port < 0 and not spots:
            raise ValueError("port and tls.port are both -1, so nothing would be served; give one of them")
        requests_max = self.front_limits.connection_request_bytes_max
        if self.front == "http2" and self.body_bytes_max > requests_max:
            raise ValueError(
                f"body_bytes_max = {self.body_bytes_max} is above front_limits.connection_request_bytes_max = "
                f"{requests_max}: a message could never be complete; lower the first or raise the second"
            )
        return self
