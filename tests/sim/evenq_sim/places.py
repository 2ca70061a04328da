"""Which broker stored a message, and in which life of its topic: read from the calls on the network.

A broker may pass a message on to another one; the innermost call is where it is. A topic that was made again between
the call and its answer leaves the place unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from evenq_proofs.sim import SimProcess

from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2

PUBLISH, SEND = "/evenq.v1.Data/Publish", "/apache.rocketmq.v2.MessagingService/SendMessage"
OK = 20000


class StoragePlaces:
    """Place by body."""

    def __init__(self, uid_of: Callable[[SimProcess], str]) -> None:
        self._uid_of = uid_of
        self._open: dict[tuple[int, str], str] = {}
        """Uid of the topic when the call came, by body and server."""
        self._places: dict[int, tuple[str, str]] = {}

    def of(self, body: int) -> tuple[str, str]:
        """Broker and uid; empty where it is not known."""
        return self._places.get(body, ("", ""))

    def put(self, body: int, place: tuple[str, str]) -> None:
        """Its place is known by other means."""
        self._places[body] = place

    def seen(self, server: SimProcess, method: str, request: bytes, answer: bytes | None) -> None:
        """A call came (answer None) or was answered."""
        if method not in {PUBLISH, SEND}:
            return
        bodies, uid = list(_bodies(method, request)), self._uid_of(server)
        if answer is None:
            for body in bodies:
                self._open[body, server.name] = uid
                self._places.pop(body, None)
            return
        if not _is_ok(method, answer):
            return
        for body in bodies:
            before = self._open.pop((body, server.name), "")
            if body not in self._places:
                self._places[body] = (server.host, uid if before in {"", uid} else "")


def _bodies(method: str, request: bytes) -> Iterable[int]:
    if method == PUBLISH:
        return [
            int(one.system_properties.message_id, 16) for one in data_pb2.PublishRequest.FromString(request).messages
        ]
    sent = service_pb2.SendMessageRequest.FromString(request)
    return [int(one.system_properties.message_id, 16) for one in sent.messages]


def _is_ok(method: str, answer: bytes) -> bool:
    if method == PUBLISH:
        return data_pb2.PublishResponse.FromString(answer).status.code == OK
    return service_pb2.SendMessageResponse.FromString(answer).status.code == OK
