"""The options of the source: parsed once, checked before anything connects.

Called by the source on the driver. Pure: no Spark, no network.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from evenq.client.core.routes.access_points import ONE_ADDRESS, AccessPoints, access_points
from evenq.errors import IllegalAccessPoint, SettingsError
from evenq.model.names import RETRY_PREFIX, group_problem, topic_problem
from evenq.model.queue import MessageQueue
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Hints, Tls
from pyspark_evenq.options.foreign import foreign_problem
from pyspark_evenq.options.member import MEMBER_NAMES, MembershipOptions, membership
from pyspark_evenq.options.offsets import (
    EARLIEST_MARK,
    OffsetSpec,
    Place,
    assigned_queues,
    offset_spec,
)
from pyspark_evenq.options.values import choice, flag, named, whole

BLOCK_BYTES = 2 << 20
"""With half the size, the work per block costs a worker a quarter more time per row."""
HINTS = Hints(
    ca="option tlsCa",
    certificate="options tlsCertificate and tlsKey",
    server_name="option tlsServerName",
    speak_tls="evenqs:// in the option endpoints, and tlsCa",
    speak_plain="evenq://",
)


class SchemaStyle(StrEnum):
    """The columns of a read."""

    EVENQ = "evenq"
    KAFKA = "kafka"


class ReadFrom(StrEnum):
    """Copies of a broker's log that are read."""

    LEADER = "leader"
    ANY = "any"
    """Also followers, while the leader does not answer, or the messages lie far behind the end of its log."""


