"""What the core's replica, a term of leadership and routes get of a copy's settings. Called by `replicated_app`."""

from __future__ import annotations

from collections.abc import Mapping

from evenq_broker.core.replication.config import Mode, ReplicationConfig, Timing
from evenq_broker.settings import BrokerSettings

__all__ = ["MODES", "readable_copies", "replica_config", "term_settings"]

MODES = {"sync": Mode.REPL_SYNC, "memory": Mode.REPL_MEMORY}
RETRY_MS = 500
GATHER_BYTES = 64 << 10
"""As much as a follower writes and syncs in one step (`AT_ONCE_BYTES` of its log)."""


def replica_config(
    broker_settings: BrokerSettings, *, members: tuple[int, ...], restored_epoch: int
) -> ReplicationConfig:
    """`members`: broker ids, ascending; the lowest one founds the group. `restored_epoch`: of a folder that a backup
    was restored to, else 0.
    """
    settings = broker_settings.replication
    return ReplicationConfig(
        cluster=broker_settings.cluster,
        broker_id=settings.broker_id,
        members=members,
        min_isr=settings.min_in_sync,
        founds=settings.broker_id == members[0],
        restored_epoch=restored_epoch,
        adopts=settings.from_one_copy and settings.broker_id == members[0],
        mode=MODES[settings.mode],
        gather=GATHER_BYTES,
        timing=Timing(
            renew_ms=settings.renew_ms,
            suspect_ms=settings.suspect_ms,
            lag_ms=settings.lag_ms,
            retry_ms=min(settings.renew_ms, RETRY_MS),
            drain_ms=max(1, broker_settings.drain_ms),
            relief_ms=settings.relief_ms,
        ),
    )


def term_settings(settings: BrokerSettings) -> BrokerSettings:
    """With copies that count once they are synced, the leader's own counts like that, too: each group is synced."""
    if settings.replication.mode == "memory":
        return settings
    return settings.model_copy(update={"store": settings.store.model_copy(update={"flush": "sync"})})


def readable_copies(settings: BrokerSettings, addresses: Mapping[int, str]) -> tuple[str, ...]:
    """Where the other copies answer reads, as routes tell it. `addresses`: of all copies, by broker id."""
    if not settings.replication.follower_reads:
        return ()
    own, scheme = settings.replication.broker_id, "evenqs://" if settings.tls.peers else ""
    return tuple(scheme + address for number, address in sorted(addresses.items()) if number != own)
