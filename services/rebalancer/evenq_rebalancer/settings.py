"""Every setting of the rebalancer, with its unit, bound and meaning; flag over environment over default.

`evenq.serving` loads it (prefix `EVENQ_REBALANCER_`) and refuses what it does not know. Nothing else in the program
reads the environment.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from evenq.serving.auth import AuthSettings
from evenq.serving.settings import ServerSettings
from evenq_rebalancer.core.assignment_engine import EngineLimits
from evenq_rebalancer.core.election import LeaseTiming

__all__ = ["RebalancerSettings"]


class RebalancerSettings(ServerSettings, frozen=True, extra="forbid"):
    """The rebalancer's settings."""

    port: int = Field(8083, ge=-1, le=65_535, description="gRPC port without TLS; 0 = any free one, -1 = off.")
    cluster: str = Field("evenq", min_length=1, max_length=127, description="Name of the cluster, for metrics.")
    debounce_ms: int = Field(
        5, ge=0, le=10_000, description="Time without a change after which changes are decided, ms."
    )
    debounce_max_ms: int = Field(
        50, ge=0, le=60_000, description="Longest time from the first of several changes to their decision, ms."
    )
    grace_ms: int = Field(
        10_000, ge=0, le=600_000, description="How long a broker's facts count after its stream broke, ms."
    )
    warm_up_ms: int = Field(
        1_000, ge=0, le=600_000, description="Time after the first report before anything is answered, ms."
    )
    lease: str = Field(
        "none",
        pattern=r"^(none|file:.+|kubernetes:[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)$",
        description="Who leads, of several: `none` = this is the only rebalancer, `file:PATH` on one machine, "
        "`kubernetes:NAME` = the Lease of that name in the namespace of the pod.",
    )
    lease_ms: int = Field(
        6_000, ge=100, le=600_000, description="Time that others wait for a leader that gives no sign of life, ms."
    )
    lease_renew_ms: int = Field(
        4_000, ge=50, le=600_000, description="Time that a leader goes on when it cannot renew its lease, ms."
    )
    lease_retry_ms: int = Field(1_000, ge=10, le=600_000, description="Between two renewals, and two looks, ms.")
    topology: Literal["none", "kubernetes"] = Field(
        "none",
        description="Where zones and places of members without labels come from: `kubernetes` = watch pods and nodes.",
    )
    kubernetes_namespace: str = Field(
        "", max_length=63, description="Namespace of the Lease and of the members' pods; empty = that of this pod."
    )
    machine_rooms: str = Field("", max_length=4_096, description="Rooms that MACHINE_ROOM divides, comma-separated.")
    brokers_max: int = Field(1_000, ge=1, description="Most brokers that report.")
    groups_max: int = Field(10_000, ge=1, description="Most groups that one broker may tell.")
    topics_max: int = Field(10_000, ge=1, description="Most topics that one broker may tell.")
    members_max: int = Field(2_000, ge=1, description="Most members of one group at one broker.")
    decisions_max: int = Field(20_000, ge=1, description="Most pairs of group and topic.")
    request_modes_max: int = Field(
        10_000, ge=1, description="Most pairs of group and topic with a request mode of their own."
    )

    auth: AuthSettings = Field(AuthSettings(), description="Who may call.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.timing()
        return self

    def timing(self) -> LeaseTiming:
        """Times of the election. Raises ValueError unless retry < renew < duration."""
        return LeaseTiming(duration_ms=self.lease_ms, renew_ms=self.lease_renew_ms, retry_ms=self.lease_retry_ms)

    def limits(self) -> EngineLimits:
        """The part that `core` needs."""
        return EngineLimits(
            grace_ms=self.grace_ms,
            warm_up_ms=self.warm_up_ms,
            brokers_max=self.brokers_max,
            groups_max=self.groups_max,
            topics_max=self.topics_max,
            members_max=self.members_max,
            decisions_max=self.decisions_max,
            request_modes_max=self.request_modes_max,
            machine_rooms=tuple(room for part in self.machine_rooms.split(",") if (room := part.strip())),
        )