class Format(StrEnum):
    """Format in which brokers send messages."""

    AUTO = "auto"
    """Records as stored, if the broker supports them and no filter is set, otherwise messages."""
    LOG = "log"
    """Records; an error if the broker does not support them."""
    MESSAGE = "message"
    """Messages, as every other consumer gets them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one micro-batch, over all queues; 0 = no limit."""

    offsets_max: int = 0
    bytes_max: int = 0
    """Approximate, of bodies: the number of rows is derived from the size of the next ones."""
    offsets_min: int = 0
    """A batch waits for this number of messages, for `delay_ms` at most."""
    delay_ms: int = 900_000

    @property
    def any(self) -> bool:
        return bool(self.offsets_max or self.bytes_max or self.offsets_min)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """All options of a reader, as plain values that pickle."""

    endpoints: tuple[str, ...]
    """`host:port` of brokers for routes, in the order in which they are tried."""
    topics: tuple[str, ...]
    topic_pattern: str = ""
    """A regular expression for whole names; the retry, dead-letter and other system topics never match."""
    assigned: tuple[MessageQueue, ...] = ()
    """The only queues to read; empty: all."""
    include_retry: bool = False
    """Also the group's retry topic, as soon as it exists."""
    group: str = ""
    """Consumer group to which progress is reported; empty: none."""
    group_id_prefix: str = ""
    """Prefix of the group that is created for each run of the query (`made_group`)."""
    starting: OffsetSpec | None = None
    """None: `group` for streams, `earliest` for batch reads."""
    ending: OffsetSpec | None = None
    """Batch only. None: `latest`."""
    limits: Limits = field(default_factory=Limits)
    """Streams only."""
    min_partitions: int = 0
    max_partitions: int = 0
    """0 = no limit."""
    max_records_per_partition: int = 0
    min_records_per_partition: int = 0
    """Ranges of one broker share a task until it has this number of messages; 0 = a task per range."""
    tags: str = ""
    sql_filter: str = ""
    """Brokers send only messages with matching properties. Not together with `tags`."""
    schema_style: SchemaStyle = SchemaStyle.EVENQ
    include_headers: bool = False
    """A column of headers, in Kafka's style only; evenq's style always has properties."""
    include_system: bool = False
    """More columns, in evenq's style only."""
    filter_pushdown: bool = False
    """Batch only: filters of the query reduce the messages that are read."""
    fail_on_data_loss: bool = True
    fail_on_unavailable: bool = True
    """A read with an end fails if no broker answers for some queues; otherwise it leaves them out."""
    any_copy: bool = False
    """Followers may be read (readFrom=any)."""
    format: Format = Format.AUTO
    block_bytes: int = BLOCK_BYTES
    idle_wait_ms: int = 300
    """Time for which a trigger without data waits for growth at the brokers."""
    commit_interval_ms: int = 1_000
    """Minimum time between two commits to the brokers."""
    read_timeout_ms: int = 60_000
    """Time for which a range or a route is retried without progress before the task or the query fails."""
    gc_freeze: bool = True
    membership: MembershipOptions = field(default_factory=MembershipOptions)
    """Streams with a group only."""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    credentials_file: str = ""
    """A TOML file on every node, such as a mounted Secret; a query contains only its path."""
    encrypted: bool | None = None
    """True: TLS, False: plain text, None: as in the environment of the calling process."""
    tls_ca: str = ""
    """This and the next two are PEM files on every node; a query contains only their paths."""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_server_name: str = ""
    tls_insecure: bool = False

    @property
    def retry_topic(self) -> str:
        """Retry topic of the group; empty if it is not read."""
        return RETRY_PREFIX + self.group if self.include_retry else ""

    def credentials(self) -> Credentials | None:
        """Returns keys of the options, otherwise of the calling process's environment. Raises SettingsError."""
        if self.access_key:
            return Credentials(access_key=self.access_key, secret_key=self.secret_key)
        if self.credentials_file:
            return Credentials.of_file(Path(self.credentials_file))
        return Credentials.of_environment(os.environ)

    def tls(self) -> Tls | None:
        """Returns the TLS settings of calls; None: plain text. Raises SettingsError."""
        if self.encrypted is False:
            return None
        if self.tls_ca or self.tls_certificate or self.tls_key or self.tls_server_name or self.tls_insecure:
            return Tls(
                ca=self.tls_ca,
                certificate=self.tls_certificate,
                key=self.tls_key,
                server_name=self.tls_server_name,
                insecure=self.tls_insecure,
                hints=HINTS,
            )
        tls = Tls.of_environment(os.environ) or (Tls() if self.encrypted else None)
        return None if tls is None else replace(tls, hints=HINTS)

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
        """Parses Spark's options. Raises SettingsError with the option, its value and what is allowed."""
        values = _known(given)
        endpoints = _listed(values.get("endpoints", ""), "endpoints")
        points = _access_points(endpoints)
        style = choice(values, "schemaStyle", SchemaStyle.EVENQ)
        group = values.get("group", "").strip()
        if group and (problem := group_problem(group)):
            raise SettingsError(f"option group: {problem}")
        prefix = values.get("groupIdPrefix", "").strip()
        if prefix and (problem := group_problem(prefix + "-" + "0" * 16)):  # as `made_group` extends it
            raise SettingsError(f"option groupIdPrefix: {problem}")
        if streaming and not (group or prefix or style is SchemaStyle.KAFKA):
            raise SettingsError("option group is missing; a stream needs a consumer group to show its progress under")
        _only_where_it_counts(values, streaming=streaming)
        starting, ending = _span(values, style, streaming=streaming, group=group)
        include_retry = flag(values, "includeRetry", default=False)
        if include_retry and (not group or "assign" in values):
            raise SettingsError("option includeRetry reads the retry topic of a group; give group, and no assign")
        include_system = flag(values, "includeSystem", default=False)
        if include_system and style is SchemaStyle.KAFKA:
            raise SettingsError("option includeSystem adds columns to those of evenq; leave out schemaStyle=kafka")
        tags, sql_filter = (values.get(name, "").strip() for name in ("tags", "sqlFilter"))
        if tags and sql_filter:
            raise SettingsError(
                "options tags and sqlFilter are both given; write the tags into sqlFilter: TAGS IN ('a')"
            )
        kind = _format(values, tags or sql_filter)
        return cls(
            endpoints=tuple(target + (ONE_ADDRESS if points.one_address else "") for target in points.targets),
            **_what(values),
            include_retry=include_retry,
            group=group,
            group_id_prefix=prefix,
            starting=starting,
            ending=ending,
            limits=_limits(values),
            max_partitions=whole(values, "maxPartitions", default=0),
            min_partitions=whole(values, "minPartitions", default=0),
            max_records_per_partition=whole(values, "maxRecordsPerPartition", default=0),
            min_records_per_partition=whole(values, "minRecordsPerPartition", default=2_000 if streaming else 0),
            tags=tags,
            sql_filter=sql_filter,
            schema_style=style,
            include_headers=flag(values, "includeHeaders", default=False),
            include_system=include_system,
            filter_pushdown=flag(values, "filterPushdown", default=False),
            any_copy=_any_copy(values, points),
            format=kind,
            fail_on_data_loss=flag(values, "failOnDataLoss", default=True),
            fail_on_unavailable=flag(values, "failOnUnavailable", default=True),
            block_bytes=whole(values, "blockBytes", default=BLOCK_BYTES, low=1 << 10, high=16 << 20),
            idle_wait_ms=whole(values, "idleWaitMs", default=300, high=30_000),
            commit_interval_ms=whole(values, "commitIntervalMs", default=1_000),
            read_timeout_ms=whole(values, "readTimeoutMs", default=60_000, low=100),
            gc_freeze=flag(values, "gcFreeze", default=True),
            membership=membership(values, streaming=streaming, group=group or prefix),
            **_keys(values),
            **_tls(values, points),
        )


