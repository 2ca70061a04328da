"""Topics and groups that a request names: the fields of its message (`evenq.serving.auth.calls` lists them).

Used by `evenq.serving.auth.guard` for users whose rights depend on names. Every element of a request is checked, not
only the first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from evenq.errors import BadRequest
from evenq.serving.auth.users import UserResource
from evenq.serving.rpc import Action
from evenq.wire.status import DecodeError
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2

REPLY_TAG = re.compile(r"reply-[0-9a-f]{24}\Z")
"""Tag of a client's replies (`evenq.client.loops.sending.replies`): random, so only its owner and repliers have it."""


class Named(NamedTuple):
    """One name in a request. A name with its own action is not what the call as a whole is about: it is checked, but
    does not replace a name that the call leaves out.
    """

    kind: UserResource
    name: str
    action: Action | None = None


class _Path:
    """Path of names in a message: attribute after attribute, some of them repeated."""

    __slots__ = ("action", "is_text", "kind", "place", "steps")

    def __init__(self, kind: UserResource, field_path: str, action: Action | None, request: type[Any]) -> None:
        self.kind, self.place, self.action = kind, field_path, action
        descriptor = request.DESCRIPTOR
        self.steps: list[tuple[str, bool]] = []
        for name in field_path.split("."):
            field = descriptor.fields_by_name[name]
            self.steps.append((name, field.is_repeated))
            descriptor = field.message_type
        self.is_text = descriptor is None  # False: a v2 Resource

    def of(self, message: Any) -> list[Named]:
        """Returns the names there, without empty ones."""
        values = [message]
        for name, repeated in self.steps:
            if repeated:
                values = [inner for value in values for inner in getattr(value, name)]
            else:
                values = [getattr(value, name) for value in values]
        names = values if self.is_text else [value.name for value in values]
        return [Named(self.kind, name, self.action) for name in names if name]


class Names:
    """Names in the requests of one call."""

    def __init__(self, request: type[Any], *paths: str, client: str = "") -> None:
        """`paths`: `topic messages.topic`, `group group`, or with its own action, `topic a.b publish`. `client`: field
        of the client id under which the call acts.
        """
        self.request = request
        self.client = client.split(".") if client else []
        self.paths: list[_Path] = []
        for path in paths:
            kind, field_path, *action = path.split(" ")
            self.paths.append(_Path(UserResource(kind), field_path, Action(action[0]) if action else None, request))

    def read(self, request: bytes, decoded: tuple[bytes, Any, Any] | None = None) -> Any:
        """Returns the request as a message, if possible that of `decoded` (`RpcContext`). Raises BadRequest."""
        if decoded is not None and decoded[0] is request:
            return decoded[1]
        try:
            return self.request.FromString(request)
        except DecodeError as error:
            raise BadRequest(f"the request does not decode as {self.request.__name__}: {error}") from error

    def asks_for_replies(self, message: Any) -> bool:
        """Returns whether the call reads only messages to one client: of one tag of 96 random bits, for no group."""
        if self.request is not data_pb2.PullRequest or message.group or message.filter.type != common_pb2.Filter.TAG:
            return False
        return bool(REPLY_TAG.match(message.filter.expression))

    def client_of(self, message: Any) -> str:
        """Returns the client id under which the call acts, if the request names one."""
        if not self.client:
            return ""
        for step in self.client:
            message = getattr(message, step)
        return str(message)

    def of(self, message: Any) -> Sequence[Named]:
        """Returns all names, each once."""
        names = [named for path in self.paths for named in path.of(message)]
        # A batch repeats one topic many times, and each name costs a check of the grants.
        return names if len(names) < 2 else list(dict.fromkeys(names))
