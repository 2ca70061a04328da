"""All settings of the nameserver. Flags override the environment (`EVENQ_NAMESERVER_*`), which overrides defaults.

NS-9 leaves the times open. With a heartbeat every 3 s and expiry after 10 s, three lost heartbeats remove a broker.
With RocketMQ's 30 s and 120 s (XO-13) a dead broker would stay in routes for two minutes. Brokers get their interval
from the nameserver, so it is set in one place.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from evenq.errors import BadRequest
from evenq.serving.auth.server_auth import AuthSettings
from evenq.serving.program.settings import ServerSettings
from evenq_nameserver.core.allowed_addresses import ANY, LOOPBACK, AllowedAddresses


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
        description="Interval at which brokers send heartbeats, ms (NS-9).",
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
    auth: AuthSettings = Field(default=AuthSettings(), description="Users who may call.")

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
        """Returns the addresses from which brokers may call. Raises BadRequest."""
        return AllowedAddresses(self.register_from or (ANY if self.auth.enabled else LOOPBACK))
