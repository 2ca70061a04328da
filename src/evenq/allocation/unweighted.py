"""STICKY without weights: sizes that differ by at most 1, with the fewest possible moves. Used by `sticky.py`.

With Q queues and C members each gets Q // C, and Q mod C members get one more. Each member keeps its queues up to its
size, and members with more than Q // C get the larger sizes first: no other choice keeps more queues. Zones only choose
between results that are equal in both, by a greedy search that is near the optimum. If balance needs more than
`moves_max` moves, queues without owner go to the smallest shares, then single queues from the largest to the smallest.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace

from evenq.allocation.context import Context
from evenq.model import MessageQueue


def evened(queues: Sequence[MessageQueue], ids: Sequence[str], context: Context) -> dict[str, list[MessageQueue]]:
    """Returns each member's share, unordered. `ids` are in the order that decides ties; no repeats, no empty `ids`."""
    kept: dict[str, list[MessageQueue]] = {client_id: [] for client_id in ids}
    free: list[MessageQueue] = []
    owner_of = context.owners.get
    for queue in queues:
        mine = kept.get(owner_of(queue, ""))
        (free if mine is None else mine).append(queue)
    size, larger = divmod(len(queues), len(ids))
    large = [client_id for client_id in ids if len(kept[client_id]) > size]
    surplus = sum(len(kept[client_id]) - size for client_id in large) - min(larger, len(large))
    shares = _Shares(kept, free, context)
    if 0 < context.moves_max < surplus:  # full balance needs more moves than allowed
        shares.give_to_the_smallest()
        shares.level(context.moves_max)
    else:
        shares.shed(large, size, larger)
        shares.fill(size, larger - min(larger, len(large)))
    return kept


