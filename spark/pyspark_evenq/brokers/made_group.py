"""A group that lives as long as its query: created under `groupIdPrefix` at the start, deleted at the stop.

Called by the stream reader's runner. The name has a random end, so only this query reads in the group, and its members,
progress and lag are those of the query. A restart from a checkpoint creates another group: the position is in the
checkpoint. The group is left behind only if the host was lost, or the brokers were unreachable at the stop.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from evenq import errors
from evenq.client.core.routes.access_points import access_points
from pyspark_evenq.brokers import connection
from pyspark_evenq.brokers.topic_routes import CALL_MS, first_answer
from pyspark_evenq.options.source import ReadOptions

log = logging.getLogger(__name__)
DELETE_MS = 800  # a query that is stopped ends within 2 s


class MadeGroup:
    """The group of one run of a query. `options` contain it; without a prefix they stay unchanged."""

    def __init__(self, options: ReadOptions) -> None:
        self.is_made_here = bool(options.group_id_prefix) and not options.group
        self.options = options
        if self.is_made_here:
            self.options = replace(options, group=f"{options.group_id_prefix}-{secrets.token_hex(8)}")
        self._made = False

    def make(self) -> None:
        """Creates the group, before any read or report. Raises the refusal of a broker, such as Forbidden."""
        if not self.is_made_here or self._made:
            return
        options = self.options
        try:
            _create(options.endpoints, options.group)
        except errors.ConnectionFailed as away:  # the other brokers have it, and the rest will receive it later
            log.warning("group %s is not known to every broker: %s", options.group, away)
        self._made = True

    def delete(self) -> None:
        """Deletes the group after its member has left. Never raises: the query has ended."""
        if not self._made:
            return
        self._made = False
        group = self.options.group
        try:
            delete_group(self.options.endpoints, group)
        except errors.Error as failure:
            log.warning("group %s was not deleted; delete it with `evenq group delete %s`: %s", group, group, failure)


def _create(endpoints: Sequence[str], group: str) -> None:
    """Creates a group at all brokers. Raises ConnectionFailed if some of them are unreachable."""
    from evenq.wire.status import check
    from evenq.wire.stubs.evenq.v1 import admin_pb2

    request = admin_pb2.CreateGroupRequest(group=group).SerializeToString()
    content = first_answer(endpoints, partial(_admin, "CreateGroup", request, CALL_MS))
    check(admin_pb2.CreateGroupResponse.FromString(content).status)


def delete_group(endpoints: Sequence[str], group: str) -> None:
    """Deletes a group with its progress, at all brokers. Raises as `_create`."""
    from evenq.wire.status import check
    from evenq.wire.stubs.evenq.v1 import admin_pb2

    request = admin_pb2.DeleteGroupRequest(group=group).SerializeToString()
    content = first_answer(endpoints, partial(_admin, "DeleteGroup", request, DELETE_MS))
    check(admin_pb2.DeleteGroupResponse.FromString(content).status)


def _admin(name: str, request: bytes, timeout_ms: int, endpoint: str) -> bytes:
    address = access_points(endpoint).addresses[0]
    return connection.unary(address, "/evenq.v1.Admin/" + name, request, timeout_ms=timeout_ms)
