"""What `send_batch` is given, cut into blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from evenq.client.core.sending.queue_choice import QueueCounter
from evenq.client.loops.sending.blocks import BLOCK_MAX, DRAWN_BYTES, DRAWN_MS, FULL_FROM, Blocks, results_of
from evenq.client.loops.sending.outgoing import SendBlock, SendResult
from evenq.client.options import ProducerOptions
from evenq.errors import BodyEmpty, Forbidden, TooManyRequests
from evenq.model import Message, MessageQueue, QueueOffset
from evenq.runtime.clock import FakeClock


@dataclass(frozen=True)
class Encoded:
    message_id: str
    content: bytes


class Cutting:
    """Blocks over this number of queues; an encoded message is its body."""

    def __init__(self, queues: int = 4, **options: Any) -> None:
        self.queues = [MessageQueue("t", "a", number) for number in range(queues)]
        self.counter = QueueCounter(5)
        self.clock = FakeClock()
        self.blocks = Blocks(self.encode, self.spread, clock=self.clock, options=ProducerOptions(**options))

    def encode(self, message: Message) -> Encoded:
        if not message.body:
            raise BodyEmpty("no body")
        return Encoded(message.body.decode()[:8], message.body)

    def spread(self, _topic: str, count: int) -> tuple[Sequence[MessageQueue], int] | None:
        return (self.queues, self.counter.take(count)) if self.queues else None

    def cut(self, messages: Iterable[Message]) -> list[SendBlock | Message]:
        return list(self.blocks.of(messages))


def note(number: int, **fields: Any) -> Message:
    return Message(**({"topic": "t", "body": b"%d" % number} | fields))


def bodies(parts: Iterable[SendBlock | Message]) -> list[bytes]:
    return [
        body for part in parts for body in (part.contents if isinstance(part, SendBlock) else [part.body])
    ]  # fmt: skip


@pytest.mark.parametrize("count", [1, 3, 4, 5, 100, 1_000, 3_333])
@pytest.mark.parametrize("queues", [1, 3, 8, 16])
def test_messages_spread_over_the_queues_as_if_each_took_its_turn_pr_6(count: int, queues: int) -> None:
    cutting, turns = Cutting(queues), QueueCounter(5)
    expected: Counter[MessageQueue] = Counter()
    counted: Counter[MessageQueue] = Counter()
    for _ in range(3):  # the next batch goes on where the last one ended
        parts = cutting.cut(note(number) for number in range(count))
        assert bodies(parts) == [b"%d" % number for number in range(count)]
        expected.update(turns.choose(cutting.queues) for _ in range(count))
        for part in parts:
            assert isinstance(part, SendBlock)
            assert 1 <= part.count <= BLOCK_MAX
            counted[part.queue] += part.count
    assert counted == expected


def test_a_thousand_messages_over_eight_queues_are_eight_calls_and_only_large_ones_go_before_the_flush() -> None:
    parts = Cutting(8).cut(note(number) for number in range(1_000))
    assert [part.count for part in parts if isinstance(part, SendBlock)] == [125] * 8
    assert all(part.urgent for part in parts if isinstance(part, SendBlock))
    small = Cutting(8).cut(note(number) for number in range(8 * (FULL_FROM - 1)))
    assert not any(part.urgent for part in small if isinstance(part, SendBlock))


def test_blocks_keep_the_limits_of_a_call_and_fit_through_the_gate() -> None:
    many = Cutting(2, batch_messages=10).cut(note(number) for number in range(100))
    assert {part.count for part in many if isinstance(part, SendBlock)} == {10}
    gated = Cutting(1, pending_messages=7).cut(note(number) for number in range(9))
    assert [part.count for part in gated if isinstance(part, SendBlock)] == [3, 3, 3]
    assert len(Cutting(1, pending_messages=1).cut(note(number) for number in range(3))) == 3
    large = Cutting(2, batch_bytes=1_000).cut(note(number, body=b"%03d" % number * 100) for number in range(12))
    assert [(part.queue.queue_id, part.count, part.size) for part in large if isinstance(part, SendBlock)] == [
        (1, 3, 900), (1, 3, 900), (0, 3, 900), (0, 3, 900),
    ]  # fmt: skip
    wide = Cutting(1, batch_bytes=4 << 20, pending_bytes=2_000)
    assert [part.size for part in wide.cut(note(n, body=b"x" * 400) for n in range(3)) if isinstance(part, SendBlock)] == [
        800, 400,
    ]  # fmt: skip
    assert [part.size for part in wide.cut([note(0, body=b"x" * 5_000)]) if isinstance(part, SendBlock)] == [5_000]


def test_what_has_an_order_or_a_time_keeps_its_place_between_the_blocks() -> None:
    special = [
        note(2, message_group="g"), note(3, delivery_ms=2 * 10**12), note(4, delay_level=1), note(5, priority=1),
        note(6, lite_topic="x"), note(7, delay=1),
    ]  # fmt: skip
    parts = Cutting(1).cut([note(0), note(1), *special, note(8), note(9, topic="u"), note(10)])
    assert [part.topic if isinstance(part, SendBlock) else part.body for part in parts] == [
        "t", b"2", b"3", b"4", b"5", b"6", b"7", "t", "u", "t",
    ]  # fmt: skip
    assert bodies(parts) == [b"%d" % number for number in range(11)]


def test_without_a_route_every_message_goes_by_itself_until_there_is_one() -> None:
    cutting = Cutting(0)
    walk = cutting.blocks.of(note(number) for number in range(20))
    assert isinstance(next(walk), Message)
    cutting.queues = [MessageQueue("t", "a", 0)]
    rest = list(walk)
    assert isinstance(rest[-1], SendBlock)
    assert bodies(rest) == [b"%d" % number for number in range(1, 20)]


def test_what_came_before_a_failure_is_handed_over_first() -> None:
    def failing() -> Iterator[Message]:
        yield from (note(number) for number in range(10))
        raise KeyError("the user's")

    refused = [*map(note, range(10)), note(10, body=b""), note(11)]
    for messages, error in ((failing(), KeyError), (refused, BodyEmpty)):
        walk, given = Cutting(3).blocks.of(messages), list[SendBlock | Message]()
        with pytest.raises(error):  # noqa: PT012 - what it gives before is what is tested
            for part in walk:
                given.append(part)
        assert bodies(given) == [b"%d" % number for number in range(10)]


def test_neither_large_bodies_nor_a_slow_iterable_hold_back_what_was_drawn() -> None:
    drawn: list[int] = []

    def draw(size: int) -> Iterator[Message]:
        for number in range(1_000):
            drawn.append(number)
            yield note(number, body=b"x" * size)

    next(Cutting(8).blocks.of(draw(DRAWN_BYTES // 4)))
    assert len(drawn) == 5, "four MiB, and the message behind them"

    cutting = Cutting(8)

    def slow() -> Iterator[Message]:
        for number in range(1_000):
            drawn.append(number)
            cutting.clock._monotonic += DRAWN_MS // 4
            yield note(number)

    drawn.clear()
    next(cutting.blocks.of(slow()))
    assert len(drawn) == 5


def test_results_come_in_order_and_the_first_error_is_raised_after_all_were_looked_at() -> None:
    results = [SendResult(str(number), MessageQueue("t", "a", 0), QueueOffset(number)) for number in range(4)]
    looked: list[int] = []

    def outcomes() -> Iterator[list[SendResult | BaseException] | SendResult | BaseException]:
        for number, outcome in enumerate((results[0], [results[1], TooManyRequests("1")], Forbidden("2"), results[3])):
            looked.append(number)
            yield outcome  # type: ignore[misc]  # a list of both

    assert results_of([results[0], [*results[1:3]], results[3]]) == results
    with pytest.raises(TooManyRequests):
        results_of(outcomes())
    assert looked == [0, 1, 2, 3]
