"""The start of a query with `startingOffsets=latest`, stored at the brokers until Spark has logged a batch.

Called by the stream reader's runner. Spark logs the start only with the first batch, which waits for the first message.
If the driver died before, the query would begin again at a later `latest`, and would skip messages. So the start is
stored as the progress of a separate group (`pinned_group`). The next start without a checkpoint uses it, unless the
group has read past it: then `latest` means the latest now. It is deleted as soon as a batch is logged. In the group's
own progress, other members of the group could move it past messages that this query has not read.

The group is used and deleted without a question, so its name must be one that nobody takes by chance. Versions up to
0.2.0 called it `GROUP-start`. Such a group is neither read nor deleted: it may be somebody else's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from hashlib import blake2b

from evenq import errors
from evenq.model.names import GROUP_LENGTH_MAX
from evenq.model.queue import MessageQueue
from pyspark_evenq.brokers import cluster
from pyspark_evenq.brokers.made_group import delete_group
from pyspark_evenq.options.member import AssignmentMode
from pyspark_evenq.options.offsets import Place
from pyspark_evenq.options.source import ReadOptions
from pyspark_evenq.plan.offsets import Positions
from pyspark_evenq.plan.positions import QueueState

log = logging.getLogger(__name__)


PINNED = "-evenq-spark-latest"


def pinned_group(group: str) -> str:
    """Returns the group that stores the start of a query. It begins with `group`, for grants by prefix; a name that
    would be too long is shortened, with a hash.
    """
    if len(group) + len(PINNED) > GROUP_LENGTH_MAX:
        digest = blake2b(group.encode(), digest_size=4).hexdigest()
        group = f"{group[: GROUP_LENGTH_MAX - len(PINNED) - len(digest) - 1]}-{digest}"
    return group + PINNED


class PinnedStart:
    """The stored start of one query. Starts other than `latest` do not change with time, so they are not stored."""

    def __init__(self, options: ReadOptions, *, client_id: str) -> None:
        self._options = options
        self._client_id = client_id
        spec = options.starting
        by_time = spec is not None and bool(spec.time_ms or spec.times)
        latest = spec is not None and spec.place is Place.LATEST and not by_time
        shares = options.membership.assignment is AssignmentMode.SHARED  # its starts are stored as the group's progress
        self._group = pinned_group(options.group) if options.group and latest and not shares else ""

    def preferred(
        self, starts: Positions, states: Mapping[MessageQueue, QueueState], route: cluster.Route
    ) -> dict[MessageQueue, int]:
        """Returns the stored start, otherwise `starts`. Newer queues begin at the group's progress, otherwise at their
        first message. Raises if a broker that may have a stored start does not answer.
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
        """Stores the start. Never raises: the query can begin without it."""
        if not self._group:
            return
        here = {queue: route[queue] for queue in starts if queue in route}
        for address, queues in cluster.by_address(here).items():
            positions = {queue: starts[queue] for queue in queues}
            try:
                cluster.commit(address, self._group, positions, client_id=self._client_id)
            except errors.Error as failure:
                log.warning(
                    "the start could not be saved at %s, so after a crash before the first batch the query begins "
                    "there at a later `latest`, or, if other brokers saved it, at the group's progress or the first "
                    "message: %s",
                    address,
                    failure,
                )

    def drop(self) -> None:
        """Deletes the stored start, because the checkpoint has a batch. Only the first call has an effect."""
        group, self._group = self._group, ""
        if not group:
            return
        try:
            delete_group(self._options.endpoints, group)
            log.info("group %s is deleted: the checkpoint has the start of the query now", group)
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
                    "the saved start",
                    partial(cluster.query, address, queues, group=self._group),
                    timeout_ms=self._options.read_timeout_ms,
                )
            except (errors.Forbidden, errors.GroupNotFound) as refused:
                log.warning("the start of group %s could not be saved: %s", self._options.group, refused)
                return {}
            committed |= {queue: state.committed for queue, state in states.items() if state.committed >= 0}
        return committed
