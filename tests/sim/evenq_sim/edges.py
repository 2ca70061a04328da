"""The edges of the real programs, replaced for a world: doors, pages, disks and the lease. Nothing inside them is.

`standing_in` puts the replacements in place for as long as a world runs; which world and process a call is for is told
by the context it runs in. Always true: no socket is opened, no file, no thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import evenq_broker.app
import evenq_nameserver.app
import evenq_rebalancer.app
from evenq_broker.core.delivery import Progress
from evenq_proofs.sim import PROCESS, ProcessClock, SimNet, SimProcess

from evenq.errors import ConnectionFailed
from evenq.model import PLAIN_DOOR
from evenq.serving import doors
from evenq.store import opening
from evenq.store.memory_disk import MemoryDisk, MemoryFile

PATCHED = (evenq_broker.app, evenq_nameserver.app, evenq_rebalancer.app)


class SimDoor:
    """What `serving.door.Door` is, on the world's network."""

    def __init__(self, net: SimNet, address: str, clock: ProcessClock, port: int) -> None:
        self.port = port
        self.listener = PLAIN_DOOR
        self.stats: dict[str, Any] = {}
        self.health = self
        self.serving = False
        self._net = net
        self._address = address
        self._clock = clock

    def set_serving(self, *, serving: bool, service: str = "") -> None:
        """For `health`."""
        self.serving = serving

    async def stop(self, grace_ms: int = 0) -> None:
        """Drain."""
        await self._net.drain(self._address, self._clock, grace_ms)


class SimPage:
    """No page."""

    port = 0

    async def close(self) -> None:
        """Nothing to close."""


class SimLease:
    """One lease record for all rebalancers of a world; `reachable` says for whom."""

    def __init__(self, clock: ProcessClock, state: dict[str, Any], reachable: Callable[[], bool]) -> None:
        self._clock = clock
        self._state = state
        self._reachable = reachable

    async def read(self) -> Any:
        """What the lease says."""
        await self._way()
        return self._state.get("seen")

    async def write(self, record: Any, version: str) -> str | None:
        """Compare and set."""
        from evenq_rebalancer.core.election import Seen

        await self._way()
        seen = self._state.get("seen")
        if (seen.version if seen is not None else "") != version:
            return None
        self._state["count"] = self._state.get("count", 0) + 1
        self._state["seen"] = Seen(record=record, version=str(self._state["count"]))
        return self._state["seen"].version

    async def _way(self) -> None:
        await self._clock.sleep_ms(3)
        if not self._reachable():
            await self._clock.sleep_ms(1_000)
            raise ConnectionFailed("the lease cannot be reached")


def copied(disk: MemoryDisk) -> MemoryDisk:
    """What a killed process leaves: its writes, but none that it might still make."""
    fresh = MemoryDisk(disk.bytes_max)
    for name, file in disk.files.items():
        twin = MemoryFile(fresh)
        twin.data = bytearray(file.data)
        fresh.files[name] = twin
    fresh.bytes_used = disk.bytes_used
    return fresh


def process_now() -> SimProcess:
    """Whose code runs."""
    process = PROCESS.get()
    assert process is not None, "a program runs in a process"
    return process


@contextmanager
def standing_in(
    *,
    net: SimNet,
    clock_of: Callable[[SimProcess], ProcessClock],
    disk_of: Callable[[SimProcess], MemoryDisk],
    lease_of: Callable[[SimProcess], SimLease | None],
    committed: Callable[[SimProcess, int, int, int, int], None],
) -> Iterator[None]:
    """Replace the edges until the block ends."""

    async def open_door(rpcs: Any, *, host: str, port: int, clock: Any, options: Any = None) -> SimDoor:
        process = process_now()
        address = f"{process.host}:{port}"
        net.serve(address, process, rpcs, clock_of(process))
        return SimDoor(net, address, clock_of(process), port)

    async def open_page(**_: Any) -> SimPage:
        return SimPage()

    real_commit = Progress.commit

    def commit(
        self: Progress, group_id: int, topic_id: int, queue_id: int, offset: int, *, allow_backward: bool = False
    ) -> bool:
        changed = real_commit(self, group_id, topic_id, queue_id, offset, allow_backward=allow_backward)
        if changed:
            committed(process_now(), group_id, topic_id, queue_id, offset)
        return changed

    changes: list[tuple[Any, str, Any]] = [
        (opening, "disk_of", lambda _path, _options: disk_of(process_now())),
        (Progress, "commit", commit),
    ]
    changes.append((doors, "open_door", open_door))
    changes += [(module, "open_page", open_page) for module in PATCHED]
    if hasattr(evenq_rebalancer.app, "lease_of"):
        changes.append((evenq_rebalancer.app, "lease_of", lambda _: lease_of(process_now())))
    with replaced(changes):
        yield


@contextmanager
def replaced(changes: list[tuple[Any | ModuleType, str, Any]]) -> Iterator[None]:
    """Set attributes, and set them back."""
    before = [(owner, name, owner.__dict__.get(name, replaced)) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            if value is replaced:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
