"""Options that few programs need, as plain dataclasses. The usual ones are arguments of the clients themselves.

Durations are ms, sizes are bytes. Each field has its bounds; a value outside of them raises BadRequest when the object
is created.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from evenq.errors import BadRequest

LABEL_MAX = 255
CAPACITY_MAX = 1_000_000.0


def _check(options: object, bounds: dict[str, tuple[int, int]]) -> None:
    for item in fields(options):  # type: ignore[arg-type]  # only called with the dataclasses below
        value = getattr(options, item.name)
        low, high = bounds.get(item.name, (None, None))
        if low is not None and high is not None and not low <= value <= high:
            raise BadRequest(f"{type(options).__name__}.{item.name} is {value}, the range is {low} to {high}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """Options of a producer."""

    linger_ms: int = 5
    """Longest time that `send_async` waits to fill a batch; `send` does not wait. 0 .. 1,000."""
    batch_bytes: int = 512 << 10
    """A batch is sent when it holds this many bytes. 1 .. 4 MiB."""
    batch_messages: int = 1_000
    """A batch is sent when it holds this many messages. 1 .. 10,000."""
    max_attempts: int = 3
    """Attempts per message, all with the same message id. 1 .. 1,000. PR-2, wire contract 3.7."""
    retry_first_ms: int = 20
    """Pause before a retry at the broker that just failed; doubles each time. None before others. 1 .. 60,000."""
    retry_max_ms: int = 1_000
    """Longest such pause. 1 .. 60,000."""
    timeout_ms: int = 3_000
    """Deadline of one attempt. 100 .. 60,000."""
    send_timeout_ms: int = 30_000
    """Longest time from the call to its result, over all attempts and pauses; then RequestTimeout, up to a second or a
    twentieth of this time late. 100 .. 3,600,000."""
    pending_messages: int = 20_000
    """Messages accepted and not yet answered; above this, sending waits. 1 .. 1,000,000."""
    pending_bytes: int = 64 << 20
    """The same in bytes of encoded messages. 1 KiB .. 1 GiB. A single larger message is still sent, alone."""
    block_ms: int = 60_000
    """Longest such wait; then TooManyRequests. 0 = raise immediately. 0 .. 3,600,000."""
    compression: str = ""
    """Method by which bodies are compressed on their way to the broker, which decompresses them: `zlib`, `lz4` or
    `zstd`; empty: none. lz4 and zstd need `evenq[compression]` and an evenq broker."""
    compress_from_bytes: int = 4 << 10
    """Smaller bodies are not compressed. 1 .. 64 MiB. RocketMQ 4.9 producer."""
    latency_faults: bool = False
    """True: brokers that answer slowly or fail are avoided for a while, longer each time; the first retry goes to
    another queue of the same broker (PR-4, PR-5). False: a retry goes to another broker (PR-2). XO-14."""
    ordered_moves: bool = False
    """False: keys keep their queues while a broker is away, and sends to it wait and fail (PR-10). True: they follow
    the route immediately, and their order is lost; message groups stay for the broker's `message_group_away_ms`."""
    pending_requests: int = 1_000
    """Requests that may wait for replies at the same time; above this, TooManyRequests. 1 .. 100,000."""
    reply_topic: str = "evenq-replies"
    """The topic that replies to `request` are sent to."""
    route_refresh_ms: int = 30_000
    """Age at which a route is fetched again. 100 .. 600,000. XO-13."""

    def __post_init__(self) -> None:
        _check(
            self,
            {
                "linger_ms": (0, 1_000),
                "batch_bytes": (1, 4 << 20),
                "batch_messages": (1, 10_000),
                "max_attempts": (1, 1_000),
                "retry_first_ms": (1, 60_000),
                "retry_max_ms": (1, 60_000),
                "timeout_ms": (100, 60_000),
                "pending_messages": (1, 1_000_000),
                "pending_bytes": (1 << 10, 1 << 30),
                "send_timeout_ms": (100, 3_600_000),
                "block_ms": (0, 3_600_000),
                "compress_from_bytes": (1, 64 << 20),
                "pending_requests": (1, 100_000),
                "route_refresh_ms": (100, 600_000),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """Options of a push consumer."""

    pull_batch: int = 512
    """Messages per pull. 1 .. 10,000."""
    pull_bytes: int = 1 << 20
    """Bytes per pull; a single larger message is still delivered. 1 KiB .. 16 MiB."""
    consume_batch: int = 64
    """Most messages per listener call. A slow listener automatically gets fewer, down to one (CC-3). 1 .. 1,024."""
    pull_wait_ms: int = 15_000
    """Longest long poll. 0 .. 60,000. XO-13."""
    pull_threshold_queue: int = 1_000
    """Unfinished messages per queue above which its pulls are delayed. 1 .. 1,000,000. PQ-8, XO-13."""
    pull_threshold_bytes_queue: int = 100 << 20
    """The same in bytes of bodies. 1 KiB .. 4 GiB. PQ-8, XO-13."""
    pull_threshold_topic: int = -1
    """Unfinished messages over all queues of a topic. Divided by the number of queues, it replaces the limit per queue.
    -1 = no such limit. RB-39."""
    pull_threshold_bytes_topic: int = -1
    """The same in bytes."""
    span_max: int = 2_000
    """Distance of the smallest and largest unfinished offset above which pulls are delayed. 1 .. 1,000,000. PQ-7."""
    first_pull_delay_ms: int = 0
    """Pause before the first pull of a new queue. RB-34 has 500 because the old owner may still be busy; here the old
    owner releases the queue lock first, so waiting gains nothing. 0 .. 60,000."""
    commit_interval_ms: int = 5_000
    """Period of the offset report. 100 .. 60,000. OF-2."""
    rebalance_interval_ms: int = 20_000
    """Period of rebalancing when nothing triggers it earlier. 100 .. 600,000. CS-3."""
    lock_wait_ms: int = 3_000
    """Longest wait of a lock request at the broker for the old owner to release the lock. 0 .. 30,000."""
    lock_retry_ms: int = 500
    """Pause before a refused lock is tried again. 10 .. 60,000. RB-33."""
    drain_ms: int = 3_000
    """Longest wait for unfinished messages when the consumer closes or a queue moves away. An ordered queue that moves
    waits for the end of its listener call, at most the broker's `revoke_ms`. 0 .. 60,000."""
    pull_idle_ms: int = 120_000
    """A queue without a finished pull for this time is dropped and acquired again. RB-20. 1,000 .. 3,600,000."""
    retry: str = "broker"
    """Place where a failed message of a concurrent listener waits. `broker`: it is returned and redelivered through the
    retry topic after 10 s, 30 s ... 2 h, to any member (RD-1). `local`: it stays in this process, and the queue's
    progress does not move meanwhile."""
    consume_timeout_ms: int = 900_000
    """Time after which an unfinished concurrent message is returned. 1,000 .. 86,400,000. CC-12, XO-13."""
    suspend_ms: int = 1_000
    """Ordered only: pause of a queue after its listener failed. 10 .. 600,000. OC-15."""
    lock_trust_ms: int = 500
    """Ordered only: time for which a queue is still processed after the connection to its broker broke; less than the
    broker's `session_grace_ms`. 0 .. 60,000. OC-8."""
    retry_first_ms: int = 1_000
    """Pause before a failed message that waits in this process is given to the listener again; doubles each time. It
    waits here with `retry="local"`, or when the broker refuses its return; a return without an answer is repeated after
    the same pauses (CC-6). 1 .. 3,600,000."""
    retry_max_ms: int = 60_000
    """Longest such pause. 1 .. 7,200,000."""
    max_attempts: int = 0
    """Deliveries before the dead-letter topic; 0 = the group's setting (17). 0 .. 1,000. RD-3. Counted by the broker,
    across crashes and rebalances; 1 costs a call for each message."""
    timeout_ms: int = 3_000
    """Deadline of one call, on top of its waiting time. 100 .. 60,000."""
    route_refresh_ms: int = 30_000
    """Age at which a route is fetched again. 100 .. 600,000. XO-13."""
    young_from_first: bool = False
    """True: a group that never read starts a queue at its first message, also with LAST, while that message is still in
    the broker's memory, as RocketMQ does. False: LAST always means from now on. RB-46."""
    offsets_folder: Path | None = None
    """Broadcasting only: progress is in `<folder>/<group>/offsets.json`. None = `~/.evenq`. OF-5, OF-6."""
    tables: str | Path = ""
    """Folder or fsspec URL of tables, as in `evenq table export TOPIC --to DIR`: messages older than the log are read
    there, then the broker's. All topics of the consumer need a table. Empty: reading continues at the start of the log.
    Needs `evenq[tables]`."""
    zone: str = ""
    """Location of this member, for strategies that keep queues near; empty: EVENQ_ZONE, otherwise the zone that
    Kubernetes reports. At most 255 characters."""
    instance: str = ""
    """Stable name of this member's place: a replacement with the same name may get its queues back. Empty:
    EVENQ_INSTANCE, otherwise none. At most 255 characters."""
    capacity: float = 1.0
    """Share of the load relative to other members, in a group whose weight is CAPACITY. Above 0, at most 1,000,000."""

    def __post_init__(self) -> None:
        if self.retry not in {"broker", "local"}:
            raise BadRequest(f"PushOptions.retry is {self.retry!r}, it must be 'broker' or 'local'")
        for name, label in (("zone", self.zone), ("instance", self.instance)):
            if len(label) > LABEL_MAX or not label.isprintable():
                raise BadRequest(
                    f"PushOptions.{name} is {label[:80]!r}; give at most {LABEL_MAX} printable characters, or nothing"
                )
        if not 0 < self.capacity <= CAPACITY_MAX:
            raise BadRequest(
                f"PushOptions.capacity is {self.capacity:g}, it must be above 0 and at most {CAPACITY_MAX:g}"
            )
        _check(
            self,
            {
                "pull_batch": (1, 10_000),
                "pull_bytes": (1 << 10, 16 << 20),
                "consume_batch": (1, 1_024),
                "pull_wait_ms": (0, 60_000),
                "pull_threshold_queue": (1, 1_000_000),
                "pull_threshold_bytes_queue": (1 << 10, 4 << 30),
                "pull_threshold_topic": (-1, 1 << 31),
                "pull_threshold_bytes_topic": (-1, 1 << 40),
                "span_max": (1, 1_000_000),
                "first_pull_delay_ms": (0, 60_000),
                "commit_interval_ms": (100, 60_000),
                "rebalance_interval_ms": (100, 600_000),
                "lock_wait_ms": (0, 30_000),
                "lock_retry_ms": (10, 60_000),
                "drain_ms": (0, 60_000),
                "pull_idle_ms": (1_000, 3_600_000),
                "consume_timeout_ms": (1_000, 86_400_000),
                "suspend_ms": (10, 600_000),
                "lock_trust_ms": (0, 60_000),
                "retry_first_ms": (1, 3_600_000),
                "retry_max_ms": (1, 7_200_000),
                "max_attempts": (0, 1_000),
                "timeout_ms": (100, 60_000),
                "route_refresh_ms": (100, 600_000),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions:
    """Options of a pull consumer. Bounds, and fields without a text, are as in PushOptions."""

    auto_commit: bool = True
    """True: messages that a `poll` returned count as consumed at the next one, and progress is reported every
    `commit_interval_ms`. False: only `commit` stores progress, apart from the group's start offset."""
    read_from: str = "leader"
    """`leader`, or `any`: with `any`, a follower serves messages while its leader is away or reports that the reader is
    far behind. Only for queues chosen with `assign`; progress stays with the leader. HA-9."""
    pull_batch: int = 512
    pull_bytes: int = 1 << 20
    pull_wait_ms: int = 15_000
    pull_threshold_queue: int = 1_000
    """Messages fetched ahead per queue above which its pulls are delayed. PQ-8."""
    pull_threshold_bytes_queue: int = 100 << 20
    pull_threshold_topic: int = -1
    pull_threshold_bytes_topic: int = -1
    span_max: int = 2_000
    commit_interval_ms: int = 5_000
    rebalance_interval_ms: int = 20_000
    drain_ms: int = 3_000
    """Longest wait for the next `poll` or `commit` when a queue moves away while its messages are being processed."""
    timeout_ms: int = 3_000
    route_refresh_ms: int = 30_000
    young_from_first: bool = False
    offsets_folder: Path | None = None
    tables: str | Path = ""
    zone: str = ""
    instance: str = ""
    capacity: float = 1.0

    def __post_init__(self) -> None:
        if self.read_from not in {"leader", "any"}:
            raise BadRequest(f"PullOptions.read_from is {self.read_from!r}, it must be 'leader' or 'any'")
        self.engine()

    def engine(self) -> PushOptions:
        """Returns the options that push and pull consumers share (RB-1); checks the bounds."""
        own = {"auto_commit", "read_from"}
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in own}
        return PushOptions(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleOptions:
    """Options of a simple consumer."""

    timeout_ms: int = 3_000
    """Deadline of one call, on top of its waiting time. Acks and changes of the invisible time are retried for this
    long while the leader changes. 100 .. 60,000."""
    slice_ms: int = 1_000
    """With several brokers: wait at one broker before the next one is called. 50 .. 30,000."""
    heartbeat_interval_ms: int = 10_000
    """Period of heartbeats. 1,000 .. 60,000. Wire contract 3.2."""
    route_refresh_ms: int = 30_000
    """Age at which a route is fetched again. 100 .. 600,000. XO-13."""
    consume_timeout_ms: int = 900_000
    """Iteration only: the body of a `for` loop may have a message for this time; then it is redelivered. 1,000 ..
    86,400,000. CC-12."""

    def __post_init__(self) -> None:
        _check(
            self,
            {
                "consume_timeout_ms": (1_000, 86_400_000),
                "timeout_ms": (100, 60_000),
                "slice_ms": (50, 30_000),
                "heartbeat_interval_ms": (1_000, 60_000),
                "route_refresh_ms": (100, 600_000),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteOptions(SimpleOptions):
    """Options of a consumer of lite topics, in addition to SimpleOptions."""

    sync_interval_ms: int = 30_000
    """Period of sending all subscriptions; brokers forget them after 90 s. 1,000 .. 60,000. Wire contract 3.14."""
    invisible_ms: int = 30_000
    """Push only: time for which a message is hidden; extended while its listener runs. 1,000 .. 3,600,000."""
    consume_timeout_ms: int = 900_000
    """Push only: an unfinished message is redelivered after this time. 1,000 .. 86,400,000. CC-12."""
    retry_first_ms: int = 1_000
    """Push only: pause before a failed message is redelivered; doubles with each attempt. 10 .. 3,600,000."""
    retry_max_ms: int = 60_000
    """Push only: longest such pause. 10 .. 7,200,000."""
    drain_ms: int = 3_000
    """Push only: longest wait for running listeners when the consumer closes. 0 .. 60,000."""

    def __post_init__(self) -> None:
        SimpleOptions.__post_init__(self)
        _check(
            self,
            {
                "sync_interval_ms": (1_000, 60_000),
                "invisible_ms": (1_000, 3_600_000),
                "consume_timeout_ms": (1_000, 86_400_000),
                "retry_first_ms": (10, 3_600_000),
                "retry_max_ms": (10, 7_200_000),
                "drain_ms": (0, 60_000),
            },
        )
