"""Settings of the transport: those of a kombu connection, checked and in the units of evenq.

`settings_of` reads the broker's URL, `broker_use_ssl` and `broker_transport_options`. Durations there are seconds, as
in other transports of kombu; here they are ms. An unknown option is an error, because a misspelt one would be silent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from evenq.celery.names import QueueNames
from evenq.errors import SettingsError
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls

DEFAULT_PORT = 8081
DEFAULT_PREFIX = "celery-"
OF_KOMBU = frozenset(
    {
        "body_encoding",
        "client_properties",
        "confirm_publish",
        "errback",
        "interval_max",
        "interval_start",
        "interval_step",
        "max_retries",
        "polling_interval",
        "retry_errors",
    }
)
"""Options that kombu or Celery reads, or that have no meaning here and do no harm."""
RANGES = {
    "visibility_timeout": (1, 43_200),
    "max_deliveries": (1, 1_000),
    "queues_per_broker": (0, 4_096),
    "broadcast_retention": (60, 604_800),
    "wait_time_seconds": (1, 60),
}
"""Option to its lowest and highest value; the units are in `TransportSettings`."""
_SSL_NAMES = {"ca_certs": "ca", "certfile": "certificate", "keyfile": "key", "server_hostname": "server_name"}
"""Names of Python's ssl module, as `broker_use_ssl` has them, and those of `evenq.Tls`."""
_TLS_FIELDS = frozenset(field.name for field in fields(Tls)) - {"hints"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSettings:
    """Settings of one transport; equal ones share their connections within a process."""

    endpoint: str
    """`host:port`, several joined with `;`."""
    names: QueueNames
    credentials: Credentials | None = None
    tls: Tls | bool | None = None
    """None: by the environment (EVENQ_TLS_*)."""
    visibility_ms: int = 30_000
    """Time for which a received message is hidden from other workers; extended until it is settled."""
    max_deliveries: int = 1_000
    """Deliveries of a message before it moves to the dead letters of its group."""
    native_delay: bool = True
    """True: the broker keeps tasks with an ETA until they are due."""
    queues_per_broker: int = 0
    """Message queues of a new topic at each broker; 0: the broker's default."""
    broadcast_retention_ms: int = 3_600_000
    poll_ms: int = 15_000
    """Longest long poll."""


def settings_of(
    *,
    hostname: str | None,
    port: int | None,
    userid: str | None,
    password: Any,
    virtual_host: str | None,
    ssl: Any,
    options: Mapping[str, Any],
    secure: bool,
) -> TransportSettings:
    """Returns the settings of a connection. `secure`: the URL has `evenqs://`. Raises SettingsError, IllegalTopic."""
    known = {"access_points", "native_delay", "security_token", "tls", "topic_prefix", *RANGES}
    unknown = sorted(set(options) - known - OF_KOMBU)
    if unknown:
        raise SettingsError(
            f"broker_transport_options has {', '.join(map(repr, unknown))}, which evenq's transport does not know; "
            f"its options are {', '.join(sorted(known))}"
        )
    return TransportSettings(
        endpoint=_endpoint(hostname, port, options.get("access_points")),
        names=QueueNames(_prefix(virtual_host, options.get("topic_prefix"))),
        credentials=_credentials(userid, password() if callable(password) else password, options),
        tls=_tls(ssl, options.get("tls"), secure=secure),
        visibility_ms=_number(options, "visibility_timeout", 30) * 1_000,
        max_deliveries=_number(options, "max_deliveries", 1_000),
        native_delay=_switch(options, "native_delay"),
        queues_per_broker=_number(options, "queues_per_broker", 0),
        broadcast_retention_ms=_number(options, "broadcast_retention", 3_600) * 1_000,
        poll_ms=_number(options, "wait_time_seconds", 15) * 1_000,
    )


def _endpoint(hostname: str | None, port: int | None, access_points: Any) -> str:
    if access_points is None:
        host = hostname or "127.0.0.1"
        return f"[{host}]:{port or DEFAULT_PORT}" if ":" in host else f"{host}:{port or DEFAULT_PORT}"
    if isinstance(access_points, str):
        return access_points
    if isinstance(access_points, Sequence) and access_points and all(isinstance(one, str) for one in access_points):
        return ";".join(access_points)
    raise SettingsError(
        f"access_points is {access_points!r:.200}; give texts 'host:port', for example ['a:8081', 'b:8081']"
    )


def _prefix(virtual_host: str | None, prefix: Any) -> str:
    if prefix is not None:
        if not isinstance(prefix, str):
            raise SettingsError(f"topic_prefix is {prefix!r:.80}; give a text of letters, digits, '_' and '-'")
        return prefix
    name = (virtual_host or "").strip("/")
    return f"{name}-" if name else DEFAULT_PREFIX


def _credentials(userid: str | None, password: Any, options: Mapping[str, Any]) -> Credentials | None:
    if not userid and not password:
        return None
    return Credentials(
        access_key=userid or "", secret_key=password or "", security_token=options.get("security_token") or ""
    )


def _tls(ssl: Any, tls: Any, *, secure: bool) -> Tls | bool | None:
    if isinstance(tls, Tls):
        return tls
    given = tls if tls is not None else ssl
    if isinstance(given, Mapping):
        named = {_SSL_NAMES.get(str(name), str(name)): value for name, value in given.items()}
        unknown = sorted(map(repr, set(named) - _TLS_FIELDS))
        if unknown:
            raise SettingsError(
                f"TLS has {', '.join(unknown)}; the fields are {', '.join(sorted(_TLS_FIELDS | set(_SSL_NAMES)))}"
            )
        return Tls(**named)
    if given is None or isinstance(given, bool):
        return True if given or secure else None
    raise SettingsError(f"tls is {given!r:.80}; give True, an evenq.Tls or a dict of its fields")


def _number(options: Mapping[str, Any], name: str, default: int) -> int:
    value = options.get(name, default)
    low, high = RANGES[name]
    try:
        number = int(value)  # options often come as texts from the environment
    except (TypeError, ValueError):
        number = low - 1
    if isinstance(value, bool) or (number != value and str(number) != str(value)) or not low <= number <= high:
        raise SettingsError(f"{name} is {value!r:.80}; give a whole number from {low} to {high}")
    return number


def _switch(options: Mapping[str, Any], name: str) -> bool:
    value = options.get(name, True)
    if not isinstance(value, bool):
        raise SettingsError(f"{name} is {value!r:.80}; give True or False")
    return value
