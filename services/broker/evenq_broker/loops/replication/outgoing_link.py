"""The link to one peer: opened, kept, and opened again after growing pauses, for as long as the broker lives.

Messages leave in order, and the pieces of one message without others between. A link that is silent for `SILENT_MS` is
lost, however healthy its connection looks. A failed connection is never used again. The name in the address is resolved
anew for the next one, because a pod that comes back has another IP. An outage is one line in the log at its begin and
one at its end. Made by `peer_links.PeerLinks`, which also runs it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import NamedTuple

from evenq.errors import ConnectionFailed, Error, RequestTimeout
from evenq.runtime.backoff import Backoff
from evenq.runtime.duplex import Duplex, open_duplex
from evenq.runtime.tasks import spawn
from evenq_broker.core.replication.messages import Envelope, EpochsRequest, FollowerProgress, Records
from evenq_broker.loops.state.signals import Signal
from evenq_broker.loops.wire.replication import (
    LinkOpening,
    MalformedMessage,
    envelope_bytes,
    envelope_pieces,
    link_end,
    opening_message,
)
from evenq_broker.runtime import Runtime

log = logging.getLogger(__name__)
METHOD = "/evenq.v1.Replication/Link"
SILENT_MS = 5_000
"""The link is lost if the peer is silent for this time; it sends something each `BEAT_MS`."""
RETRY_FIRST_MS, RETRY_MAX_MS = 100, 2_000
STOOD_MS = 10_000
"""After a link that lasted this long, the next pause is the first one again."""
MESSAGES_MAX = 64
BYTES_MAX = 8 << 20


class _Waiting(NamedTuple):
    envelope: Envelope
    size: int


def _has_records(one: _Waiting) -> bool:
    return isinstance(one.envelope.body, Records)


class Outbox:
    """Messages that wait to be sent on one link, bounded by number and by bytes. The sender never waits.

    The current message is being sent. It may have any size that can be sent, and so may the only records behind a small
    one: otherwise large groups would never leave. All others together are `MESSAGES_MAX` messages and `BYTES_MAX`
    bytes. The rest is dropped, because the protocol repeats what matters. Records displace nothing; of a follower's
    reports the newest is the most valuable.
    """

    def __init__(self, *, messages_max: int = MESSAGES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._messages_max, self._bytes_max = messages_max, bytes_max
        self._waiting: deque[_Waiting] = deque()
        self._hand: _Waiting | None = None
        self.bytes = 0
        """Of waiting messages, without the current one, or the only records behind it."""
        self.dropped = 0
        """Messages since the start that were not sent: the outbox was full, or there was no link."""

    def __len__(self) -> int:
        """Number of messages, the current one included."""
        return len(self._waiting) + (self._hand is not None)

    @property
    def in_hand(self) -> Envelope | None:
        """The current message, which is sent now or next; None: there is nothing to send."""
        return None if self._hand is None else self._hand.envelope

    def put(self, envelope: Envelope) -> bool:
        """Queues a message; False: it was dropped. Raises MalformedMessage for one that cannot be sent."""
        one = _Waiting(envelope, envelope_bytes(envelope))
        if self._hand is None:
            self._hand = one
            return True
        if _has_records(one) and not any(map(_has_records, (self._hand, *self._waiting))):
            one = _Waiting(envelope, 0)
        if not self._make_room(one):
            self.dropped += 1
            return False
        self._waiting.append(one)
        self.bytes += one.size
        return True

    def sent(self) -> None:
        """Ends the current message, sent or broken off: the next one becomes current."""
        self._hand = self._waiting.popleft() if self._waiting else None
        if self._hand is not None:
            self.bytes -= self._hand.size

    def drop_records(self) -> None:
        """Drops records at the end of the link; the peer requests them again. Small messages stay: they may be lost."""
        kept = [one for one in (self._hand, *self._waiting) if one is not None]
        small = [one for one in kept if not _has_records(one)]
        self.dropped += len(kept) - len(small)
        self._hand = small[0] if small else None
        self._waiting = deque(small[1:])
        self.bytes = sum(one.size for one in self._waiting)

    def _make_room(self, one: _Waiting) -> bool:
        """True if it fits now; earlier reports of a follower are dropped for it, the oldest first."""
        count, size = len(self._waiting), self.bytes + one.size
        going = []
        for old in self._waiting if not _has_records(one) else ():
            if count < self._messages_max and size <= self._bytes_max:
                break
            if isinstance(old.envelope.body, FollowerProgress | EpochsRequest):
                going.append(old)
                count, size = count - 1, size - old.size
        if count >= self._messages_max or size > self._bytes_max:
            return False
        for old in going:
            self._waiting.remove(old)
        self.bytes -= sum(old.size for old in going)
        self.dropped += len(going)
        return True


class LinkClosed(Error):
    """The peer closed the link, with a reason. Its connection is still good."""


class LinkTakenOver(LinkClosed):
    """The peer closed it for a newer link of this broker's number: another process may run with it."""


