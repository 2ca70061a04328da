"""Where a query with `startingOffsets=latest` began, kept at the brokers until Spark has a batch of it.

Called by the stream reader's runner. Spark logs where a query begins only with its first batch, and that waits for the
first message: a driver that dies before would begin again at what is the latest then, and leave out what was sent
meanwhile. So the start is kept as the progress of a group of its own, `GROUP-start`, and is preferred by the next start
without a checkpoint, unless the group itself has read past it since: then the user wants the latest anew. It is deleted
as soon as a batch is logged. Kept apart from the group's own progress, because others who go on in the group must not
leave anything out for a query that has read nothing yet.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

from evenq import errors
from evenq.model.queue import MessageQueue
from pyspark_evenq import cluster
from pyspark_evenq.made_group import delete_group
from pyspark_evenq.member_options import AssignmentMode
from pyspark_evenq.offset_options import Place
from pyspark_evenq.offsets import Positions
from pyspark_evenq.options import ReadOptions
from pyspark_evenq.positions import QueueState

__all__ = ["PinnedStart"]

log = logging.getLogger(__name__)


class PinnedStart:
    """Of one query. Nothing is kept for other starts: those mean the same whenever they are looked up."""

    def __init__(self, options: ReadOptions, *, client_id: str) -> None:
        self._options = options
        self._client_id = client_id
        spec = options.starting
        by_time = spec is not None and bool(spec.time_ms or spec.times)
        latest = spec is not None and spec.place is Place.LATEST and not by_time
        shares = options.membership.assignment is AssignmentMode.SHARED  # it begins where the group is, and keeps that
        self._group = f"{options.group}-start" if options.group and latest and not shares else ""

    def preferred(
        self, starts: Positions, states: Mapping[MessageQueue, QueueState], route: cluster.Route
    ) -> dict[MessageQueue, int]:
        """`starts`, or what was kept. Queues that came since are read from where the group is, else whole. Raises what
        brokers answer who may know of a start and do not tell.
        """
        kept = self._kept({queue: route[queue] for queue in states if queue in route})
        if not kept or any(states[queue].committed > kept[queue] for queue in kept):
            return dict(starts)
        log.warning("group %s: starting where the last run started, because it completed no batch", self._options.group)
        return {
            queue: kept.get(queue, state.committed if state.committed >= 0 else state.bounds.low)
            for queue, state in states.items()
        }

    def keep(self, starts: Positions, route: cluster.Route) -> None:
        """Store the start. Never raises: the query can begin without."""
        if not self._group:
            return
        here = {queue: route[queue] for queue in starts if queue in route}
        for address, queues in cluster.by_address(here).items():
            positions = {queue: starts[queue] for queue in queues}
            try:
                cluster.commit(address, self._group, positions, client_id=self._client_id)
            except errors.Error as failure:
                log.warning(
                    "the start could not be saved at %s, so after a crash `latest` may be later: %s", address, failure
                )

    def drop(self) -> None:
        """Spark has a batch: the checkpoint says where the query began. The first call counts."""
        group, self._group = self._group, ""
        if not group:
            return
        try:
            delete_group(self._options.endpoints, group)
        except errors.GroupNotFound:
            pass  # deleted by an earlier run
        except errors.Error as failure:
            log.warning("group %s was not deleted; delete it with `evenq group delete %s`: %s", group, group, failure)

    def _kept(self, route: cluster.Route) -> dict[MessageQueue, int]:
        if not self._group:
            return {}
        committed: dict[MessageQueue, int] = {}
        for address, queues in cluster.by_address(route).items():
            try:
                states = cluster.persist(
                    "the kept start",
                    partial(cluster.query, address, queues, group=self._group),
                    timeout_ms=self._options.read_timeout_ms,
                )
            except (errors.Forbidden, errors.GroupNotFound) as refused:
                log.warning("the start of group %s could not be saved: %s", self._options.group, refused)
                return {}
            committed |= {queue: state.committed for queue, state in states.items() if state.committed >= 0}
        return committed