NAMES = (
    "endpoints",
    "subscribe",
    "subscribePattern",
    "assign",
    "group",
    "groupIdPrefix",
    "includeRetry",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxPartitions",
    "maxRecordsPerPartition",
    "minRecordsPerPartition",
    "tags",
    "sqlFilter",
    "schemaStyle",
    "includeHeaders",
    "includeSystem",
    "filterPushdown",
    "failOnDataLoss",
    "failOnUnavailable",
    "readFrom",
    "format",
    "blockBytes",
    "idleWaitMs",
    "commitIntervalMs",
    "readTimeoutMs",
    "gcFreeze",
    *MEMBER_NAMES,
    "accessKey",
    "secretKey",
    "credentialsFile",
    "tls",
    "tlsCa",
    "tlsCertificate",
    "tlsKey",
    "tlsServerName",
    "tlsInsecure",
)
KAFKA_ADDRESS = "kafka.bootstrap.servers"
"""A job that gives the address under this name gets Kafka's columns, unless schemaStyle is given."""
ALIASES = {
    "nameServer": "endpoints",
    KAFKA_ADDRESS: "endpoints",
    "topic": "subscribe",
    "maxRowsPerTrigger": "maxOffsetsPerTrigger",
    "kafka.group.id": "group",
}
"""Names of other sources for the same options."""
_BY_LOWER = {name.lower(): name for name in NAMES} | {alias.lower(): name for alias, name in ALIASES.items()}
_BATCHES_ONLY = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?\Z")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _known(given: Mapping[str, str]) -> dict[str, str]:
    values = named(given, _BY_LOWER, of="the evenq source", problem_of=foreign_problem)
    if any(name.lower() == KAFKA_ADDRESS for name in given):  # a job that was written for Kafka's source
        values.setdefault("schemaStyle", SchemaStyle.KAFKA)
    return values


def _only_where_it_counts(values: Mapping[str, str], *, streaming: bool) -> None:
    """Rejects an end for a stream. Batch reads ignore limits of triggers, as in Kafka's source."""
    for name in _BATCHES_ONLY:
        if streaming and name in values:
            raise SettingsError(f"option {name} is for batch reads; stop a stream, or use Trigger.AvailableNow")


def _span(
    values: Mapping[str, str], style: SchemaStyle, *, streaming: bool, group: str
) -> tuple[OffsetSpec, OffsetSpec | None]:
    default = "error" if style is SchemaStyle.KAFKA else "latest"
    strategy = values.get("startingOffsetsByTimestampStrategy", default).strip().lower()
    if strategy not in {"error", "latest"}:
        raise SettingsError(f"option startingOffsetsByTimestampStrategy is {strategy!r}; give error or latest")
    default_place = Place.EARLIEST
    if streaming:
        default_place = Place.GROUP if group else Place.LATEST
    starting = offset_spec(
        values, "starting", default=default_place, rest=Place.EARLIEST, must_match=strategy == "error"
    )
    if starting.place is Place.GROUP and not group:
        raise SettingsError("option startingOffsets=group needs the option group as well")
    if streaming:
        return starting, None
    ending = offset_spec(values, "ending", default=Place.LATEST, rest=Place.LATEST, must_match=False)
    if ending.place is not Place.LATEST:
        raise SettingsError(f"option endingOffsets is {values['endingOffsets']!r}; give latest or a JSON object")
    if EARLIEST_MARK in {*ending.offsets.values(), *ending.topics.values()}:
        raise SettingsError("option endingOffsets: -2 (earliest) is not an end; give offsets >= 0, or -1 (latest)")
    return starting, ending


def _what(values: Mapping[str, str]) -> dict[str, Any]:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if values.get(name, "").strip()]
    if len(given) > 1:
        raise SettingsError(f"options {' and '.join(given)} are given; leave all but one out")
    if given == ["subscribePattern"]:
        pattern = values["subscribePattern"].strip()
        try:
            re.compile(pattern)
        except re.error as broken:
            raise SettingsError(
                f"option subscribePattern is {pattern!r}, which is not a regular expression ({broken}); "
                "'flights-.*' takes all topics whose names begin with flights-"
            ) from None
        return {"topics": (), "topic_pattern": pattern}
    assigned = assigned_queues(values["assign"]) if given == ["assign"] else ()
    if assigned:
        topics = tuple(dict.fromkeys(queue.topic for queue in assigned))
    else:
        topics = _listed(values.get("subscribe", ""), "subscribe")
    for topic in topics:
        if problem := topic_problem(topic):
            raise SettingsError(f"option {given[0]}: {problem}")
    return {"topics": topics, "assigned": assigned}


