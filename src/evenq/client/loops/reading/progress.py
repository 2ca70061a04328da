"""The store of a consumer's progress: at the brokers in clustering, in a local file in broadcasting (OF-2, OF-5, OF-7).

`run` stores changes every few seconds; `now` stores one queue immediately, for a hand-over. A failed report is logged
and sent again with the next one; progress in memory is kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from evenq.client.core.reading.offsets import KeptOffset, OffsetTable, decode_offsets, encode_offsets
from evenq.client.loops.clients.troubles import Troubles, is_permanent
from evenq.client.loops.routes.route_book import RouteBook
from evenq.errors import Error, PreconditionFailed, RequestTimeout, StoreError
from evenq.model import Generation, MessageQueue, QueueOffset
from evenq.runtime.clock import Clock
from evenq.runtime.private_files import replace_file

if TYPE_CHECKING:
    from evenq.client.rpc.sessions import RpcConsumerCalls

log = logging.getLogger(__name__)


class OffsetStore(Protocol):
    at_brokers: bool
    """False: brokers do not store this consumer's progress."""

    async def save(
        self,
        offsets: Mapping[MessageQueue, QueueOffset],
        uids: Mapping[MessageQueue, str],
        *,
        backward: bool = False,
    ) -> Iterable[MessageQueue]:
        """Stores offsets of queues with these uids; returns the queues whose offsets are stored now. `backward`: also
        below the stored ones.
        """
        ...

    async def load(self, queue: MessageQueue) -> int:
        """Returns the stored offset; -1 if there is none (OF-8)."""
        ...

    async def kept(self, queue: MessageQueue) -> KeptOffset | None:
        """Returns the queue's row in the file; None: there is none, or brokers store the progress."""
        ...

    async def has_begun(self, topic: str) -> bool:
        """True if the file has an offset of the topic, or of a deleted topic of its name."""
        ...


class BrokerStore:
    """Store of clustering: each queue's broker keeps its offset."""

    at_brokers = True

    def __init__(
        self,
        calls: RpcConsumerCalls,
        routes: RouteBook,
        group: str,
        generation: Callable[[str], Generation],
        *,
        fenced: Callable[[str], None],
        troubles: Troubles,
    ) -> None:
        """`generation(topic)` is for fencing. `fenced(broker)` is called when it rejected this member as owner."""
        self._calls = calls
        self._routes = routes
        self._group = group
        self._generation = generation
        self._fenced = fenced
        self._troubles = troubles

    async def save(
        self,
        offsets: Mapping[MessageQueue, QueueOffset],
        uids: Mapping[MessageQueue, str],
        *,
        backward: bool = False,
    ) -> Iterable[MessageQueue]:
        brokers: dict[str, dict[str, dict[MessageQueue, QueueOffset]]] = {}
        for queue, offset in offsets.items():
            brokers.setdefault(queue.broker_name, {}).setdefault(queue.topic, {})[queue] = offset
        # Concurrently: a broker that does not answer must not delay the others.
        done = await asyncio.gather(
            *(self._save_at(name, topics, uids, backward=backward) for name, topics in brokers.items())
        )
        return [queue for queues in done for queue in queues]

    async def _save_at(
        self,
        broker_name: str,
        topics: Mapping[str, Mapping[MessageQueue, QueueOffset]],
        uids: Mapping[MessageQueue, str],
        *,
        backward: bool,
    ) -> list[MessageQueue]:
        done: list[MessageQueue] = []
        for topic, some in topics.items():
            try:
                address = await self._routes.address(topic, broker_name)
                generation = self._generation(topic)
                store = self._calls.reset if backward else self._calls.commit
                await store(address, self._group, some, generation=generation, uids=uids)
            except Error as error:
                if isinstance(error, PreconditionFailed):
                    self._fenced(broker_name)
                stored = f"the progress of topic {topic} at broker {broker_name}"
                self._troubles.failed(stored if is_permanent(error) else f"broker {broker_name}", error)
                if isinstance(error, RequestTimeout):  # the other topics would time out as well
                    break
            else:
                self._troubles.well(f"the progress of topic {topic} at broker {broker_name}")
                done += some
        return done

    async def load(self, queue: MessageQueue) -> int:
        address = await self._routes.address(queue.topic, queue.broker_name)
        return (await self._calls.query_offsets(address, self._group, queue)).committed

    async def kept(self, queue: MessageQueue) -> KeptOffset | None:  # noqa: ARG002 - brokers keep it
        return None

    async def has_begun(self, topic: str) -> bool:  # noqa: ARG002 - brokers store it
        return False


