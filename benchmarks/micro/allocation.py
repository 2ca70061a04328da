"""Cost of a division by each strategy, and the queues that a join and a leave move, compared with the minimum.

python benchmarks/micro/allocation.py [--members 1000] [--queues 10000] [--rounds 7]

Prints for each strategy the ms of one division (median, fastest and slowest of the rounds, and the ratio to the floor,
which slices the sorted queues without checks), then for one join to 99 members and one leave of 100: moved queues,
their ratio to the minimum of any balanced division, and the difference of sizes. For strategies by lag (STICKY by
weight) the minimum is the size of an even share.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from evenq.allocation import Context, Strategy, by_name, divide
from evenq.model import MessageQueue

Owners = dict[MessageQueue, str]
BROKERS = 20
ZONES = 3
JOINED_MEMBERS = 100


class Case(NamedTuple):
    """A strategy with its facts besides the owners."""

    title: str
    strategy: Strategy
    zoned: bool = False
    weighed: bool = False


CASES = [
    Case("AVG", by_name("AVG")),
    Case("AVG_BY_CIRCLE", by_name("AVG_BY_CIRCLE")),
    Case("CONSISTENT_HASH", by_name("CONSISTENT_HASH")),
    Case("MACHINE_ROOM by zone", by_name("MACHINE_ROOM"), zoned=True),
    Case("NEARBY-AVG by zone", by_name("MACHINE_ROOM_NEARBY-AVG"), zoned=True),
    Case("NEARBY-STICKY by zone", by_name("MACHINE_ROOM_NEARBY-STICKY"), zoned=True),
    Case("STICKY", by_name("STICKY")),
    Case("STICKY by zone", by_name("STICKY"), zoned=True),
    Case("STICKY by weight", by_name("STICKY"), weighed=True),
]


def made(members: int, queues: int) -> tuple[list[str], list[MessageQueue]]:
    """Sorted ids and queues."""
    each = queues // BROKERS
    brokers = [f"broker-{number:02}" for number in range(BROKERS)]
    return (
        [f"client-{number:05}@host" for number in range(members)],
        [MessageQueue("orders", broker, number) for broker in brokers for number in range(each)],
    )


def facts(case: Case, ids: list[str], queues: list[MessageQueue], owners: Owners) -> Context:
    """Returns the facts of a server in this case; weights are exponential, the same in each run."""
    rng = random.Random(1)
    brokers = sorted({queue.broker_name for queue in queues})
    return Context(
        owners=owners,
        zone_of_broker={name: f"z{at % ZONES}" for at, name in enumerate(brokers)} if case.zoned else {},
        zone_of_member={own: f"z{at % ZONES}" for at, own in enumerate(ids)} if case.zoned else {},
        weight_of_queue={queue: rng.expovariate(0.001) for queue in queues} if case.weighed else {},
    )


def owners_of(shares: dict[str, list[MessageQueue]]) -> Owners:
    """By queue."""
    return {queue: own for own, share in shares.items() for queue in share}


def timed(call: Callable[[], object], rounds: int) -> list[float]:
    """Ms of each call."""
    spans: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        spans.append((time.perf_counter() - start) * 1000)
    return spans


def floor(ids: list[str], queues: list[MessageQueue]) -> dict[str, list[MessageQueue]]:
    """Divides with slices."""
    return {own: queues[at :: len(ids)] for at, own in enumerate(ids)}


def fewest(before: dict[str, list[MessageQueue]], ids: list[str], queues: int) -> int:
    """Returns the minimum of moves for sizes that differ by at most one."""
    size, larger = divmod(queues, len(ids))
    sizes = [len(before.get(own, ())) for own in ids]
    kept = sum(min(have, size) for have in sizes) + min(larger, sum(have > size for have in sizes))
    return sum(sizes) - kept


def moves(case: Case, ids: list[str], queues: list[MessageQueue], changed: list[str]) -> str:
    """Prints the moves from `ids` to `changed`."""
    everybody = sorted({*ids, *changed})
    first = divide(case.strategy, "g", queues, ids, facts(case, everybody, queues, {}))
    before = owners_of(first)
    second = divide(case.strategy, "g", queues, changed, facts(case, everybody, queues, before))
    after, living = owners_of(second), set(changed)
    moved = sum(after.get(queue) != owner for queue, owner in before.items() if owner in living)
    left = sum(owner not in living for owner in before.values())
    least = fewest(first, changed, len(queues)) if not case.weighed or left else len(queues) // len(changed)
    ratio = (moved + left) / (least + left) if least + left else 1.0
    sizes = [len(share) for share in second.values()]
    return f"{moved + left:6} moved of {len(queues)}, {ratio:6.2f} x the fewest, sizes {min(sizes)} to {max(sizes)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and moves of all allocate strategies.")
    parser.add_argument("--members", type=int, default=1000, help="members of the timed group")
    parser.add_argument("--queues", type=int, default=10_000, help=f"queues, on {BROKERS} brokers")
    parser.add_argument("--rounds", type=int, default=7, help="timed divisions of each strategy")
    given = parser.parse_args()
    ids, queues = made(given.members, given.queues)
    base = statistics.median(timed(lambda: floor(ids, queues), given.rounds))
    print(f"{len(ids)} members, {len(queues)} queues, one joined; floor {base:.2f} ms")
    for case in CASES:
        owners = owners_of(divide(case.strategy, "g", queues, ids[1:], facts(case, ids, queues, {})))
        context = facts(case, ids, queues, owners)
        spans = timed(lambda case=case, context=context: divide(case.strategy, "g", queues, ids, context), given.rounds)
        middle = statistics.median(spans)
        print(f"{case.title:22} {middle:8.1f} ms ({min(spans):.1f} to {max(spans):.1f}), {middle / base:7.1f} x floor")
    ids, queues = made(JOINED_MEMBERS, given.queues)
    for title, before, after in (("one joins 99", ids[1:], ids), ("one of 100 leaves", ids, ids[1:])):
        print(f"{title}, {len(queues)} queues")
        for case in CASES:
            print(f"{case.title:22} {moves(case, before, queues, after)}")


if __name__ == "__main__":
    main()
