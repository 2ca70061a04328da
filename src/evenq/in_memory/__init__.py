"""A broker inside a test's own process, with its messages in memory, and faults that a test plans.

    with MemoryCluster() as cluster, evenq.Producer(endpoint=cluster.endpoint) as producer:
        cluster.faults.duplicate(1)
        producer.send("orders", b"first")

The fixture `evenq_memory` of the pytest plugin provides one.
"""

from __future__ import annotations

from evenq.in_memory.cluster import MemoryCluster
from evenq.in_memory.faults import SendFaults

__all__ = ["MemoryCluster", "SendFaults"]
