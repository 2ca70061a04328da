"""The open telemetry streams of v2 clients: answers to their settings, and commands of the broker.

Nothing waits for a client. A command that finds the outbox full is rejected; a client whose outbox was full for
`DEAF_MS` loses its stream (wire contract 4.1, 4.5). Answers wait for space, so the broker stops reading from a client
that stops reading. A client may have several open streams: the newest gets the commands. `tried` returns each stream on
trial once, after a while.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable
from itertools import islice

from evenq.errors import Error
from evenq.runtime.clock import Clock
from evenq_broker.core.clients.client_table import PRODUCER

DEAF_MS = 10_000
BYTES_MAX = 16 << 20
STREAMS_PER_CLIENT = 8
CANDIDATES_MAX = 8


class TelemetryStream:
    """One telemetry stream."""

    def __init__(self, client_id: str, clock: Clock, commands_max: int) -> None:
        self.client_id = client_id
        self.topics: frozenset[str] = frozenset()
        """Topics that its producer publishes to; empty for consumers and before the first settings."""
        self.client_type = 0
        """Number of the v2 `ClientType` in its settings; 0 = none yet."""
        self.retired = False
        """The client ended or was silent, and has not sent its settings again."""
        self.ended = False
        self.error: Error | None = None
        """Reason of its end, if the client should receive it."""
        self._clock = clock
        self._commands_max = commands_max
        self._outbox: deque[bytes] = deque()
        self._bytes = 0
        self._taken_ms = clock.monotonic_ms()
        self._changed = asyncio.Event()

    def push(self, frame: bytes) -> bool:
        """Sends a command if there is space for it. A stream without space for `DEAF_MS` ends."""
        if self.ended:
            return False
        full = len(self._outbox) >= self._commands_max or self._bytes + len(frame) > BYTES_MAX
        if full and self._outbox:
            if self._clock.monotonic_ms() - self._taken_ms > DEAF_MS:
                self.end()
            return False
        if not self._outbox:
            self._taken_ms = self._clock.monotonic_ms()
        self._put(frame)
        return True

    async def answer(self, frame: bytes) -> None:
        """Sends an answer as soon as earlier frames were taken."""
        while self._outbox and not self.ended:
            await self._change()
        self._put(frame)

    async def take(self) -> list[bytes]:
        """Waits for frames and takes them all; an empty list means that the stream should end."""
        while not self._outbox and not self.ended:
            await self._change()
        frames = list(self._outbox)
        self._outbox.clear()
        self._bytes = 0
        self._taken_ms = self._clock.monotonic_ms()
        self._wake()
        return frames

    def end(self) -> None:
        """Ends the stream: `take` returns the rest, and then nothing. Idempotent."""
        self.ended = True
        self._wake()

    def _put(self, frame: bytes) -> None:
        self._outbox.append(frame)
        self._bytes += len(frame)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self) -> None:
        await self._changed.wait()


class Streams:
    """Client id -> its streams, the newest last; and topic -> the streams of its producers."""

    def __init__(self, clock: Clock, *, commands_max: int = 256) -> None:
        self._clock = clock
        self._commands_max = commands_max
        self._streams: dict[str, list[TelemetryStream]] = {}
        self._producers: dict[str, dict[TelemetryStream, None]] = {}
        self._on_trial: OrderedDict[TelemetryStream, int] = OrderedDict()
        """Opening time, monotonic ms."""

    def __len__(self) -> int:
        return sum(map(len, self._streams.values()))

    def open(self, client_id: str, *, on_trial: bool = False) -> TelemetryStream:
        """Opens a new stream; the oldest one of a client with too many ends."""
        stream = TelemetryStream(client_id, self._clock, self._commands_max)
        if on_trial:
            self._on_trial[stream] = self._clock.monotonic_ms()
        streams = self._streams.setdefault(client_id, [])
        streams.append(stream)
        if len(streams) > STREAMS_PER_CLIENT:
            streams.pop(0).end()
        return stream

    def publish(self, stream: TelemetryStream, topics: Iterable[str]) -> list[str]:
        """Sets the topics that its producer publishes to; returns those that are new."""
        current = frozenset(topics)
        for topic in stream.topics - current:
            self._withdraw(stream, topic)
        fresh = sorted(current - stream.topics)
        for topic in fresh:
            self._producers.setdefault(topic, {})[stream] = None
        stream.topics = current
        return fresh

    def close(self, stream: TelemetryStream) -> None:
        """Removes an ended stream. Idempotent."""
        stream.end()
        self._on_trial.pop(stream, None)
        self.publish(stream, ())
        streams = self._streams.get(stream.client_id, [])
        if stream in streams:
            streams.remove(stream)
        if not streams:
            self._streams.pop(stream.client_id, None)

    def tried(self, trial_ms: int) -> list[TelemetryStream]:
        """Returns open streams whose trial ended, each once."""
        until_ms = self._clock.monotonic_ms() - trial_ms
        over: list[TelemetryStream] = []
        while self._on_trial:
            stream, opened_ms = next(iter(self._on_trial.items()))
            if opened_ms > until_ms:
                break
            del self._on_trial[stream]
            over.append(stream)
        return over

    def retire(self, client_id: str) -> None:
        """Stops transaction checks to a client that ended or is silent, until it sends its settings again."""
        for stream in self._streams.get(client_id, ()):
            self.publish(stream, ())
            stream.retired = True

    def reaches(self, client_id: str, *, types: Collection[int] = ()) -> bool:
        """True if the client has a stream here; `types` as in `push`."""
        return any(not types or stream.client_type in types for stream in self._streams.get(client_id, ()))

    def push(self, client_id: str, frame: bytes, *, types: Collection[int] = ()) -> bool:
        """Sends a command to a client; False: no stream here takes it. `types`: only streams of these client types."""
        streams = self._streams.get(client_id, ())
        return any(stream.push(frame) for stream in reversed(streams) if not types or stream.client_type in types)

    def sender(self, client_id: str) -> list[TelemetryStream]:
        """Returns one producer's streams, the newest first. SDKs also send to topics that they did not declare."""
        known = reversed(self._streams.get(client_id, ()))
        return [one for one in known if one.topics or (one.client_type == PRODUCER and not one.retired)]

    def producers(self, topic: str, *, but: str = "") -> list[TelemetryStream]:
        """Returns the newest streams of a few producers of the topic, taking turns; without client `but`."""
        known = self._producers.get(topic)
        if known is None:
            return []
        others = list(islice((stream for stream in known if stream.client_id != but), CANDIDATES_MAX))
        for stream in others[:1]:  # moves behind the others: its turn ended
            del known[stream]
            known[stream] = None
        return [self._newest(stream, topic) for stream in others]

    def _newest(self, stream: TelemetryStream, topic: str) -> TelemetryStream:
        streams = self._streams.get(stream.client_id, ())
        return next((one for one in reversed(streams) if topic in one.topics), stream)

    def _withdraw(self, stream: TelemetryStream, topic: str) -> None:
        known = self._producers[topic]
        del known[stream]
        if not known:
            del self._producers[topic]
