"""How `send_batch` cuts what it is given into blocks: both faces walk over `Blocks.of` and hand over what it yields, as
soon as it yields it, so that brokers work while the next block is encoded.

Messages that follow each other, of one topic and free to go to any queue, make a run. A run is spread over the queues
as if each message took its turn (PR-2, PR-6), but neighbours share a queue: so its first block is full early, and no
call is smaller than it must be. Anything else is yielded as the message that it is, in its place between the blocks:
what has an order or a time, and everything while the topic's route is unknown or old.

Always true: what was drawn from the user's iterable before it, or a message of it, fails, is yielded before the error
is raised, in the order it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from evenq.client.loops.sending.outgoing import Encoded, Outcomes, SendBlock, SendResult, goes_anywhere
from evenq.client.options import ProducerOptions
from evenq.model import Message, MessageQueue
from evenq.runtime.clock import Clock

__all__ = ["Blocks", "results_of"]

BLOCK_MAX = 128
"""Messages of a block. Brokers take thousands, but they begin when the first block is there."""
FULL_FROM = 16
"""A block of fewer messages waits for company in its queue's batch until the flush."""
DRAWN_BYTES = 4 << 20
"""Bodies that are drawn from the user's iterable before the first of them is encoded."""
DRAWN_MS = 20
"""Longest that a slow iterable keeps back what it gave before."""

Spread = Callable[[str, int], tuple[Sequence[MessageQueue], int] | None]
"""The queues of a topic and the first turn, for this number of messages; None: not known now. See `Sending.spread`.
"""


class Blocks:
    """Cuts for one producer; in whatever thread calls, for any number at a time."""

    def __init__(
        self,
        encode: Callable[[Message], Encoded],
        spread: Spread,
        *,
        clock: Clock,
        options: ProducerOptions,
    ) -> None:
        self._encode = encode
        self._spread = spread
        self._clock = clock
        # a block enters the gate as a whole, and half of the gate is free each time that it lets a sender in
        self._messages_max = min(BLOCK_MAX, options.batch_messages, max(1, options.pending_messages // 2))
        self._bytes_max = min(options.batch_bytes, options.pending_bytes // 2)

    def of(self, messages: Iterable[Message]) -> Iterator[SendBlock | Message]:
        """What to hand over. Raises what `messages` raises, and as `encode` does."""
        for run in self._runs(messages):
            spread = self._spread(run[0].topic, len(run)) if goes_anywhere(run[0]) else None
            if spread is None:
                yield from run
                continue
            queues, first = spread
            begin = 0
            for turn in range(min(len(queues), len(run))):
                end = begin + (len(run) - turn + len(queues) - 1) // len(queues)
                yield from self._cut(run[begin:end], queues[(first + turn) % len(queues)])
                begin = end

    def _runs(self, messages: Iterable[Message]) -> Iterator[list[Message]]:
        run: list[Message] = []
        size = room = until_ms = 0
        try:
            for message in messages:
                if run and (
                    len(run) >= room
                    or size >= DRAWN_BYTES
                    or message.topic != run[0].topic
                    or not goes_anywhere(message)
                    or self._clock.monotonic_ms() >= until_ms
                ):
                    yield run
                    run = []
                if not run:
                    size, room = 0, self._room(message)
                    until_ms = self._clock.monotonic_ms() + DRAWN_MS
                run.append(message)
                size += len(message.body)
        except Exception:
            if run:
                yield run
            raise
        if run:
            yield run

    def _room(self, message: Message) -> int:
        """Of the run that begins with it: one block for each queue."""
        spread = self._spread(message.topic, 0) if goes_anywhere(message) else None
        return 1 if spread is None else len(spread[0]) * self._messages_max

    def _cut(self, messages: Sequence[Message], queue: MessageQueue) -> Iterator[SendBlock]:
        """One block, or several if there are too many bytes."""
        block = SendBlock(messages[0].topic, queue)
        try:
            for message in messages:
                encoded = self._encode(message)
                if block.contents and block.size + len(encoded.content) > self._bytes_max:
                    yield self._closed(block, full=True)
                    block = SendBlock(message.topic, queue)
                block.add(encoded.message_id, encoded.content)
        except Exception:
            if block.contents:
                yield self._closed(block)
            raise
        yield self._closed(block)

    @staticmethod
    def _closed(block: SendBlock, *, full: bool = False) -> SendBlock:
        block.urgent = full or block.count >= FULL_FROM
        return block


def results_of(outcomes: Iterable[Outcomes | SendResult | BaseException]) -> list[SendResult]:
    """Of blocks and single messages, in order. Raises the first error after all of them were looked at."""
    results: list[SendResult] = []
    failure: BaseException | None = None
    for outcome in outcomes:
        for result in outcome if isinstance(outcome, list) else (outcome,):
            if isinstance(result, SendResult):
                results.append(result)
            elif failure is None:
                failure = result
    if failure is not None:
        raise failure
    return results
