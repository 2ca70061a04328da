"""The options of the source: parsed once, checked before anything connects.

Called by the source on the driver. Spark hands over strings under names of any case; an unknown name is an error that
names the nearest known one, because a misspelt limit would otherwise read everything in silence. Pure: no Spark, no
network.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from evenq.client.core.access_points import ONE_ADDRESS, AccessPoints, access_points
from evenq.errors import IllegalAccessPoint, SettingsError
from evenq.model.names import group_problem, topic_problem
from evenq.model.queue import MessageQueue
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Hints, Tls

__all__ = ["EARLIEST_MARK", "LATEST_MARK", "Format", "OffsetSpec", "Place", "ReadOptions"]

HINTS = Hints(
    ca="option tlsCa",
    certificate="options tlsCertificate and tlsKey",
    server_name="option tlsServerName",
    speak_tls="evenqs:// in the option endpoints, and tlsCa",
    speak_plain="evenq://",
)
EARLIEST_MARK = -2  # as in Spark's Kafka source
LATEST_MARK = -1


class Place(StrEnum):
    """Where to start or end, when no offset is given."""

    GROUP = "group"
    EARLIEST = "earliest"
    LATEST = "latest"


class Format(StrEnum):
    """What brokers are asked to send."""

    AUTO = "auto"
    """Records as they are stored where the broker can and no filter is set, else messages."""
    LOG = "log"
    """Records; an error where they cannot be had."""
    MESSAGE = "message"
    """Messages, as every other consumer gets them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSpec:
    """A value of `startingOffsets` or `endingOffsets`."""

    place: Place
    """For every queue that `offsets` does not name."""
    offsets: Mapping[MessageQueue, int] = field(default_factory=dict)
    """Queue offsets; -2 is the earliest and -1 the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Everything a reader needs to know, as plain values that pickle."""

    endpoints: tuple[str, ...]
    """`host:port` of brokers to ask for routes, in the order they are tried."""
    topics: tuple[str, ...]
    group: str = ""
    """Consumer group whose progress is mirrored; empty only for batch reads."""
    starting: OffsetSpec | None = None
    """None: `group` for streams, `earliest` for batch reads."""
    ending: OffsetSpec | None = None
    """Batch only. None: `latest`."""
    starting_timestamp_ms: int = 0
    """Ms since the epoch; > 0 wins over `starting`."""
    max_offsets_per_trigger: int = 0
    """Messages in one micro-batch, over all queues; 0 = no limit."""
    min_partitions: int = 0
    max_records_per_partition: int = 0
    min_records_per_partition: int = 0
    """Ranges of one broker are put in one task until it has so many messages; 0 = a task per range."""
    tags: str = ""
    fail_on_data_loss: bool = True
    fail_on_unavailable: bool = True
    """Whether a read that has an end fails when no broker answers for some queues; else it leaves them out."""
    format: Format = Format.AUTO
    block_bytes: int = 1 << 20
    idle_wait_ms: int = 300
    """How long one trigger without data waits for growth at the brokers."""
    commit_interval_ms: int = 1_000
    """Least time between two commits to the brokers."""
    read_timeout_ms: int = 60_000
    """How long a range or a route is tried without any progress before the task or the query fails."""
    gc_freeze: bool = True
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    credentials_file: str = ""
    """A TOML file on every node, as a mounted Secret makes it; only its path travels with a query."""
    encrypted: bool | None = None
    """True: TLS, False: plain text, None: as the environment of the process that asks says."""
    tls_ca: str = ""
    """This and the next two are PEM files on every node; only their paths travel with a query."""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_server_name: str = ""
    tls_insecure: bool = False

    def credentials(self) -> Credentials | None:
        """What calls are signed with: the options, or else the environment of the process that asks. Raises
        SettingsError.
        """
        if self.access_key:
            return Credentials(access_key=self.access_key, secret_key=self.secret_key)
        if self.credentials_file:
            return Credentials.of_file(Path(self.credentials_file))
        return Credentials.of_environment(os.environ)

    def tls(self) -> Tls | None:
        """How brokers are called; None: in plain text. Raises SettingsError."""
        if self.encrypted is False:
            return None
        if self.tls_ca or self.tls_certificate or self.tls_key or self.tls_server_name or self.tls_insecure:
            return Tls(
                ca=self.tls_ca, certificate=self.tls_certificate, key=self.tls_key, server_name=self.tls_server_name,
                insecure=self.tls_insecure, hints=HINTS,
            )  # fmt: skip
        found = Tls.of_environment(os.environ) or (Tls() if self.encrypted else None)
        return None if found is None else replace(found, hints=HINTS)

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
        """Read Spark's options. Raises SettingsError naming the option, its value and what would be right."""
        values = _known(given)
        endpoints = _listed(values.get("endpoints", ""), "endpoints")
        points = _access_points(endpoints)
        topics = _listed(values.get("subscribe", ""), "subscribe")
        for topic in topics:
            if problem := topic_problem(topic):
                raise SettingsError(f"option subscribe: {problem}")
        group = values.get("group", "").strip()
        if group and (problem := group_problem(group)):
            raise SettingsError(f"option group: {problem}")
        if streaming and not group:
            raise SettingsError("option group is missing; a stream needs a consumer group to show its progress under")
        starting = _offsets(values, "startingOffsets", default=Place.GROUP if streaming else Place.EARLIEST)
        if starting and starting.place is Place.GROUP and not group and "startingOffsets" in values:
            raise SettingsError("option startingOffsets=group needs the option group as well")
        ending = _offsets(values, "endingOffsets", default=Place.LATEST)
        if ending and streaming:
            raise SettingsError("option endingOffsets is for batch reads; stop a stream, or use Trigger.AvailableNow")
        if ending and "endingOffsets" in values and ending.place is not Place.LATEST:
            raise SettingsError(f"option endingOffsets is {values['endingOffsets']!r}; give latest or a JSON object")
        tags = values.get("tags", "").strip()
        kind = _format(values, tags)
        return cls(
            endpoints=tuple(target + (ONE_ADDRESS if points.one_address else "") for target in points.targets),
            topics=topics,
            group=group,
            starting=starting,
            ending=ending,
            starting_timestamp_ms=_whole(values, "startingTimestamp", default=0),
            max_offsets_per_trigger=_whole(values, "maxOffsetsPerTrigger", default=0),
            min_partitions=_whole(values, "minPartitions", default=0),
            max_records_per_partition=_whole(values, "maxRecordsPerPartition", default=0),
            min_records_per_partition=_whole(values, "minRecordsPerPartition", default=2_000 if streaming else 0),
            tags=tags,
            format=kind,
            fail_on_data_loss=_flag(values, "failOnDataLoss", default=True),
            fail_on_unavailable=_flag(values, "failOnUnavailable", default=True),
            block_bytes=_whole(values, "blockBytes", default=1 << 20, low=1 << 10, high=16 << 20),
            idle_wait_ms=_whole(values, "idleWaitMs", default=300, high=30_000),
            commit_interval_ms=_whole(values, "commitIntervalMs", default=1_000),
            read_timeout_ms=_whole(values, "readTimeoutMs", default=60_000, low=100),
            gc_freeze=_flag(values, "gcFreeze", default=True),
            **_keys(values),
            **_tls(values, points),
        )


