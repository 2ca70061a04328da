"""Test support for evenq and its users: a cluster of real processes, a fake clock, recorded histories and their
checker.

It starts programs as processes and imports none of them. Of production code, only `evenq up --processes` imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenq.runtime.clock import FakeClock
    from evenq.testing.free_ports import FreePorts
    from evenq.testing.history import Recorder
    from evenq.testing.local_cluster import LocalCluster

__all__ = ["FakeClock", "FreePorts", "LocalCluster", "Recorder"]

_HOMES = {
    "FakeClock": "evenq.runtime.clock",
    "FreePorts": "evenq.testing.free_ports",
    "LocalCluster": "evenq.testing.local_cluster",
    "Recorder": "evenq.testing.history",
}


def __getattr__(name: str) -> Any:
    import importlib  # at first use: the checker needs no processes, and a test no checker

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
