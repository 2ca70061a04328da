"""Sending messages (LQ-1, LQ-3, LQ-5).

A producer has a number among the open producers of its name, and the number is its queue: all its messages stay in one
queue, in order. All expensive work is done in the caller's thread, before any lock (LQ-73). Threads may share a
producer; their messages are stored in the order of the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from evenq.errors import BadRequest, StoreError
from evenq.local import pairs
from evenq.local.engine import Engine
from evenq.local.messages import Message
from evenq.runtime.closing import Closing


class Producer(Closing):
    """Producer of one name, created by `LocalQueues.producer`. Close it, or use it in a `with` block."""

    def __init__(self, engine: Engine, name: str, number: int, closed: Callable[[str, int], None]) -> None:
        self.name = name
        self.number = number
        self.queue_id = number % engine.options.queues_max
        self._engine = engine
        self._queue = engine.queue(name, self.queue_id)
        self._on_closed = closed
        self._closed = False

    def send(
        self,
        body: bytes | None,
        *,
        headers: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: float = 0.0,
    ) -> Message:
        """Stores one message and returns it with its offsets, when it is as safe as the options require. `None` is an
        empty body (LQ-17).

        Raises BodyTooLarge, PropertiesTooLarge, IllegalPropertyKey, StorePoisoned; with the memory engine
        TooManyRequests if the queue stays full for `timeout` seconds.
        """
        message = Message(
            self.name,
            self.queue_id,
            body if type(body) is bytes else _as_bytes(body),
            pairs.encode(headers, "headers") if headers else b"",
            pairs.encode(properties, "properties") if properties else b"",
        )
        self._put([message], timeout)
        return message

    def send_many(
        self,
        bodies: Sequence[bytes],
        *,
        headers: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: float = 0.0,
    ) -> list[Message]:
        """Stores messages in order with one write; headers and properties apply to each. After an error none of them is
        stored; after TooManyRequests the first ones are.
        """
        packed = (pairs.encode(headers, "headers"), pairs.encode(properties, "properties"))
        messages = [Message(self.name, self.queue_id, _as_bytes(body), *packed) for body in bodies]
        if messages:
            self._put(messages, timeout)
        return messages

    def _put(self, messages: list[Message], timeout: float) -> None:
        if self._closed:
            raise StoreError(f"producer {self.number} of {self.name!r} is closed: open another one")
        self._engine.put(self._queue, messages, int(timeout * 1000))

    def close(self) -> None:
        """Releases the number. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._on_closed(self.name, self.number)


def _as_bytes(body: object) -> bytes:
    if type(body) is bytes:
        return body
    if body is None:
        return b""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise BadRequest(f"the body is of type {type(body).__name__}, it must be bytes: encode text before sending it")
