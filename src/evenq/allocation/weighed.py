"""STICKY by weights and capacities: even load instead of even counts, with few moves. Used by `sticky.py`.

The level of a member is the weight of its queues over its capacity; all levels should be near the mean. Queues without
owner go, heaviest first, to the member whose level stays lowest. Then single queues move from the highest level to low
ones while that helps. Measured weights change all the time, so levels within `SLACK` of the mean stay as they are. The
search is greedy and deterministic. Few moves are usual, but not guaranteed.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from evenq.allocation.context import Context
from evenq.errors import BadRequest
from evenq.model import MessageQueue

SLACK = 0.1
"""With weights, levels from 0.9 to 1.1 of the mean count as even. With capacities only there is no slack."""
FLOOR = 0.1
"""A queue weighs at least this part of the mean weight, so that queues without lag do not all go to one member."""
LOWEST = 4  # where capacities differ, this many of the lowest levels are compared as takers of a queue
TINY = 1e-9

Level = tuple[float, int]  # the level when it was noted, and the member's place


def weighed(queues: Sequence[MessageQueue], ids: Sequence[str], context: Context) -> dict[str, list[MessageQueue]]:
    """Returns each member's share, unordered. `ids` are in the order that decides ties; no repeats, no empty `ids`.

    Without a limit of moves, each level is at most 1 + SLACK of the mean in the end, or no queue of that member can
    move to one of the lowest levels without making it as high. Raises BadRequest for a weight or capacity out of range.
    """
    scale = _Scale(queues, ids, context)
    places = {client_id: member for member, client_id in enumerate(ids)}
    free: list[int] = []
    for number, queue in enumerate(queues):
        member = places.get(context.owners.get(queue, ""))
        if member is None:
            free.append(number)
        else:
            scale.put(number, member)
    owned = set(range(len(queues))).difference(free)
    # The heaviest first: light queues then even out the differences.
    scale.give(sorted(free, key=lambda number: (-scale.weights[number], number)))
    scale.level(owned, context.moves_max)
    return {client_id: [queues[number] for _, number in scale.shares[member]] for member, client_id in enumerate(ids)}


class _Scale:
    """Loads and levels while queues are given. Queues and members are numbers: their indexes in the arguments."""

    def __init__(self, queues: Sequence[MessageQueue], ids: Sequence[str], context: Context) -> None:
        self.weights = _weights(queues, context.weight_of_queue)
        self._capacities = [_capacity(client_id, context.capacity_of_member) for client_id in ids]
        self._compared = LOWEST if len(set(self._capacities)) > 1 else 1
        self._mean = sum(self.weights) / sum(self._capacities)
        self._slack = SLACK if context.weight_of_queue else 0.0
        self._loads = [0.0] * len(ids)
        self._made = 0  # moves
        self._zones = [context.zone_of_member.get(client_id, "") for client_id in ids]
        self._zone_of_queue = [context.zone_of_broker.get(queue.broker_name, "") for queue in queues]
        self.shares: list[list[tuple[float, int]]] = [[] for _ in ids]
        """Weight and number of each member's queues, ascending."""

    def put(self, number: int, member: int) -> None:
        insort(self.shares[member], (self.weights[number], number))
        self._loads[member] += self.weights[number]

    def _take(self, at: int, member: int) -> int:
        weight, number = self.shares[member].pop(at)
        self._loads[member] -= weight
        return number

    def _level(self, member: int, more: float = 0.0) -> float:
        return (self._loads[member] + more) / self._capacities[member]

    def _heap(self, members: Sequence[int]) -> list[Level]:
        heap = [(self._level(member), member) for member in members]
        heapify(heap)
        return heap

    def _lowest(self, heap: list[Level], count: int) -> list[int]:
        """Returns the members with the lowest levels, of a heap whose entries may be outdated."""
        lowest: dict[int, float] = {}
        while heap and len(lowest) < count:
            noted, member = heappop(heap)
            now = self._level(member)
            if noted != now:
                heappush(heap, (now, member))
            else:
                lowest[member] = noted
        for member, noted in lowest.items():
            heappush(heap, (noted, member))
        return list(lowest)

    def give(self, numbers: Sequence[int]) -> None:
        """Gives queues in this order, within their zone where that leaves the level even."""
        everybody = self._heap(range(len(self._loads)))
        near: dict[str, list[Level]] = {}
        for zone in sorted(set(self._zones) & set(self._zone_of_queue) - {""}):
            near[zone] = self._heap([member for member, own in enumerate(self._zones) if own == zone])
        highest = self._mean * (1 + self._slack) + TINY
        for number in numbers:
            weight = self.weights[number]
            for heap in (near.get(self._zone_of_queue[number]), everybody):
                if heap is None:
                    continue
                chosen = min(self._lowest(heap, self._compared), key=lambda member: self._level(member, weight))
                if heap is everybody or self._level(chosen, weight) <= highest:
                    break
            self.put(number, chosen)

    def level(self, owned: set[int], moves_max: int) -> None:
        """Moves single queues from high to low while that helps; at most `moves_max` of those that had an owner.

        Each move lowers the higher of two levels, so this ends.
        """
        budget = moves_max or len(owned) * len(self._loads) + 1
        before = -1
        while budget > 0 and self._made > before:
            before = self._made
            budget = self._pass(owned, budget)

    def _pass(self, owned: set[int], budget: int) -> int:
        """Moves queues until levels are even or no queue fits. Returns the rest of the budget."""
        lows = self._heap(range(len(self._loads)))
        highs = [(-level, member) for level, member in lows]
        heapify(highs)
        for high in self._highest(highs):
            lowest = self._lowest(lows, self._compared + 1)
            if self._even(high, lowest[0]):
                break
            best = min(self._steps(high, lowest), default=None)
            if best is None:
                continue  # none of its queues fits now; the next pass tries again
            _, _, at, low = best
            had_owner = self.shares[high][at][1] in owned
            if had_owner and not budget:
                return 0
            budget -= had_owner
            self._made += 1
            self.put(self._take(at, high), low)
            for member in (high, low):
                heappush(highs, (-self._level(member), member))
                heappush(lows, (self._level(member), member))
        return budget

    def _highest(self, highs: list[Level]) -> Iterator[int]:
        while highs:
            noted, member = heappop(highs)
            if -noted == self._level(member):
                yield member

    def _even(self, high: int, low: int) -> bool:
        top, bottom = self._mean * (1 + self._slack), self._mean * (1 - self._slack)
        return self._level(high) <= top + TINY and self._level(low) >= bottom - TINY

    def _steps(self, high: int, lowest: Sequence[int]) -> Iterator[tuple[bool, float, int, int]]:
        """Yields moves that help; the smallest is the best: whether it overshoots, a level to compare, the index of the
        queue in the share, the taker.
        """
        share, level = self.shares[high], self._level(high)
        top, bottom = self._mean * (1 + self._slack), self._mean * (1 - self._slack)
        spare = self._loads[high] - bottom * self._capacities[high]
        for low in lowest:
            if low == high:
                continue
            lack = top * self._capacities[low] - self._loads[low]
            above = bisect_left(share, (min(spare, lack) + TINY, -1))  # the heaviest below it makes the fewest moves
            for at in (above - 1, above):
                if 0 <= at < len(share):
                    weight = share[at][0]
                    after = max(self._level(high, -weight), self._level(low, weight))
                    if after < level - TINY * max(1.0, level):
                        yield at == above, after if at == above else self._level(low), at, low


def _weights(queues: Sequence[MessageQueue], given: Mapping[MessageQueue, float]) -> list[float]:
    weights = [given.get(queue, 1.0) for queue in queues] if given else [1.0] * len(queues)
    for queue, weight in zip(queues, weights, strict=True):
        if not (math.isfinite(weight) and weight >= 0):
            raise BadRequest(f"the weight of queue {queue} is {weight}, it must be 0 or more and finite")
    least = FLOOR * math.fsum(weights) / max(1, len(weights)) or 1.0
    return [max(weight, least) for weight in weights]


def _capacity(client_id: str, given: Mapping[str, float]) -> float:
    capacity = given.get(client_id, 1.0)
    if not (math.isfinite(capacity) and capacity > 0):
        raise BadRequest(f"the capacity of member {client_id[:80]!r} is {capacity}, it must be above 0 and finite")
    return capacity
