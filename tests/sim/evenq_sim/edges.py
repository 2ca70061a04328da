"""The edges that a world gives the real programs: doors, pages, disks and the lease.

They are arguments of the programs, so nothing of them is replaced but what a planted fault replaces (`replaced`).
Always true: no socket is opened, no file, no thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from evenq_proofs.sim import ProcessClock, SimNet, SimProcess

from evenq.errors import ConnectionFailed
from evenq.model import PLAIN_LISTENER
from evenq.serving.front.port_openers import PortOpeners
from evenq.store.io.memory_disk import MemoryDisk, MemoryFile


class SimDoor:
    """What `serving.door.GrpcServer` is, on the world's network."""

    def __init__(self, net: SimNet, address: str, clock: ProcessClock, port: int) -> None:
        self.port = port
        self.listener = PLAIN_LISTENER
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
        from evenq_rebalancer.core.election import SeenRecord

        await self._way()
        seen = self._state.get("seen")
        if (seen.version if seen is not None else "") != version:
            return None
        self._state["count"] = self._state.get("count", 0) + 1
        self._state["seen"] = SeenRecord(record=record, version=str(self._state["count"]))
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


def edges_of(process: SimProcess, net: SimNet, clock: ProcessClock) -> PortOpeners:
    """How a server of this process opens its ports: on the world's network."""

    async def open_grpc_server(rpcs: Any, *, host: str, port: int, clock: Any, options: Any = None) -> Any:
        address = f"{process.host}:{port}"
        net.serve(address, process, rpcs, process_clock)
        return SimDoor(net, address, process_clock, port)

    async def open_page(**_: Any) -> Any:
        return SimPage()

    process_clock = clock
    return PortOpeners(open_grpc_server=open_grpc_server, open_page=open_page)


@contextmanager
def replaced(changes: list[tuple[Any | ModuleType, str, Any]]) -> Iterator[None]:
    """Set attributes, and set them back. Raises AttributeError for one that is not there: what it did has moved."""
    for owner, name, _ in changes:
        getattr(owner, name)
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
