"""Every setting of the nameserver, with its unit, bound and meaning; flag over environment (`EVENQ_NAMESERVER_*`)
over default.

NS-9 leaves the times open. Chosen here: a beat every 3 s and an end after 10 s of silence, so three lost beats drop a
broker; RocketMQ's 30 s and 120 s (XO-13) leave clients with a dead broker in their routes for two minutes. The
nameserver tells each broker its interval, so one setting rules.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from evenq.errors import BadRequest
from evenq.serving.auth.server_auth import AuthSettings
from evenq.serving.program.settings import ServerSettings
from evenq_nameserver.core.allowed_addresses import ANY, LOOPBACK, AllowedAddresses

__all__ = ["NameserverSettings"]


class NameserverSettings(ServerSettings, frozen=True, extra="forbid"):
    """The nameserver: a directory of brokers and their topics."""

    port: int = Field(default=9876, ge=-1, le=65_535, description="gRPC port without TLS; 0 = any free one, -1 = off.")
    cluster: str = Field(
        default="evenq", min_length=1, max_length=127, description="Name of the cluster, shown in metrics."
    )
    drain_ms: int = Field(
        default=2_000, ge=0, le=600_000, description="Longest time for running calls at shutdown, ms."
    )
    heartbeat_interval_ms: int = Field(
        default=3_000,
        ge=10,
        le=600_000,
        description="Interval at which brokers are asked to send heartbeats, ms (NS-9).",
    )
    expiry_ms: int = Field(
        default=10_000,
        ge=50,
        le=3_600_000,
        description="A broker without a heartbeat for this time is removed from all routes, ms (NS-9); at "
        "least twice heartbeat_interval_ms.",
    )
    brokers_max: int = Field(default=1_000, ge=1, le=100_000, description="Most live brokers.")
    topics_max: int = Field(default=20_000, ge=1, le=1_000_000, description="Most topics of one broker.")
    watchers_max: int = Field(default=10_000, ge=1, le=100_000, description="Most open watches of routes.")
    watcher_behind_max: int = Field(
        default=1_000,
        ge=1,
        le=100_000,
        description="Most events that wait for one watcher; beyond it the watch is ended, and the watcher "
        "opens a new one.",
    )

    register_from: str = Field(
        default="",
        max_length=4_096,
        description="Addresses and networks (CIDR) from which brokers may register, comma-separated; * = "
        "any. Empty = any if auth.enabled, else this machine only.",
    )
    auth: AuthSettings = Field(default=AuthSettings(), description="Who may call.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.expiry_ms < 2 * self.heartbeat_interval_ms:
            raise ValueError(
                f"expiry_ms {self.expiry_ms} is less than twice heartbeat_interval_ms {self.heartbeat_interval_ms}: "
                "one lost heartbeat would drop a living broker"
            )
        try:
            self.allowed_brokers()
        except BadRequest as error:
            raise ValueError(f"register_from: {error.message}") from error
        return self

    def allowed_brokers(self) -> AllowedAddresses:
        """Where brokers may call from. Raises BadRequest."""
        return AllowedAddresses(self.register_from or (ANY if self.auth.enabled else LOOPBACK))
