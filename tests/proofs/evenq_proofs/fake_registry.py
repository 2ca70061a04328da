"""A nameserver that tests of other programs can steer: `evenq.v1.Registry` for `LoopNet`, without time.

Brokers that register stay until they unregister or `drop` is called; `forget` makes it a restarted nameserver that
knows no broker. Watchers get one snapshot and then every change, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from evenq.serving.rpc import Access, Action, CallKind, Resource, Rpc, RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import registry_pb2
from evenq_proofs.rpcs import fake_rpc

OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")


class FakeRegistry:
    """State and handlers of one fake nameserver."""

    def __init__(self, identity: str = "fake-1", *, heartbeat_interval_ms: int = 1_000) -> None:
        self.identity = identity
        self.settling = False
        """True: snapshots say that brokers may be missing."""
        self.brokers: dict[str, registry_pb2.BrokerState] = {}
        """What brokers reported, by name."""
        self.registered: list[str] = []
        """Broker names, one entry for each Register call."""
        self.heartbeats: list[str] = []
        """Broker names, one entry for each Heartbeat call."""
        self._interval_ms = heartbeat_interval_ms
        self._version = 0
        self._watchers: list[asyncio.Queue[bytes]] = []

    def rpcs(self) -> list[Rpc]:
        """The calls, ready to be served."""
        service, access = "/evenq.v1.Registry/", Access(Resource.CLUSTER, Action.INTERNAL)
        return [
            fake_rpc(service + "Register", self._register, registry_pb2.RegisterResponse, access=access),
            fake_rpc(service + "Heartbeat", self._heartbeat, registry_pb2.RegistryHeartbeatResponse, access=access),
            fake_rpc(service + "Unregister", self._unregister, registry_pb2.UnregisterResponse, access=access),
            fake_rpc(
                service + "WatchRoutes",
                self._watch,
                registry_pb2.RouteEvent,
                kind=CallKind.SERVER_STREAM,
                access=access,
            ),
        ]

    def drop(self, name: str) -> None:
        """The broker was silent for too long."""
        if self.brokers.pop(name, None) is not None:
            self._tell([], [name])

    def settled(self) -> None:
        """Everybody has had the time to register."""
        self.settling = False
        for events in self._watchers:
            events.put_nowait(self._event(list(self.brokers.values()), [], snapshot=True))

    def forget(self, identity: str) -> None:
        """Restarted: no broker is known any more. Serve it again at the net to break the watches."""
        self.identity = identity
        self.brokers.clear()
        self._watchers.clear()

    async def _register(self, request: bytes, _context: RpcContext) -> bytes:
        state = registry_pb2.RegisterRequest.FromString(request).state
        self.registered.append(state.broker.name)
        self.brokers[state.broker.name] = state
        self._tell([state], [])
        return registry_pb2.RegisterResponse(
            status=OK, heartbeat_interval_ms=self._interval_ms, expiry_ms=3 * self._interval_ms
        ).SerializeToString()

    async def _heartbeat(self, request: bytes, _context: RpcContext) -> bytes:
        beat = registry_pb2.RegistryHeartbeatRequest.FromString(request)
        self.heartbeats.append(beat.broker_name)
        known = self.brokers.get(beat.broker_name)
        fits = known is not None and known.data_version == beat.data_version
        return registry_pb2.RegistryHeartbeatResponse(status=OK, full_wanted=not fits).SerializeToString()

    async def _unregister(self, request: bytes, _context: RpcContext) -> bytes:
        self.drop(registry_pb2.UnregisterRequest.FromString(request).broker_name)
        return registry_pb2.UnregisterResponse(status=OK).SerializeToString()

    async def _watch(self, _request: bytes, _context: RpcContext) -> AsyncGenerator[bytes, None]:
        events: asyncio.Queue[bytes] = asyncio.Queue()
        self._watchers.append(events)
        yield self._event(list(self.brokers.values()), [], snapshot=True)
        while True:
            yield await events.get()

    def _tell(self, brokers: list[registry_pb2.BrokerState], removed: list[str]) -> None:
        self._version += 1
        for events in self._watchers:
            events.put_nowait(self._event(brokers, removed))

    def _event(self, brokers: list[registry_pb2.BrokerState], removed: list[str], *, snapshot: bool = False) -> bytes:
        return registry_pb2.RouteEvent(
            version=self._version,
            nameserver=self.identity,
            snapshot=snapshot,
            brokers=brokers,
            removed=removed,
            settling=self.settling and snapshot,
        ).SerializeToString()