def _limits(values: Mapping[str, str]) -> Limits:
    limits = Limits(
        offsets_max=whole(values, "maxOffsetsPerTrigger", default=0),
        bytes_max=whole(values, "maxBytesPerTrigger", default=0),
        offsets_min=whole(values, "minOffsetsPerTrigger", default=0),
        delay_ms=_duration(values, "maxTriggerDelay", default="15m"),
    )
    if 0 < limits.offsets_max < limits.offsets_min:
        raise SettingsError(
            f"option minOffsetsPerTrigger is {limits.offsets_min}, more than maxOffsetsPerTrigger "
            f"{limits.offsets_max}; make it smaller"
        )
    return limits


def _duration(values: Mapping[str, str], name: str, *, default: str) -> int:
    """Returns milliseconds. A number without a unit is in milliseconds, as in Spark."""
    text = values.get(name, default).strip().lower()
    matched = _DURATION.match(text)
    if matched is None:
        raise SettingsError(f"option {name} is {text!r}; give a duration such as 500ms, 30s, 15m or 2h")
    return int(matched[1]) * _UNIT_MS[matched[2] or "ms"]


def _keys(values: Mapping[str, str]) -> dict[str, Any]:
    access_key, secret_key, file = (values.get(name, "") for name in ("accessKey", "secretKey", "credentialsFile"))
    if bool(access_key) != bool(secret_key):
        raise SettingsError("options accessKey and secretKey belong together; give both, or credentialsFile")
    if access_key and file:
        raise SettingsError("option credentialsFile is given besides accessKey and secretKey; leave one out")
    if access_key:
        Credentials(access_key=access_key, secret_key=secret_key)
    return {"access_key": access_key, "secret_key": secret_key, "credentials_file": file}


def _any_copy(values: Mapping[str, str], points: AccessPoints) -> bool:
    any_copy = choice(values, "readFrom", ReadFrom.LEADER) is ReadFrom.ANY
    if any_copy and points.one_address:
        raise SettingsError(
            "option readFrom=any does not go with endpoints that name one address of all brokers: it leads to leaders "
            "only; give the addresses of the brokers, or readFrom=leader"
        )
    return any_copy


def _listed(text: str, name: str) -> tuple[str, ...]:
    parts = tuple(dict.fromkeys(part.strip() for part in text.replace(";", ",").split(",") if part.strip()))
    if not parts:
        example = "127.0.0.1:8081" if name == "endpoints" else "flights"
        raise SettingsError(f"option {name} is missing; give a comma-separated list such as {example!r}")
    return parts


def _access_points(endpoints: tuple[str, ...]) -> AccessPoints:
    try:
        return access_points(";".join(endpoints))
    except IllegalAccessPoint as error:
        raise SettingsError(f"option endpoints: {error.message}") from error


def _tls(values: Mapping[str, str], points: AccessPoints) -> dict[str, Any]:
    ca, certificate, key, name = (
        values.get(option, "").strip() for option in ("tlsCa", "tlsCertificate", "tlsKey", "tlsServerName")
    )
    insecure = flag(values, "tlsInsecure", default=False)
    requested = flag(values, "tls", default=False) if "tls" in values else None
    details = bool(ca or certificate or key or name or insecure)
    encrypted = True if details else requested
    if (details and requested is False) or (encrypted is not None and points.tls not in {None, encrypted}):
        raise SettingsError(
            "options endpoints and tls... contradict each other; write evenqs:// or no scheme for TLS, evenq:// and no "
            "other option of TLS for plain text"
        )
    Tls(ca=ca, certificate=certificate, key=key, server_name=name, insecure=insecure)
    return {
        "encrypted": points.tls if encrypted is None else encrypted,
        "tls_ca": ca,
        "tls_certificate": certificate,
        "tls_key": key,
        "tls_server_name": name,
        "tls_insecure": insecure,
    }


def _format(values: Mapping[str, str], tags: str) -> Format:
    chosen = choice(values, "format", Format.AUTO)
    if chosen is Format.LOG and tags:
        raise SettingsError("option format=log does not go with filters (tags, sqlFilter); use format=auto")
    return chosen
