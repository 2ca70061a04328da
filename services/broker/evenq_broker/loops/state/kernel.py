"""The kernel of a broker: the parts that nearly every feature of `loops`, `rpc` and `metrics` needs.

The composition root creates it before the features. A feature that uses them for each message binds them in its
constructor.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Kernel:
    runtime: Runtime
    """Settings, time, randomness, network, counters and tasks."""
    catalog: Catalog
    """Topics and groups."""
    ledger: Ledger
    """Message store, journal and progress: the durable state."""
