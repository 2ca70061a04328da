"""Calls of appends, as usual and with values at every limit, and the comparison of both packers of messages with them.

    python tests/unit/evenq/store/log/packed_calls.py --count 1000000 --seed 1

`compare` fails if `NativePacker` leaves anything else behind than `Packer`: bytes of the log, entries of queues, places of
messages, messages in memory, counters, or errors. Both get the same calls, with the same history. The same seed gives the
same calls.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from evenq.errors import Error
from evenq.runtime.accelerator import accelerator
from evenq.store import Append, TimerAppend
from evenq.store.log.consume_queue import ConsumeQueue
from evenq.store.log.native_packer import packer_of
from evenq.store.log.packer import Packer

BITS_32 = (0, 1, 2, (1 << 32) - 1)
BITS_63 = (0, 1, -1, 1_700_000_000_000, (1 << 63) - 1, -(1 << 63))
NO_32_BITS: tuple[Any, ...] = (-1, 1 << 32, 1 << 70, 1.0, "1", None, True)
NO_63_BITS: tuple[Any, ...] = (1 << 63, -(1 << 63) - 1, 1 << 70, 1.5, "1", None, True)
NO_BYTES: tuple[Any, ...] = (bytearray(b"ab"), memoryview(b"ab"), "ab", None, 7, [])
SIZES = (0, 1, 2, 3, 7, 8, 15, 16, 63, 64, 65, 127, 255, 256, 1_023, 1_024, 1_025, 3_919)
LARGE = (4_007, 4_008, 4_009, 65_535, 65_536, 70_000, 300_000)
SEGMENTS = (4_096, 10_000, 1 << 17, 1 << 20)
RARE = 150
MESSAGES_EACH = 20
"""Messages of a call, about."""


class Differs(AssertionError):
    """The two packers disagree."""


@dataclass
class Outcome:
    """Figures of a comparison."""

    calls: int = 0
    messages: int = 0
    taken: int = 0
    """Calls that compiled code packed."""
    refused: int = 0


class Calls:
    """An endless row of calls for two packers with one history."""

    def __init__(self, native: Any, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.outcome = Outcome()
        self.taken = 0
        self.segment_bytes = rng.choice(SEGMENTS)
        end = rng.choice((0, 0, self.segment_bytes, 7, self.segment_bytes - 88, self.segment_bytes * (1 << 40)))
        epoch = rng.choice((1, 1, 1 << 40, (1 << 64) - 1))
        of = {"segment_bytes": self.segment_bytes, "end": end, "epoch": epoch}

        def counted(*given: Any) -> Any:
            packed = native.pack_messages(*given)
            self.taken += packed is not None
            return packed

        queues = [self._queues(rng.getstate()) for _ in range(2)]
        self.pair = (Packer(queues[0], **of), packer_of(SimpleNamespace(pack_messages=counted), queues[1], **of))

    def _queues(self, state: Any) -> dict[tuple[int, int], ConsumeQueue]:
        """Queues that have messages already, some of them nearly as many as there can be."""
        rng = random.Random()
        rng.setstate(state)
        starts = {(1, number): rng.choice((0, 1, 1 << 32, (1 << 63) - 1, (1 << 64) - 3)) for number in range(4)}
        return {ids: ConsumeQueue(*ids, start, start) for ids, start in starts.items() if rng.randrange(4)}

    def step(self) -> None:
        """Makes one call to both, and compares all that it left."""
        rng = self.rng
        calls, messages = self._call()
        before = self.taken
        found = [call(packer) for call, packer in zip(calls, self.pair, strict=True)]
        for at, (one, other) in enumerate(zip(*messages, strict=True)):
            _same(f"message {at}", *[[getattr(of, name) for name in FIELDS] for of in (one, other)])
        _same("outcome", *found)
        _same("state", *map(_state, self.pair))
        self.outcome.calls += 1
        self.outcome.messages += len(messages[0])
        self.outcome.taken += self.taken > before
        self.outcome.refused += isinstance(found[0], str)
        if rng.randrange(3) == 0:
            self._end_group(safe=rng.randrange(4) > 0)

    def _call(self) -> tuple[list[Callable[[Packer], object]], list[list[Append]]]:
        rng = self.rng
        made = [self._message() for _ in range(rng.choice((1, 1, 2, 2, 3, 8, 32, 32, 100)))]
        pattern, topic_id = rng.randrange(3), rng.choice((1, 1, 1, *BITS_32))
        for number, one in enumerate(made):
            one[:2] = topic_id, (number % rng.choice((4, 8)), 1, rng.choice(BITS_32))[pattern]
        if rng.randrange(6) == 0:  # one value that does not fit, anywhere
            bad, at = rng.choice(made), rng.randrange(6)
            bad[at] = rng.choice((NO_32_BITS, NO_32_BITS, NO_63_BITS, NO_63_BITS, NO_BYTES, NO_BYTES)[at])
        again = rng.randrange(len(made)) if rng.randrange(RARE) == 0 else -1
        messages = [[Append(*one) for one in made] for _ in self.pair]
        for own in messages:
            if again >= 0:
                own[-1] = own[again]  # one object twice in a call
        clock, synced = rng.choice((1_700_000_000_000, 0, *BITS_63)), rng.choice((0, 1, (1 << 64) - 1))
        if rng.randrange(RARE) == 0:
            clock, synced = rng.choice(NO_63_BITS), rng.choice((0, -1, 1 << 64))
        whole = rng.choice((list, tuple))
        if rng.randrange(4):
            return [
                _outcome(lambda packer, own=own: packer.pack(whole(own), clock, synced)) for own in messages
            ], messages
        late = [bytes(rng.choice(SIZES[:8])) for _ in range(rng.randrange(2))]
        ended, state = [7] * rng.randrange(2), bytes(rng.randrange(1, 5)) if rng.randrange(2) else b""
        kind = 300 if rng.randrange(6) == 0 else 1

        def mixed(packer: Packer, own: list[Append]) -> object:
            timers = [TimerAppend(1, 2, 7, due_ms=9, kind=kind, born_ms=5, head=head, system=b"s") for head in late]
            return packer.pack_mixed(whole(own), timers, ended, state, clock, synced)

        return [_outcome(lambda packer, own=own: mixed(packer, own)) for own in messages], messages

    def _message(self) -> list[Any]:
        rng = self.rng
        size = rng.choice(LARGE) if rng.randrange(RARE) == 0 else rng.choice(SIZES)
        head, system = rng.randbytes(size), rng.randbytes(rng.choice(SIZES[:12]))
        return [1, 1, rng.choice((7, *BITS_63)), rng.choice((1_700_000_000_000, *BITS_63)), head, system]

    def _end_group(self, *, safe: bool) -> None:
        for packer in self.pair:
            batch = packer.take()
            if batch is None:
                continue
            if safe:
                for queue, end in batch.touched.items():
                    queue.max_offset = end
            else:
                packer.take_back(batch)


FIELDS = ("topic_id", "queue_id", "queue_offset", "log_offset", "store_ms", "tag_hash", "born_ms", "head", "system")


def _outcome(call: Callable[[Packer], object]) -> Callable[[Packer], object]:
    def made(packer: Packer) -> object:
        try:
            call(packer)
        except (Error, TypeError, AttributeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    return made


def _state(packer: Packer) -> list[tuple[str, object]]:
    """All that a packer has made so far, with names."""
    batch, found = packer.batch, [("end", packer.end), ("end of the file", packer._segment_end)]
    if batch is not None:
        runs = [(run.start, run.position, run.seals, b"".join(run.parts)) for run in batch.runs]
        touched = [(queue.topic_id, queue.queue_id, end) for queue, end in batch.touched.items()]
        counts = (batch.start, batch.end, batch.messages, batch.cold_bytes, batch.states, batch.timers)
        found += [("group", counts), ("queues of the group", touched), ("bytes", runs)]
    for key, queue in packer._queues.items():
        ids = tuple(map(int, key))  # True is the number 1
        hot = [None if one is None else [getattr(one, name) for name in FIELDS] for one in queue.hot]
        offsets = (queue.next_offset, queue.max_offset, queue.hot_base, queue.hot_dead, queue.tail_base)
        found += [(f"queue {ids}", (offsets, bytes(queue.tail), queue.stem, queue.last_stem)), (f"memory {ids}", hot)]
    return found


def _same(what: str, one: object, other: object) -> None:
    if one != other:
        if isinstance(one, list) and isinstance(other, list):
            pairs = [(left, right) for left, right in zip(one, other, strict=False) if left != right]
            one, other = pairs[0] if pairs else (len(one), len(other))
        raise Differs(f"{what}: {str(one)[:300]} by Python, {str(other)[:300]} compiled")


def compare(native: Any, count: int, seed: int, *, each: int = 40) -> Outcome:
    """Makes `count` calls to both packers, with a new history for `each` of them. Raises Differs."""
    total = Outcome()
    for first in range(0, count, each):
        calls = Calls(native, seed * 1_000_000 + first)
        for _ in range(min(each, count - first)):
            try:
                calls.step()
            except Differs as error:
                raise Differs(f"seed {seed * 1_000_000 + first}, call {calls.outcome.calls}: {error}") from error
        for name, value in vars(calls.outcome).items():
            setattr(total, name, getattr(total, name) + value)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description="Hold both packers of messages against each other.")
    parser.add_argument("--count", type=int, default=1_000_000, help="messages, about")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    native = accelerator().module
    if native is None:
        print(f"evenq_native is {accelerator().state}: the compiled packer was not compared (make native)")
        return
    start = time.monotonic()
    found = compare(native, max(1, asked.count // MESSAGES_EACH), asked.seed)
    print(
        f"{found.calls} calls with {found.messages} messages, seed {asked.seed}, packed by Python and compiled: "
        f"{found.taken} taken, {found.refused} refused, none that differs; {time.monotonic() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
