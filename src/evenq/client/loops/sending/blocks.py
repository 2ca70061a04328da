"""The division of `send_batch` into blocks. Both faces submit each block as soon as `Blocks.of` yields it, so that
brokers work while the next block is encoded.

Adjacent messages of one topic that may go to any queue form a run. A run is spread over the queues as if each message
took its turn (PR-2, PR-6), but neighbours share a queue: so the first block is full early, and calls are large. Every
other message is yielded by itself between the blocks: one with an order or a time, and all while the topic's route is
unknown or old.

Invariant: if the user's iterable or a message fails, all messages before it are yielded before the error is raised, in
the order in which they were given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from evenq.client.loops.sending.outgoing import Encoded, Outcomes, SendBlock, SendResult, goes_anywhere
from evenq.client.options import ProducerOptions
from evenq.model import Message, MessageQueue
from evenq.runtime.clock import Clock

BLOCK_MAX = 128
"""Most messages of a block. Brokers accept thousands, but they start when the first block arrives."""
FULL_FROM = 16
"""A block of fewer messages waits in its queue's batch until the flush."""
DRAWN_BYTES = 4 << 20
"""Bytes of bodies that are taken from the user's iterable before the first one is encoded."""
DRAWN_MS = 20
"""Longest time for which a slow iterable delays its earlier messages, ms."""

Spread = Callable[[str, int], tuple[Sequence[MessageQueue], int] | None]
"""Returns the queues of a topic and the first of a number of turns, as `Sending.spread`; None: not known."""


class Blocks:
    """The division for one producer; thread-safe."""

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
        # A block enters the gate as a whole, and the gate wakes a sender only once it is half empty.
        self._messages_max = min(BLOCK_MAX, options.batch_messages, max(1, options.pending_messages // 2))
        self._bytes_max = min(options.batch_bytes, options.pending_bytes // 2)

    def of(self, messages: Iterable[Message]) -> Iterator[SendBlock | Message]:
        """Yields blocks and single messages. Raises errors of `messages` and `encode`."""
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
        """Returns the largest run that begins with the message: one block for each queue."""
        spread = self._spread(message.topic, 0) if goes_anywhere(message) else None
        return 1 if spread is None else len(spread[0]) * self._messages_max

    def _cut(self, messages: Sequence[Message], queue: MessageQueue) -> Iterator[SendBlock]:
        """Yields one block, or several if there are too many bytes."""
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
    """Returns the results of blocks and single messages, in order. Raises the first error after all are complete."""
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
