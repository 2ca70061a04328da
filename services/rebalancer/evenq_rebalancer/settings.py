"""All settings of the rebalancer. Flags override the environment (`EVENQ_REBALANCER_*`), which overrides defaults.

`evenq.serving` loads them and refuses unknown ones. Nothing else in the program reads the environment.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from evenq.serving.auth.server_auth import AuthSettings
from evenq.serving.program.settings import ServerSettings
from evenq_rebalancer.core.assignment_engine import EngineLimits
from evenq_rebalancer.core.election import LeaseTiming


class RebalancerSettings(ServerSettings, frozen=True, extra="forbid"):
    """The rebalancer's settings."""

    port: int = Field(8083, ge=-1, le=65_535, description="gRPC port without TLS; 0 = any free one, -1 = off.")
    cluster: str = Field("evenq", min_length=1, max_length=127, description="Name of the cluster, shown in metrics.")
    debounce_ms: int = Field(
        5, ge=0, le=10_000, description="A group is decided when it has not changed for this time, ms."
    )
    debounce_max_ms: int = Field(
        50, ge=0, le=60_000, description="Longest time from the first of several changes to the decision, ms."
    )
    grace_ms: int = Field(
        10_000,
        ge=0,
        le=600_000,
        description="How long the reports of a broker still count after its stream has ended, ms.",
    )
    warm_up_ms: int = Field(
        1_000,
        ge=0,
        le=600_000,
        description="Time after the first report before decisions are made, ms, so that other brokers can report too.",
    )
    lease: str = Field(
        "none",
        pattern=r"^(none|file:.+|kubernetes:[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)$",
        description="How one of several rebalancers becomes the leader: `none` = this is the only one, "
        "`file:PATH` for several on one machine, `kubernetes:NAME` = the Lease with this name in the "
        "namespace of the pod.",
    )
    lease_ms: int = Field(
        6_000,
        ge=100,
        le=600_000,
        description="A leader that did not renew its lease for this time is replaced, ms; more than lease_renew_ms.",
    )
    lease_renew_ms: int = Field(
        4_000,
        ge=50,
        le=600_000,
        description="A leader that cannot renew its lease for this time stops leading, ms; more than lease_retry_ms.",
    )
    lease_retry_ms: int = Field(
        1_000,
        ge=10,
        le=600_000,
        description="Time between two renewals of the lease, and between two reads of it by the others, ms.",
    )
    topology: Literal["none", "kubernetes"] = Field(
        "none",
        description="Source of zones and places of members without labels: `kubernetes` = watch pods and nodes.",
    )
    kubernetes_namespace: str = Field(
        "",
        max_length=63,
        description="Namespace of the Lease and of the members' pods; empty = the namespace of this pod.",
    )
    machine_rooms: str = Field(
        "",
        max_length=4_096,
        description="Machine rooms among which the strategy MACHINE_ROOM divides queues, comma-separated.",
    )
    brokers_max: int = Field(1_000, ge=1, description="Most brokers that report.")
    groups_max: int = Field(10_000, ge=1, description="Most groups that one broker reports.")
    topics_max: int = Field(10_000, ge=1, description="Most topics that one broker reports.")
    members_max: int = Field(2_000, ge=1, description="Most members of one group at one broker.")
    decisions_max: int = Field(20_000, ge=1, description="Most pairs of group and topic.")
    request_modes_max: int = Field(
        10_000, ge=1, description="Most pairs of group and topic with a request mode of their own."
    )

    auth: AuthSettings = Field(AuthSettings(), description="Users who may call.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.timing()
        return self

    def timing(self) -> LeaseTiming:
        """Returns the times of the election. Raises ValueError unless retry < renew < duration."""
        return LeaseTiming(duration_ms=self.lease_ms, renew_ms=self.lease_renew_ms, retry_ms=self.lease_retry_ms)

    def limits(self) -> EngineLimits:
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