class _Shares:
    """Shares under construction: each queue is in `kept` of one member or in `free`, never in both."""

    def __init__(self, kept: dict[str, list[MessageQueue]], free: list[MessageQueue], context: Context) -> None:
        self.kept = kept
        """Queues by client id, in the order of ties."""
        self.free = free
        """Queues without an owner."""
        # Both empty unless zones of brokers and members are known: zones of one side alone decide nothing.
        self._zone_of_broker = context.zone_of_broker if context.zone_of_member else {}
        self._zone_of_member = context.zone_of_member if context.zone_of_broker else {}

    def shed(self, large: Sequence[str], size: int, larger: int) -> None:
        """Frees the queues of members above their size; the first `larger` of `large` keep one more than `size`."""
        if len(large) > larger > 0:  # first those that would otherwise lose a queue of their own zone
            large = sorted(large, key=lambda client_id: self._near(client_id) <= size)  # stable: ties as before
        lacking = Counter[str]()
        if self._zone_of_member:
            for client_id, mine in self.kept.items():
                lacking[self._zone(client_id)] += max(0, size - len(mine))
            lacking.subtract(self._zone_of(queue) for queue in self.free)
        for index, client_id in enumerate(large):
            self._give_up(client_id, len(self.kept[client_id]) - size - (index < larger), lacking)

    def _give_up(self, client_id: str, count: int, lacking: Counter[str]) -> None:
        """Frees queues far from the member first, above all those near a member that lacks some; then the last ones."""
        mine = self.kept[client_id]
        if count and self._zone_of_member:
            own = self._zone(client_id)
            lists: tuple[list[MessageQueue], ...] = ([], [], [])  # to keep ... to give up
            for queue in mine:
                zone = self._zone_of(queue)
                far = not own or zone != own
                useful = far and zone != "" and lacking[zone] > 0
                lacking[zone] -= useful
                lists[far + useful].append(queue)
            mine[:] = [queue for part in lists for queue in part]
            lacking.update(self._zone_of(queue) for queue in lists[2][: max(0, len(lists[2]) - count)])
        if count:
            self.free += mine[-count:]
            del mine[-count:]

    def fill(self, size: int, extra: int) -> None:
        """Gives the free queues: each member gets `size`, and `extra` members with exactly `size` get one more."""
        if self._zone_of_member:
            extra = self._fill_near(size, extra)
        free = deque(self.free)
        for takers in _rounds([(client_id, size - len(mine)) for client_id, mine in self.kept.items()]):
            for client_id in takers:
                self.kept[client_id].append(free.popleft())
        for mine in self.kept.values():
            if extra and len(mine) == size:
                mine.append(free.popleft())
                extra -= 1

    def _fill_near(self, size: int, extra: int) -> int:
        """Gives free queues within each zone; the others stay free. Returns the rest of `extra`."""
        free_in: dict[str, deque[MessageQueue]] = {}
        for queue in self.free:
            free_in.setdefault(self._zone_of(queue), deque()).append(queue)
        far = free_in.pop("", ())
        for takers in _rounds([(client_id, size - len(mine)) for client_id, mine in self.kept.items()]):
            for client_id in takers:
                if mine := free_in.get(self._zone(client_id)):
                    self.kept[client_id].append(mine.popleft())
        for client_id, share in self.kept.items():
            if extra and len(share) == size and (mine := free_in.get(self._zone(client_id))):
                share.append(mine.popleft())
                extra -= 1
        self.free = [*far, *(queue for rest in free_in.values() for queue in rest)]
        return extra

    def give_to_the_smallest(self) -> None:
        """Gives each free queue to a member with the fewest queues, if possible in the queue's zone."""
        places = {client_id: index for index, client_id in enumerate(self.kept)}
        heaps: dict[str, list[tuple[int, int, str]]] = {"": []}
        for client_id, mine in self.kept.items():
            entry = (len(mine), places[client_id], client_id)
            heaps[""].append(entry)
            if zone := self._zone(client_id):
                heaps.setdefault(zone, []).append(entry)
        for heap in heaps.values():
            heapify(heap)
        for queue in self.free:
            least = self._least(heaps[""])
            near = heaps.get(self._zone_of(queue)) or heaps[""]
            chosen = min(least, self._least(near), key=lambda entry: entry[0])
            if chosen[0] == self._least(near)[0]:
                chosen = self._least(near)
            client_id = chosen[2]
            self.kept[client_id].append(queue)

    def _least(self, heap: list[tuple[int, int, str]]) -> tuple[int, int, str]:
        """Returns the top of a heap after outdated sizes were replaced; sizes only grow."""
        while (size := len(self.kept[heap[0][2]])) != heap[0][0]:
            heapreplace(heap, (size, *heap[0][1:]))
        return heap[0]

    def level(self, moves: int) -> None:
        """Moves `moves` queues, each from a largest to a smallest share; `moves` is less than balance needs."""
        smallest = [(len(mine), index, client_id) for index, (client_id, mine) in enumerate(self.kept.items())]
        largest = [(-count, index, client_id) for count, index, client_id in smallest]
        heapify(smallest)
        heapify(largest)
        stocks: dict[str, dict[str, list[MessageQueue]]] = {}  # of giving members, by zone; these never take a queue
        for _ in range(moves):
            (taken, low_place, low), (given, high_place, high) = smallest[0], largest[0]
            if high not in stocks:
                stocks[high] = {}
                for queue in self.kept[high]:
                    stocks[high].setdefault(self._zone_of(queue), []).append(queue)
            self.kept[low].append(self._fitting(stocks[high], self._zone(high), self._zone(low)))
            heapreplace(smallest, (taken + 1, low_place, low))
            heapreplace(largest, (given + 1, high_place, high))
        for client_id, stock in stocks.items():
            self.kept[client_id][:] = [queue for mine in stock.values() for queue in mine]

    def _fitting(self, stock: dict[str, list[MessageQueue]], gives: str, takes: str) -> MessageQueue:
        """Takes the best queue to move: near the taker, otherwise far from the giver, of the zone with most queues."""
        zone = max(stock, key=lambda zone: (zone == takes != "", zone != gives, len(stock[zone])))
        queue = stock[zone].pop()
        if not stock[zone]:
            del stock[zone]
        return queue

    def _near(self, client_id: str) -> int:
        zone = self._zone(client_id)
        return sum(self._zone_of(queue) == zone for queue in self.kept[client_id]) if zone else 0

    def _zone(self, client_id: str) -> str:
        return self._zone_of_member.get(client_id, "")

    def _zone_of(self, queue: MessageQueue) -> str:
        return self._zone_of_broker.get(queue.broker_name, "")


def _rounds(lacking: Iterable[tuple[str, int]]) -> Iterable[list[str]]:
    """Yields the members that take one queue in each round, until none lacks any."""
    left = [(client_id, count) for client_id, count in lacking if count > 0]
    while left:
        yield [client_id for client_id, _ in left]
        left = [(client_id, count - 1) for client_id, count in left if count > 1]
