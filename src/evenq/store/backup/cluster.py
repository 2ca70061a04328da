"""The one file of a whole target: `cluster.json`, written after every broker of a run has its manifest.

It says which run of each broker belongs to the newest run of the cluster. Brokers are backed up one after the other, so
each stands at a moment of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from evenq.errors import PreconditionFailed, StoreCorrupted
from evenq.store.backup.target import BackupTarget, read_small, write_small

__all__ = ["ClusterRun", "check_cluster", "read_cluster", "write_cluster"]

PATH = "cluster.json"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRun:
    """The newest finished run."""

    cluster: str
    created_ms: int
    brokers: Mapping[str, int]
    """Name to the number of its run."""


def read_cluster(target: BackupTarget) -> ClusterRun | None:
    """None: no run was finished here. Raises StoreCorrupted, StoreError."""
    if PATH not in target.sizes(""):
        return None
    try:
        text = json.loads(read_small(target, PATH))
        if text["format"] != FORMAT:
            raise ValueError(f"its format is {text['format']!r}, this program reads {FORMAT}")
        brokers = {str(name): int(number) for name, number in text["brokers"].items()}
        return ClusterRun(cluster=str(text["cluster"]), created_ms=int(text["created_ms"]), brokers=brokers)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreCorrupted(
            f"{target.describe(PATH)} cannot be read ({error}): remove it, the next backup writes it again"
        ) from error


def check_cluster(target: BackupTarget, cluster: str) -> None:
    """Raises PreconditionFailed for a target of another cluster."""
    known = read_cluster(target)
    if known is not None and known.cluster != cluster:
        raise PreconditionFailed(
            f"{target.describe('')} has backups of cluster {known.cluster!r}, and this one is {cluster!r}: give each "
            "cluster a target of its own"
        )


def write_cluster(target: BackupTarget, run: ClusterRun) -> None:
    """With the brokers of older runs that this one did not touch. Raises StoreFull, StoreError."""
    known = read_cluster(target)
    brokers = {**(known.brokers if known is not None else {}), **run.brokers}
    text = {"format": FORMAT, "cluster": run.cluster, "created_ms": run.created_ms, "brokers": brokers}
    write_small(target, PATH, (json.dumps(text, indent=1) + "\n").encode())
