"""All settings of the broker, with unit, bounds and meaning. A flag has priority over the environment.

`evenq.serving` loads them (prefix `EVENQ_BROKER_`), rejects unknown names, and generates the reference page.
Nothing else in the program reads the environment.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, Field, model_validator

from evenq.errors import BadRequest, SettingsError
from evenq.model.delay_levels import CLASSIC_TEXT, DelayLevels
from evenq.model.names import broker_problem
from evenq.serving.auth.server_auth import AuthSettings
from evenq.serving.front_limits import FrontLimits
from evenq.serving.tls import TlsSettings
from evenq_broker.core.cluster.listeners import check_shared, parse_listeners
from evenq_broker.replication_settings import ReplicationSettings
from evenq_broker.store_settings import StagingSettings, StoreSettings

__all__ = [
    "BODY_BYTES_MAX",
    "BrokerSettings",
    "ReplicationSettings",
    "StagingSettings",
    "StoreSettings",
    "TracingSettings",
]

BODY_BYTES_MAX = 4 << 20  # the limit of RocketMQ's proxy


class TracingSettings(BaseModel, frozen=True, extra="forbid"):
    """Settings of the spans that the broker exports, for messages that carry a sampled trace context."""

    otlp_endpoint: str = Field(
        default="",
        pattern=r"^$|^https?://[^/\s]+:\d{1,5}/?$",
        description="Collector of OpenTelemetry that receives spans of messages over OTLP/gRPC: `http://HOST:4317`, or "
        "`https://` for TLS. Needs the extra `otlp`. Headers, certificates and compression are set by the "
        "`OTEL_EXPORTER_OTLP_*` variables of OpenTelemetry. Empty = no spans.",
    )
    queue_spans: int = Field(
        default=20_000,
        ge=1,
        le=1_000_000,
        description="Most spans that wait for the collector; further ones are dropped and counted.",
    )
    queue_bytes: int = Field(
        default=32 << 20, ge=1 << 10, le=1 << 30, description="Most memory of the spans that wait for the collector."
    )
    timeout_ms: int = Field(
        default=10_000,
        ge=100,
        le=60_000,
        description="Longest time for one call to the collector with its retries, ms; then its spans are lost.",
    )
    flush_ms: int = Field(
        default=2_000, ge=0, le=60_000, description="Longest time at shutdown to send waiting spans, ms."
    )


class BrokerSettings(BaseModel, frozen=True, extra="forbid"):
    """Settings of one broker."""

    broker_name: str = Field(
        default="broker-a",
        description="Name of the broker, independent of its address. All copies of a broker have the same name.",
    )
    cluster: str = Field(
        default="evenq", min_length=1, max_length=127, description="Name of the cluster that the broker belongs to."
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(default=8081, ge=-1, le=65_535, description="gRPC port without TLS; 0 = any free port, -1 = off.")
    front: Literal["grpcio", "http2"] = Field(
        default="http2", description="gRPC server: `http2` = evenq's own, `grpcio` = the one of the grpcio library."
    )
    front_limits: FrontLimits = Field(
        default=FrontLimits(), description="Limits on the resources of the server that clients can occupy."
    )
    tls: TlsSettings = Field(default=TlsSettings(), description="Encryption.")
    listeners: str = Field(
        default="",
        description="More addresses to listen on, comma-separated: `name=host:port`, or `name+tls=host:port` with "
        "TLS. A client receives the addresses of the listener that it connected to.",
    )
    metrics_port: int = Field(default=5557, ge=-1, le=65_535, description="HTTP port of metrics and health; -1 = off.")
    advertise: str = Field(
        default="",
        description="Addresses that clients receive, as `[broker/][listener=]host:port`, comma-separated. Listeners "
        "are `default` (without TLS), `tls`, the names in `listeners`, `internal` for other servers, and `any-copy`. "
        "At an `any-copy` address any copy of this broker's group answers (`replication.forward_clients`); it is for "
        "clients that do not follow the leader. An entry with a broker's name applies to that broker only. Empty = "
        "the addresses listened on.",
    )
    shared_listeners: str = Field(
        default="",
        description="Listeners, comma-separated, whose advertised address is the same for all brokers, as behind a "
        "load balancer. Any broker may answer there.",
    )
    nameservers: str = Field(
        default="",
        description="Addresses of the nameservers, `host:port`, comma-separated, with the prefix evenqs:// for TLS; "
        "empty = this broker is the whole cluster.",
    )
    rebalancer: str = Field(
        default="",
        description="Addresses of the rebalancers, `host:port`, comma-separated; one of them leads. Empty = brokers "
        "compute assignments themselves.",
    )
    zone: str = Field(
        default="",
        max_length=255,
        description="Zone of this broker, for strategies that prefer readers in the same zone; empty = the rebalancer "
        "reads it from Kubernetes.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Least severe level that is logged."
    )
    drain_ms: int = Field(
        default=10_000,
        ge=0,
        le=600_000,
        description="Longest time at shutdown in which running calls end and members finish, commit and release their "
        "queues, ms. Set it above the drain_ms of members and below the grace period of the platform. 0 = do not "
        "wait.",
    )
    store: StoreSettings = Field(default=StoreSettings(), description="The commit log.")
    staging: StagingSettings = Field(
        default=StagingSettings(), description="Rows that wait for the decision of their batch."
    )
    auth: AuthSettings = Field(default=AuthSettings(), description="Authentication of callers and their permissions.")
    tracing: TracingSettings = Field(
        default=TracingSettings(), description="Spans of messages for a collector of OpenTelemetry."
    )
    replication: ReplicationSettings = Field(default=ReplicationSettings(), description="Copies on other machines.")

    auto_create_topics: bool = Field(
        default=True, description="Create an unknown topic on every broker when its first message arrives."
    )
    auto_create_groups: bool = Field(default=True, description="Create an unknown group when it is first used.")
    default_queues: int = Field(
        default=8,
        ge=1,
        le=4096,
        description="Queues on each broker of a topic that is created without a number of queues.",
    )
    priority_levels: int = Field(
        default=10,
        ge=1,
        le=4096,
        description="Levels of a PRIORITY topic that is created without a number of levels. Each level is a queue on "
        "each broker.",
    )
    lite_topics_max: int = Field(
        default=20_000,
        ge=1,
        le=1_000_000,
        description="Most lite topics on this broker; each user has a share of them.",
    )
    lite_topics_per_topic_max: int = Field(
        default=10_000, ge=1, le=1_000_000, description="Most lite topics of one topic on this broker."
    )
    schedules_max: int = Field(
        default=1_000,
        ge=1,
        le=10_000,
        description="Most schedules of recurring messages on this broker; each user has a share of them. Snapshots "
        "contain their messages, up to 16 KiB each.",
    )
    lite_topic_size_max: int = Field(default=64, ge=1, le=127, description="Longest name of a lite topic, characters.")
    lite_topic_idle_ms: int = Field(
        default=72 * 3_600_000,
        ge=1_000,
        description="A lite topic is deleted after this time without messages and without subscribers, ms (72 h).",
    )
    lite_subscriptions_max: int = Field(
        default=2_000, ge=1, le=100_000, description="Most lite topics of one topic to which one client is subscribed."
    )
    lite_subscriptions_all_max: int = Field(
        default=1_000_000, ge=1, description="Most lite subscriptions of all clients; each user has a share of them."
    )
    lite_subscription_ms: int = Field(
        default=90_000,
        ge=1_000,
        description="A lite subscription ends when its client has not repeated it for this time, ms. Clients repeat "
        "it every 30 s.",
    )
    topics_max: int = Field(
        default=10_000, ge=1, description="Most topics on this broker; each user has a share of them."
    )
    groups_max: int = Field(
        default=10_000, ge=1, description="Most consumer groups on this broker; each user has a share of them."
    )
    body_bytes_max: int = Field(
        default=BODY_BYTES_MAX,
        ge=1,
        le=64 << 20,
        description="Largest message body, bytes. The SDKs of Node.js, C# and Rust receive at most 4 MiB including "
        "properties. Lower it to 4128768 (64 KiB less) if such consumers read large messages.",
    )
    properties_max: int = Field(default=128, ge=1, description="Most user properties of one message.")
    properties_bytes_max: int = Field(
        default=16 << 10, ge=1, description="Largest size of one message's tag, keys and user properties, bytes."
    )
    send_batch_max: int = Field(default=1024, ge=1, description="Most messages in one SendMessage.")
    message_group_home: Literal["cluster", "broker"] = Field(
        default="cluster",
        description="Which broker stores the messages of a message group. cluster = one broker of the cluster, so "
        "that producers of all SDKs share one order. broker = the one that the producer chose.",
    )
    message_group_away_ms: int = Field(
        default=300_000,
        ge=0,
        le=86_400_000,
        description="How long an unreachable broker stays the home of its message groups, ms. Until then, sends to "
        "these groups fail, which keeps their order. Afterwards other brokers store them, and messages that the "
        "unreachable broker still holds are delivered late. 0 = immediately.",
    )
    body_digest: Literal["crc32", "md5"] = Field(
        default="crc32",
        description="Digest that the broker stores with a message and delivers if the sender gave none. crc32 = CRC32, "
        "but MD5 for one body in 16, whose CRC32 starts with a zero, which official SDKs write in different ways; "
        "clients of Node.js receive MD5. md5 = MD5 alone, for other clients that cannot compare a CRC32, and before a "
        "downgrade to 0.2; costs more CPU.",
    )
    duplicates_window_ms: int = Field(
        default=60_000,
        ge=0,
        le=3_600_000,
        description="A message that its producer sends again with the same id within this time is acknowledged but "
        "not stored again, ms; 0 = off.",
    )
    duplicates_max: int = Field(
        default=100_000,
        ge=1,
        le=10_000_000,
        description="Most message ids that are remembered for `duplicates_window_ms`, about 200 bytes each; the "
        "oldest are dropped first.",
    )
    default_group_max_attempts: int = Field(
        default=17,
        ge=1,
        le=1000,
        description="Deliveries of a message before it moves to the dead-letter topic, for groups without a number of "
        "their own (RD-3).",
    )
    default_start_from: Literal["LAST", "FIRST"] = Field(
        default="LAST",
        description="Where a new group starts to read: LAST = new messages only, FIRST = the oldest message.",
    )
    young_from_first: bool = Field(
        default=True,
        description="A new group of an official SDK with start LAST reads a queue from its first message if the "
        "broker still has that message in memory. RocketMQ does the same. false = it reads only messages that are "
        "sent after the start of its first consumer (the first receive of a client without settings).",
    )

    delay_max_ms: int = Field(default=40 * 86_400_000, ge=1, description="Longest delay of a message, ms (40 days).")
    delay_levels: str = Field(
        default=CLASSIC_TEXT,
        description="Delays of the levels 1, 2, ..., such as `1s 5s 1m 2h`. Retries start with level 3 (RD-9).",
    )

    transaction_first_check_ms: int = Field(
        default=6_000,
        ge=100,
        le=3_600_000,
        description="Age of an open transaction at which the broker first requests the decision from its producer, ms.",
    )
    transaction_check_interval_ms: int = Field(
        default=30_000, ge=100, le=3_600_000, description="Time between two checks of an open transaction, ms."
    )
    transaction_checks_max: int = Field(
        default=15, ge=1, le=1_000, description="An open transaction is given up after this number of checks."
    )
    transaction_age_max_ms: int = Field(
        default=3 * 86_400_000, ge=1_000, description="An open transaction is given up at this age, ms (3 days)."
    )
    transactions_max: int = Field(
        default=100_000, ge=1, description="Most open transactions on this broker; each user has a share of them."
    )
    transaction_decisions_max: int = Field(
        default=100_000,
        ge=1,
        description="Most decided transactions that are remembered, so that a repeated decision is recognized.",
    )
    stream_commands_max: int = Field(
        default=256, ge=1, description="Most commands that wait for the telemetry stream of one client."
    )

    receive_batch_max: int = Field(
        default=32,
        ge=1,
        le=1024,
        description="Most messages in one ReceiveMessage; a larger requested number is reduced to this limit.",
    )
    receive_bytes_max: int = Field(
        default=8 << 20, ge=1 << 10, description="Most bytes of messages in one ReceiveMessage."
    )
    poll_default_ms: int = Field(
        default=5_000,
        ge=1,
        le=15_000,
        description="Length of the long poll of push consumers, and of a receive without a length, ms. An idle push "
        "consumer of most SDKs needs up to this time to stop.",
    )
    poll_max_ms: int = Field(default=60_000, ge=1, description="Longest long poll, ms.")
    poll_margin_ms: int = Field(
        default=500, ge=0, description="A long poll ends this long before its caller's deadline, ms."
    )
    polls_max: int = Field(
        default=20_000,
        ge=1,
        description="Most waiting long polls; each user has a share of them. Further polls are answered immediately, "
        "without messages.",
    )
    calls_max: int = Field(
        default=50_000,
        ge=1,
        description="Most calls at the same time, including waiting long polls and open streams. Allow more than two "
        "for each client.",
    )
    error_hold_ms: int = Field(
        default=1_000,
        ge=0,
        le=10_000,
        description="Delay before a push consumer receives an error, ms, so that it does not retry in a tight loop.",
    )
    invisible_default_ms: int = Field(
        default=60_000, ge=1, description="Invisible duration of a receive that requests none, ms."
    )
    invisible_max_ms: int = Field(default=43_200_000, ge=1, description="Longest invisible duration, ms (12 h).")
    renew_max_ms: int = Field(
        default=86_400_000,
        ge=1,
        description="Longest time that a living push consumer may work on one message, ms (24 h). A message that was "
        "delivered in the last `attempt_keep_ms` before the broker stopped may have been lost on the way: it is "
        "redelivered `invisible_default_ms` after the next start.",
    )
    attempt_keep_ms: int = Field(
        default=20_000,
        ge=0,
        description="A client that repeats a receive with the same attempt id within this time receives the same "
        "messages again, ms.",
    )
    attempts_max: int = Field(
        default=20_000, ge=1, description="Most answers that are remembered for `attempt_keep_ms`."
    )
    inflight_max: int = Field(
        default=20_000,
        ge=1,
        description="Most unfinished deliveries of one group on one queue, about 200 bytes of memory each. At this "
        "limit the group receives nothing from the queue until some are finished.",
    )
    client_silence_ms: int = Field(
        default=120_000,
        ge=1,
        description="A v2 client without calls for this time is removed, ms, unless another broker reports that it is "
        "alive.",
    )
    client_grace_ms: int = Field(
        default=3_000,
        ge=0,
        description="A v2 client whose telemetry stream ended counts as lost after this time without a new stream and "
        "without calls, ms.",
    )
    client_lost_ms: int = Field(
        default=13_000,
        ge=0,
        description="A v2 client without a telemetry stream and without calls for this time is removed, ms: its "
        "messages are redelivered, and its queues go to other members. It stays if another broker reports that it is "
        "alive. Set it above the 10 s between two heartbeats. Clients of the Rust SDK, with a heartbeat every 30 s, "
        "have 20 s more. A stream of the Java SDK whose client makes no calls for this time is closed.",
    )
    clients_max: int = Field(default=100_000, ge=1, description="Most v2 clients that are remembered.")

    session_beat_interval_ms: int = Field(
        default=3_000, ge=10, description="Interval between the heartbeats of evenq members, ms."
    )
    session_timeout_ms: int = Field(
        default=10_000,
        ge=50,
        description="An evenq member without a heartbeat for this time is removed, and its queues go to other "
        "members, ms.",
    )
    session_grace_ms: int = Field(
        default=1_000,
        ge=0,
        description="An evenq member is removed when it has been without its stream for this time, ms.",
    )
    revoke_ms: int = Field(
        default=90_000,
        ge=100,
        description="Time after which a queue that a newer assignment gives to a waiting member is taken from its "
        "holder, ms. Ordered members release a queue after the same time even if their listener still runs. Set it "
        "above the longest listener call and the longest drain_ms of members.",
    )
    register_interval_ms: int = Field(
        default=10_000,
        ge=10,
        description="Longest interval between heartbeats to a nameserver, ms; a nameserver may request a shorter one.",
    )
    route_settle_ms: int = Field(
        default=2_000,
        ge=0,
        le=60_000,
        description="Longest time after a restart of this broker that calls for routes wait for a complete view of "
        "the cluster, ms. The view is complete when a nameserver has heartbeats of all brokers, or of all that were "
        "there before. Set it below the 3 s that clients wait for an answer. 0 = do not wait.",
    )
    peer_timeout_ms: int = Field(
        default=2_500, ge=10, description="Deadline of calls to other brokers, nameservers and the rebalancer, ms."
    )

    stuck_ms: int = Field(
        default=60_000,
        ge=1_000,
        description="A queue is reported as stuck when its oldest message stays unfinished for this time, ms.",
    )
    trace_bytes: int = Field(
        default=4 << 20,
        ge=0,
        le=1 << 30,
        description="Memory for the history that `evenq message trace ID` shows, and of which spans are made, bytes; "
        "0 = off.",
    )
    client_answer_ms: int = Field(
        default=4_000,
        ge=1,
        le=5_000,
        description="Longest wait for the answer of a client to a request for its stack or for the check of a "
        "message, ms.",
    )
    backup_hold_ms: int = Field(
        default=6 * 3_600_000,
        ge=1_000,
        le=7 * 86_400_000,
        description="Longest time for which a running backup protects log files that it has not read from retention, "
        "ms (6 h). The protection ends earlier when the disk is full.",
    )

    @property
    def shared_listener_names(self) -> frozenset[str]:
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
        ports = {"port": self.port, "tls.port": self.tls.port, "metrics_port": self.metrics_port}
        problem = self.replication.problem(has_folder=self.store.path is not None) or self.replication.port_problem(
            host=self.host, ports=ports
        )
        if problem:
            raise ValueError(problem)
        if self.replication.forward_clients and 0 in {self.port, self.tls.port, *(spot.port for spot in spots)}:
            raise ValueError(
                "replication.forward_clients needs the same ports at all copies, and port 0 differs at each; set port, "
                "tls.port and listeners to fixed ports"
            )
        if self.tracing.otlp_endpoint and not self.trace_bytes:
            raise ValueError(
                "tracing.otlp_endpoint needs the history of deliveries, and trace_bytes is 0; set it to 4194304 (4 MiB)"
            )
        if self.tls.certificate is None and any(spot.listener.tls for spot in spots):
            raise ValueError(
                "listeners has one with TLS, but tls.certificate and tls.key are not set; set both PEM files"
            )
        if self.port < 0 and self.tls.port < 0 and not spots:
            raise ValueError("port and tls.port are both -1, so no client could connect; set one of them")
        requests_max = self.front_limits.connection_request_bytes_max
        if self.front == "http2" and self.body_bytes_max > requests_max:
            raise ValueError(
                f"body_bytes_max = {self.body_bytes_max} is above front_limits.connection_request_bytes_max = "
                f"{requests_max}: a message of that size could never arrive; lower the first or raise the second"
            )
        return self