class FileStore:
    """Store of broadcasting: `<folder>/<group>/offsets.json`. Two instances on one machine need two folders (OF-6)."""

    at_brokers = False

    def __init__(self, folder: Path, group: str) -> None:
        self._path = folder / group / "offsets.json"
        self._known: dict[MessageQueue, KeptOffset] | None = None
        self._busy = asyncio.Lock()  # queues report separately, and the file allows one writer

    async def save(
        self,
        offsets: Mapping[MessageQueue, QueueOffset],
        uids: Mapping[MessageQueue, str],
        *,
        backward: bool = False,  # noqa: ARG002 - a file has no lower bound
    ) -> Iterable[MessageQueue]:
        async with self._busy:
            known = await self._content()
            # The whole file is written: queues of topics that an earlier run read keep their offsets.
            known.update({queue: KeptOffset(offset, uids.get(queue, "")) for queue, offset in offsets.items()})
            content = encode_offsets(known)
            try:
                # Durable: after a power loss, a file that was renamed before its content reached the disk is empty.
                await asyncio.to_thread(replace_file, self._path, content.decode())
            except OSError as error:
                log.warning("progress was not stored in %s, trying again: %s", self._path, error)
                return ()
            return offsets

    async def load(self, queue: MessageQueue) -> int:
        kept = await self.kept(queue)
        return -1 if kept is None else kept.offset

    async def kept(self, queue: MessageQueue) -> KeptOffset | None:
        async with self._busy:
            return (await self._content()).get(queue)

    async def has_begun(self, topic: str) -> bool:
        async with self._busy:
            return any(queue.topic == topic for queue in await self._content())

    async def _content(self) -> dict[MessageQueue, KeptOffset]:
        if self._known is None:
            try:
                content = await asyncio.to_thread(self._path.read_bytes)
            except FileNotFoundError:
                log.info("no stored progress in %s, reading begins by the start policy", self._path)
                self._known = {}
            except OSError as error:
                raise StoreError(
                    f"{self._path} cannot be read: {error.strerror or error}; make it readable for this user, or move "
                    "it away to start without stored offsets"
                ) from error
            else:
                self._known = decode_offsets(content, name=str(self._path))
        return self._known


class _Place:
    """A broker, or the file, and the last save there that ended."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.begun = self.ended = 0
        self.failed: set[MessageQueue] = set()


class GroupProgress:
    """The progress of one member. At a broker one save runs at a time, so a late answer cannot undo a rewind."""

    def __init__(self, store: OffsetStore, clock: Clock, *, interval_ms: int) -> None:
        self.table = OffsetTable()
        self.store = store
        self._clock = clock
        self._interval_ms = interval_ms
        self._places: dict[str, _Place] = {}

    async def run(self) -> None:
        while True:
            await self._clock.sleep_ms(self._interval_ms)
            await self.report()

    async def report(self) -> set[MessageQueue]:
        """Stores what is due; returns the queues for which that failed."""
        return await self._save(set(self.table.due()))

    async def now(self, queue: MessageQueue) -> bool:
        """Stores one queue's offset, with what else is due at its broker; True if it is stored."""
        return queue not in self.table.due() or not await self._save({queue})

    async def load(self, queue: MessageQueue) -> int:
        """Returns the offset from the store, not from memory (RB-41)."""
        return await self.store.load(queue)

    async def _save(self, queues: set[MessageQueue]) -> set[MessageQueue]:
        # Concurrently: a broker that does not answer must not delay the others.
        places = {queue.broker_name if self.store.at_brokers else "" for queue in queues}
        failed = await asyncio.gather(*(self._save_at(place) for place in sorted(places)))
        return {queue for some in failed for queue in some if queue in queues}

    async def _save_at(self, name: str) -> set[MessageQueue]:
        """Stores what is due at a place; callers that wait for its turn share one save, also if it fails."""
        place = self._places.setdefault(name, _Place())
        came = place.begun
        async with place.turn:
            if place.ended > came:
                return place.failed
            place.begun += 1
            number = place.begun
            at_brokers = self.store.at_brokers
            due = {
                queue: offset
                for queue, offset in self.table.due().items()
                if not at_brokers or queue.broker_name == name
            }
            failed = due.keys() - await self._stored(due)
            place.ended, place.failed = number, failed
            return failed

    async def _stored(self, due: Mapping[MessageQueue, QueueOffset]) -> set[MessageQueue]:
        # A commit never goes back, so a late repeat of it is harmless. Only offsets that the user rewound go back, by
        # another call.
        back = {queue: offset for queue, offset in due.items() if self.table.rewound(queue)}
        rest = {queue: offset for queue, offset in due.items() if queue not in back}
        uids = {queue: self.table.uid(queue) for queue in due}
        begun = {queue: self.table.begun(queue) for queue in due}
        done = set(await self.store.save(rest, uids)) if rest else set()
        if back:
            done |= set(await self.store.save(back, uids, backward=True))
        for queue in done:
            if self.table.begun(queue) == begun[queue]:  # otherwise it was rewound meanwhile, and is due again
                self.table.stored(queue, due[queue])
        return done
