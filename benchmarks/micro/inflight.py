"""Cost of a million deliveries in flight: bytes for each, and the p99 of an ack, compared with a thousand.

    python benchmarks/micro/inflight.py [--count 1000000] [--batch 32] [--clients 0]

Both groups are measured in one run, in turns, so other work on the machine affects both. Targets: at most 300 bytes
each, ack p99 at most twice that of the small group. `--batch 1` is the worst case: a separate timer for each.
`--clients`: this number of push consumers take turns, and deliveries last as long as the client; 0: until a deadline.
"""

import argparse
import gc
import random
import time
import tracemalloc

from evenq_broker.core.delivery.progress import Progress, QueueProgress, SettleStatus

NOW_MS = 1_700_000_000_000
ROUND = 500
SMALL = 1_000
BYTES_MAX = 300
RATIO_MAX = 2.0


class Group:
    """One group on one queue with `count` deliveries in flight, kept there: each ack is followed by a delivery."""

    def __init__(self, count: int, batch: int, order: str, clients: int) -> None:
        self.progress = Progress(inflight_max=2 * count)
        self.progress.start(1, 1, 0, NOW_MS * 0)
        found = self.progress.queue(1, 1, 0)
        assert found is not None
        self.queue: QueueProgress = found
        self.batch = batch
        self.order = order
        self.clients = clients
        self.rng = random.Random(7)
        for start in range(0, count, batch):
            self.deliver(min(batch, count - start))

    def deliver(self, count: int) -> None:
        """Delivers the next messages, each batch at another ms."""
        first = self.queue.next
        deadline_ms = NOW_MS + 60_000 + first // 5
        client_id = f"client{first // count % self.clients}" if self.clients else ""
        self.progress.deliver(
            self.queue, list(range(first, first + count)), first + count, deadline_ms=deadline_ms, client_id=client_id
        )

    def choose(self) -> list[int]:
        """Returns the next deliveries to acknowledge."""
        if self.order == "random":
            known = self.queue.next - self.queue.committed
            offsets: set[int] = set()
            while len(offsets) < ROUND:
                offset = self.queue.committed + self.rng.randrange(known)
                if offset in self.queue.pending:
                    offsets.add(offset)
            return list(offsets)
        offsets = sorted(self.queue.pending)[: 2 * ROUND] if len(self.queue.pending) <= SMALL else []
        at = self.queue.committed
        while len(offsets) < ROUND:
            if at in self.queue.pending:
                offsets.append(at)
            at += 1
        return offsets[:ROUND]

    def round(self, timings: list[int]) -> None:
        """ROUND acks, each timed, then as many deliveries."""
        clock = time.perf_counter_ns
        ack, queue = self.progress.ack, self.queue
        for offset in self.choose():
            number = queue.pending[offset].number
            began = clock()
            verdict = ack(queue, offset, number, expires_ms=NOW_MS + 60_000, now_ms=NOW_MS)
            timings.append(clock() - began)
            assert verdict is SettleStatus.DONE
        for _ in range(0, ROUND, self.batch):
            self.deliver(min(self.batch, ROUND))


def p99(timings: list[int]) -> int:
    """In ns."""
    return sorted(timings)[len(timings) * 99 // 100]


def main() -> int:
    """Prints the table; returns 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--clients", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    large = Group(options.count, options.batch, "random", options.clients)
    gc.collect()
    each = (tracemalloc.get_traced_memory()[0] - before) / options.count
    tracemalloc.stop()
    print(f"{options.count:,} in flight, batches of {options.batch}: {each:.0f} bytes each (limit {BYTES_MAX})")
    missed = each > BYTES_MAX
    gc.freeze()
    for order in ("random", "oldest"):
        small = Group(SMALL, options.batch, order, options.clients)
        large.order = order
        spread = []
        for _ in range(3):
            few: list[int] = []
            many: list[int] = []
            for _ in range(options.rounds):
                small.round(few)
                large.round(many)
            spread.append((p99(many) / p99(few), p99(few), p99(many), max(many)))
        ratio, low, high, longest = sorted(spread)[1]
        shown = " ".join(f"{one[0]:.2f}" for one in spread)
        print(
            f"ack of {order}: p99 {low / 1000:.2f} us with {SMALL:,}, {high / 1000:.2f} us with {options.count:,}: "
            f"ratio {ratio:.2f} ({shown}; limit {RATIO_MAX}), longest {longest / 1000:.0f} us"
        )
        missed = missed or ratio > RATIO_MAX
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