class _Attempt:
    """One call."""

    def __init__(self, now_ms: int) -> None:
        self.begun_ms = now_ms
        self.heard_ms = now_ms
        self.stands = False
        self.over = False
        self.call: Duplex | None = None
        self.opened = False
        self.pieces: Iterator[bytes] | None = None
        """Rest of the message that is being sent; None: nothing of it was sent."""


class OutgoingLink:
    """Link to one peer. Belongs to one loop."""

    def __init__(self, runtime: Runtime, opening: LinkOpening, address: str, *, outbox: Outbox | None = None) -> None:
        self.peer = opening.receiver
        """Broker id."""
        self.address = address
        self.outbox = outbox or Outbox()
        self.tries = 0
        """Calls since the link was last alive."""
        self._runtime, self._clock = runtime, runtime.clock
        self._opening = opening
        self._attempt: _Attempt | None = None
        self._interrupt = Signal()
        self._fault = ""
        self._paused_until_ms = 0
        self._lost_ms: int | None = runtime.clock.monotonic_ms()
        """Begin of the outage; None: the link is alive."""
        self._logged: set[type[Error]] = set()
        """Kinds of trouble logged in this outage: a peer may be unreachable first, then have a wrong certificate."""

    @property
    def connected(self) -> bool:
        """True: the peer accepts messages."""
        return self._attempt is not None and self._attempt.stands and not self._attempt.over

    def send(self, envelope: Envelope) -> bool:
        """Queues a message; False: dropped (full, or records without a link). Raises MalformedMessage."""
        # A follower requests records again when it is back; kept meanwhile they would only fill the memory.
        if not self.connected and isinstance(envelope.body, Records):
            self.outbox.dropped += 1
            return False
        taken = self.outbox.put(envelope)
        self._send_on()
        return taken

    def close(self, reason: str, pause_ms: int) -> None:
        """Ends the call for a fault of the peer, and opens none for `pause_ms`."""
        self._fault = reason
        if self._attempt is not None:
            self._attempt.over = True
        self._paused_until_ms = max(self._paused_until_ms, self._clock.monotonic_ms() + pause_ms)
        self._interrupt.notify()

    def hurry(self) -> None:
        """Ends the pause between two tries: the peer has connected here."""
        if not self.connected:
            self._interrupt.notify()

    # ------------------------------------------------------------------------------------------------------- its loop

    async def run(self) -> None:
        """Opens the link again and again; ends only when its task is cancelled."""
        backoff = Backoff(self._runtime.rng, first_ms=RETRY_FIRST_MS, max_ms=RETRY_MAX_MS)
        while True:
            now_ms = self._clock.monotonic_ms()
            seen = self._interrupt.count
            if now_ms < self._paused_until_ms:
                await self._clock.sleep_ms(self._paused_until_ms - now_ms)
                continue
            attempt = _Attempt(now_ms)
            cause = await self._call(attempt)
            if attempt.stands and self._clock.monotonic_ms() - attempt.begun_ms >= STOOD_MS:
                self._logged.discard(LinkTakenOver)
            self._lost(cause)
            if attempt.stands:
                seen = self._interrupt.count
                if self._clock.monotonic_ms() - attempt.begun_ms >= STOOD_MS:
                    backoff.reset()
            # A pod that comes back has another IP: resolve the name anew. A peer that closed the link is still there.
            if not isinstance(cause, LinkClosed):
                await self._renew()
            await self._interrupt.wait(seen, clock=self._clock, timeout_ms=backoff.next_ms())

    async def _call(self, attempt: _Attempt) -> Error:
        """Makes one call; returns why it ended."""
        self._attempt, self._fault = attempt, ""
        talking: asyncio.Task[Error] = spawn(self._talk(attempt), name=f"replication to broker {self.peer}")
        watching: asyncio.Task[Error] = spawn(self._watch(attempt), name=f"silence of broker {self.peer}")
        try:
            await asyncio.wait({talking, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            attempt.over = True
            talking.cancel()
            watching.cancel()
            await asyncio.wait({talking, watching})
            self.outbox.drop_records()
        if not talking.cancelled():
            return talking.result()
        return watching.result()

    async def _talk(self, attempt: _Attempt) -> Error:
        try:
            call = attempt.call = open_duplex(self._runtime.net, self.address, METHOD)
            call.on_room = self._send_on
            async with aclosing(call.answers()) as answers:
                return await self._listen(attempt, answers)
        except Error as error:
            return error

    async def _listen(self, attempt: _Attempt, answers: AsyncGenerator[bytes, None]) -> Error:
        """Reads until the peer ends the call; raises the error of the call."""
        async for data in answers:
            end = link_end(data)
            if end is not None:
                return (LinkTakenOver if end.taken_over else LinkClosed)(f"it closed the link: {end.reason}")
            attempt.heard_ms = self._clock.monotonic_ms()
            if not attempt.stands:
                attempt.stands = True
                self._stands()
                self._send_on()
        return ConnectionFailed("it ended the link without a reason")

    async def _watch(self, attempt: _Attempt) -> Error:
        """Returns why the call must end although it runs."""
        while True:
            if self._fault:
                return LinkClosed(self._fault)
            left_ms = attempt.heard_ms + SILENT_MS - self._clock.monotonic_ms()
            if left_ms <= 0:
                return RequestTimeout(f"it was silent for {SILENT_MS} ms")
            await self._interrupt.wait(self._interrupt.count, clock=self._clock, timeout_ms=left_ms)

    def _send_on(self) -> None:
        """Passes waiting messages on, as far as the call accepts them now."""
        attempt = self._attempt
        if attempt is None or attempt.call is None:
            return
        call, outbox = attempt.call, self.outbox
        while call.has_room and not attempt.over:
            if not attempt.opened:
                attempt.opened = True
                call.send(opening_message(self._opening))
                continue
            if attempt.pieces is None:
                envelope = outbox.in_hand if attempt.stands else None
                if envelope is None:
                    return
                attempt.pieces = envelope_pieces(envelope)
            try:
                piece = next(attempt.pieces, None)
            except MalformedMessage as error:  # a bug, or a log beyond 63 bits
                log.warning("replication of %s: %s", self._opening.broker_name, error, extra=self._facts())
                piece = None
            if piece is None:
                attempt.pieces = None
                outbox.sent()
            else:
                call.send(piece)

    async def _renew(self) -> None:
        renew = getattr(self._runtime.net, "renew", None)  # nets without connections have nothing to renew
        if renew is not None:
            await renew(self.address)

    # -------------------------------------------------------------------------------------------------------- the log

    def _stands(self) -> None:
        now_ms = self._clock.monotonic_ms()
        away_ms = 0 if self._lost_ms is None else now_ms - self._lost_ms
        log.info(
            "replication of %s: the link to broker %d at %s stands (%d ms and %d failed tries without it)",
            self._opening.broker_name,
            self.peer,
            self.address,
            away_ms,
            self.tries,
            extra=self._facts(),
        )
        self._lost_ms, self.tries = None, 0
        self._logged &= {LinkTakenOver}  # two processes that replace each other's link do so repeatedly

    def _lost(self, cause: Error) -> None:
        self.tries += 1
        if self._lost_ms is None:
            self._lost_ms = self._clock.monotonic_ms()
        if type(cause) not in self._logged:
            self._logged.add(type(cause))
            log.warning(
                "replication of %s: no link to broker %d at %s: %s",
                self._opening.broker_name,
                self.peer,
                self.address,
                cause.message,
                extra=self._facts(),
            )

    def _facts(self) -> dict[str, object]:
        return {"group": self._opening.broker_name, "peer": self.peer, "address": self.address}