_NAMES = (
    "endpoints",
    "subscribe",
    "group",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "minRecordsPerPartition",
    "tags",
    "failOnDataLoss",
    "failOnUnavailable",
    "format",
    "blockBytes",
    "idleWaitMs",
    "commitIntervalMs",
    "readTimeoutMs",
    "gcFreeze",
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
_BY_LOWER = {name.lower(): name for name in _NAMES} | {
    "nameserver": "endpoints",
    "topic": "subscribe",
    "maxrowspertrigger": "maxOffsetsPerTrigger",
}


def _known(given: Mapping[str, str]) -> dict[str, str]:
    """The options under their canonical names."""
    values: dict[str, str] = {}
    for name, value in given.items():
        canonical = _BY_LOWER.get(name.lower())
        if canonical is None:
            near = difflib.get_close_matches(name.lower(), _BY_LOWER, n=1, cutoff=0.0)
            raise SettingsError(f"unknown option {name!r} of the evenq source; did you mean {_BY_LOWER[near[0]]}?")
        if canonical in values:
            raise SettingsError(f"option {canonical} is given twice, once as {name!r}; leave one out")
        values[canonical] = value
    return values


def _keys(values: Mapping[str, str]) -> dict[str, Any]:
    access_key, secret_key, file = (values.get(name, "") for name in ("accessKey", "secretKey", "credentialsFile"))
    if bool(access_key) != bool(secret_key):
        raise SettingsError("options accessKey and secretKey belong together; give both, or credentialsFile")
    if access_key and file:
        raise SettingsError("option credentialsFile is given besides accessKey and secretKey; leave one out")
    if access_key:
        Credentials(access_key=access_key, secret_key=secret_key)
    return {"access_key": access_key, "secret_key": secret_key, "credentials_file": file}


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
    insecure = _flag(values, "tlsInsecure", default=False)
    asked = _flag(values, "tls", default=False) if "tls" in values else None
    details = bool(ca or certificate or key or name or insecure)
    wanted = True if details else asked
    if (details and asked is False) or (wanted is not None and points.tls not in {None, wanted}):
        raise SettingsError(
            "options endpoints and tls... contradict each other; write evenqs:// or no scheme for TLS, evenq:// and no "
            "other option of TLS for plain text"
        )
    Tls(ca=ca, certificate=certificate, key=key, server_name=name, insecure=insecure)
    return {
        "encrypted": points.tls if wanted is None else wanted, "tls_ca": ca, "tls_certificate": certificate,
        "tls_key": key, "tls_server_name": name, "tls_insecure": insecure,
    }  # fmt: skip


def _format(values: Mapping[str, str], tags: str) -> Format:
    text = values.get("format", Format.AUTO).strip().lower()
    if text not in set(Format):
        raise SettingsError(f"option format is {values['format']!r}; give one of: {', '.join(Format)}")
    if text == Format.LOG and tags:
        raise SettingsError("option format=log does not go with tags, which brokers choose by; use format=auto")
    return Format(text)


def _whole(values: Mapping[str, str], name: str, *, default: int, low: int = 0, high: int = 1 << 62) -> int:
    text = values.get(name)
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        raise SettingsError(f"option {name} is {text!r}; give a whole number in {low}..{high}") from None
    if not low <= number <= high:
        raise SettingsError(f"option {name} is {number}; give a whole number in {low}..{high}")
    return number


def _flag(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = values.get(name, str(default)).strip().lower()
    if text not in {"true", "false"}:
        raise SettingsError(f"option {name} is {values[name]!r}; give true or false")
    return text == "true"


def _offsets(values: Mapping[str, str], name: str, *, default: Place) -> OffsetSpec | None:
    text = values.get(name, "").strip()
    if not text:
        return OffsetSpec(place=default) if name == "startingOffsets" else None
    if not text.startswith("{"):
        try:
            return OffsetSpec(place=Place(text.lower()))
        except ValueError:
            raise SettingsError(f"option {name} is {text!r}; give group, earliest, latest or a JSON object") from None
    wanted = 'an object {"topic": {"broker": {"0": offset}}} with offsets >= 0, -2 (earliest) or -1 (latest)'
    try:
        offsets = {
            MessageQueue(topic, broker, int(queue_id)): offset
            for topic, brokers in json.loads(text).items()
            for broker, queues in brokers.items()
            for queue_id, offset in queues.items()
        }
    except (ValueError, AttributeError) as broken:
        raise SettingsError(f"option {name} does not parse ({broken}); give {wanted}") from None
    for queue, offset in offsets.items():
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST_MARK:
            raise SettingsError(f"option {name}: the offset of {queue} is {offset!r}; give {wanted}")
    rest = Place.LATEST if name == "endingOffsets" else Place.EARLIEST
    return OffsetSpec(place=rest, offsets=offsets)
