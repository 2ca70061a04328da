"""From the setting `lease` to a lease: none, a file, or an object of Kubernetes."""

from __future__ import annotations

from pathlib import Path

from evenq.errors import SettingsError
from evenq.serving.kubernetes.api import KubernetesApi
from evenq_rebalancer.loops.file_lease import FileLease
from evenq_rebalancer.loops.kubernetes_lease import KubernetesLease
from evenq_rebalancer.loops.leading import Lease
from evenq_rebalancer.settings import RebalancerSettings

__all__ = ["lease_of"]

EVERYWHERE = {"", "0.0.0.0", "::"}  # compared with, never bound  # nosec B104


def lease_of(settings: RebalancerSettings) -> Lease | None:
    """The lease that the settings name; None: this rebalancer is the only one. Raises SettingsError if others could
    not reach it.
    """
    kind, _, name = settings.lease.partition(":")
    if kind == "none":
        return None
    if not settings.advertise and settings.host in EVERYWHERE:
        raise SettingsError(
            f"lease = {settings.lease!r} with host = {settings.host!r}: brokers need an address at which they "
            "reach this rebalancer; set advertise to its host:port"
        )
    if kind == "file":
        return FileLease(Path(name))
    return KubernetesLease(KubernetesApi(settings.kubernetes_namespace), name)
