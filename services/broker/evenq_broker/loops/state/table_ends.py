"""Ends of tables at one broker: retention keeps what their exporters have not written yet.

A topic has a table while its table group exists (`evenq.model.names.table_group`). The exporter commits the end of its
files to that group, so the end is durable, copied to followers, and visible as the lag of a group. A queue without a
committed offset has no file.
"""

from __future__ import annotations

import logging

from evenq.model.names import table_group
from evenq_broker.loops.state.kernel import Kernel

log = logging.getLogger(__name__)


class GroupTableEnds:
    """The `evenq.store.opening.cleaner.TableEnds` of a broker."""

    def __init__(self, kernel: Kernel) -> None:
        self._stats = kernel.runtime.stats
        self._catalog, self._ledger = kernel.catalog, kernel.ledger

    def exported(self, topic_id: int, queue_id: int) -> int | None:
        topic = self._catalog.topics.by_id(topic_id)
        # Closed queues and those of lite topics are not exported.
        if topic is None or queue_id >= topic.read_queues:
            return None
        group = self._catalog.groups.get(table_group(topic.name))
        return None if group is None else self._ledger.progress.committed(group.group_id, topic_id, queue_id) or 0

    def deleted(self, topic_id: int, queue_id: int, start: int, end: int) -> None:
        name = self._catalog.topic_name(topic_id)
        self._stats.topic(topic_id).unexported += end - start
        log.warning(
            "retention deleted offsets %d to %d of queue %d of topic %s, which were not exported to its table: the "
            "wait (store.table_wait_ms) or the disk ended; `evenq table export %s` continues after them with "
            "--allow-gaps",
            start,
            end - 1,
            queue_id,
            name,
            name,
            extra={"topic": name, "queue_id": queue_id, "start": start, "end": end},
        )
