"""Cost of the rebalancer's decisions: time for a large group and for groups at rest, and memory.

python benchmarks/micro/decisions.py [--members 1000] [--queues 10000] [--groups 1000] [--trials 15]

No network: an engine gets facts and settles, as after broker reports. Prints, for each strategy, the ms from a member's
join to the decision (median and worst of the trials; the floor is copying the owner column once, in the same run), the
same for a whole report with its translation, the share of a core for groups at rest, and bytes of memory per member and
per queue.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import tracemalloc

from evenq_rebalancer.core.assignment_engine import AssignmentEngine, EngineLimits
from evenq_rebalancer.core.reports import BrokerReport, GroupFact, MemberFact, TopicFact
from evenq_rebalancer.rpc.translation import report_of

from evenq.wire.stubs.evenq.v1 import assignment_pb2 as pb

BROKERS = ("broker-a", "broker-b", "broker-c")
STRATEGIES = ("STICKY", "AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH")
TICK_MS = 100


class Facts:
    """Returns an engine with three brokers."""

    def __init__(self) -> None:
        self.engine = AssignmentEngine(epoch=1, limits=EngineLimits(warm_up_ms=0, members_max=100_000))
        for number, name in enumerate(BROKERS, 1):
            self.engine.facts.opened(name, number)
        self.known: dict[str, MemberFact] = {}

    def topic(self, topic: str, queues: int) -> None:
        """Spreads the topic's queues over the brokers."""
        for number, name in enumerate(BROKERS, 1):
            count = queues // len(BROKERS) + (number <= queues % len(BROKERS))
            self.engine.reported(
                number, BrokerReport(broker_name=name, topics=(TopicFact(topic=topic, read_queues=count),)), now_ms=0
            )

    def group(self, group: str, topic: str, ids: list[str], strategy: str) -> None:
        """All brokers see all members."""
        for own in ids:
            self.known.setdefault(own, MemberFact(client_id=own, topics=(topic,), address="10.0.0.1"))
        fact = GroupFact(group=group, strategy=strategy, members=tuple(self.known[own] for own in ids))
        for number, name in enumerate(BROKERS, 1):
            self.engine.reported(number, BrokerReport(broker_name=name, groups=(fact,)), now_ms=0)

    def settle(self) -> float:
        """Returns the ms of a call."""
        start = time.perf_counter()
        self.engine.settle(now_ms=0, wall_ms=0)
        return (time.perf_counter() - start) * 1_000


def names(count: int) -> list[str]:
    """Client ids as SDKs make them."""
    return [f"10.0.{number // 256}.{number % 256}@{number:05}#app" for number in range(count)]


def joins(strategy: str, members: int, queues: int, trials: int) -> list[float]:
    """Ms of the decision after each of some joins and leaves."""
    facts = Facts()
    facts.topic("T", queues)
    ids = names(members + 1)
    facts.group("g", "T", ids[:-1], strategy)
    facts.settle()
    took = []
    for trial in range(trials):
        without = [own for at, own in enumerate(ids) if at != (trial * 37) % members]
        facts.group("g", "T", sorted(without), strategy)
        took.append(facts.settle())
    return took


def floor(queues: int, trials: int) -> float:
    """Returns the ms of one pass over a column of owners."""
    owners, others = ["a"] * queues, ["b"] * queues
    took = []
    for _ in range(trials):
        start = time.perf_counter()
        [index for index, owner in enumerate(owners) if owner == others[index]]
        took.append((time.perf_counter() - start) * 1_000)
    return statistics.median(took)


def translating(members: int, trials: int) -> tuple[float, float]:
    """Ms to translate one broker's report of a whole group: the first time, and after one more join."""
    report = pb.BrokerReport(broker_name="broker-a")
    facts = report.groups.add(group="g", strategy="STICKY")
    for own in names(members):
        facts.members.add(client_id=own, zone="z", address="10.0.0.1").subscriptions.add(topic="T")
    data = report.SerializeToString()
    took = []
    for _ in range(trials):
        start = time.perf_counter()
        report_of(pb.BrokerReport.FromString(data))
        took.append((time.perf_counter() - start) * 1_000)
    return took[0], statistics.median(took[1:])


def storm(members: int, queues: int) -> tuple[float, int]:
    """Seconds of work, and decisions, for this number of members that join within a second, settled each 50 ms."""
    facts = Facts()
    facts.topic("T", queues)
    ids, spent, decisions = names(members), 0.0, 0
    rounds = 20
    for turn in range(1, rounds + 1):
        facts.group("g", "T", ids[: max(1, members * turn // rounds)], "STICKY")
        start = time.perf_counter()
        decisions += len(facts.engine.settle(now_ms=0, wall_ms=0))
        spent += time.perf_counter() - start
    return spent, decisions


def rest(groups: int) -> tuple[float, float]:
    """Share of a core that this number of groups of 10 members cost while nothing changes, and the MiB that they
    need.
    """
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    facts = Facts()
    facts.topic("T", 16)
    for number in range(groups):
        facts.group(f"group-{number:05}", "T", [f"{own}-{number}" for own in names(10)], "STICKY")
    facts.settle()
    gc.collect()
    used = (tracemalloc.get_traced_memory()[0] - before) / (1 << 20)
    tracemalloc.stop()
    turns = 200
    start = time.perf_counter()
    for _ in range(turns):
        facts.engine.next_event_ms()
        facts.engine.settle(now_ms=0, wall_ms=0)
    return (time.perf_counter() - start) / turns / (TICK_MS / 1_000), used


def memory(members: int, queues: int) -> int:
    """Bytes of one line."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    facts = Facts()
    facts.topic("T", queues)
    facts.group("g", "T", names(members), "STICKY")
    facts.settle()
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return used


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=1_000)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--trials", type=int, default=15)
    options = parser.parse_args()
    least = floor(options.queues, options.trials)
    print(
        f"one decision, {options.members:,} members, {options.queues:,} queues (floor {least:.2f} ms: one column once)"
    )
    for strategy in STRATEGIES:
        took = joins(strategy, options.members, options.queues, options.trials)
        middle = statistics.median(took)
        print(f"  {strategy:16} median {middle:6.1f} ms, worst {max(took):6.1f} ms, {middle / least:5.0f} x the floor")
    first, again = translating(options.members, options.trials)
    print(f"report of {options.members:,} members translated: first {first:.1f} ms, with known members {again:.1f} ms")
    spent, decisions = storm(10_000, options.queues)
    print(f"10,000 joins in a second, settled each 50 ms: {spent:.2f} s of work, {decisions} decisions")
    share, used = rest(options.groups)
    print(f"{options.groups:,} groups of 10 members at rest: {share:.2%} of a core, {used:.1f} MiB")
    base = memory(10, 10)
    per_member = (memory(1_010, 10) - base) / 1_000
    per_queue = (memory(10, 10_010) - base) / 10_000
    print(f"memory: {per_member:,.0f} bytes a member, {per_queue:,.0f} bytes a queue")


if __name__ == "__main__":
    main()
