"""Service `evenq.v1.Registry`: brokers register, brokers and tools get or watch routes.

Handlers decode, call `core`, and notify the watchers. A watch joins and takes its snapshot in one turn of the loop, so
no change is lost between the two.

A nameserver that has just started lacks brokers that are alive. Until `settled` is called, snapshots are marked as
settling, so that watchers keep brokers that are missing in them; then every watch gets a full snapshot.

Registrations decide where clients send, so the three calls of brokers are accepted from allowed addresses only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator

from evenq.errors import BadRequest, ConnectionFailed, Forbidden, TooManyRequests
from evenq.runtime.clock import Clock
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import registry_pb2
from evenq_nameserver.core.registry import Registry, RouteChange
from evenq_nameserver.core.watchers import Watchers
from evenq_nameserver.rpc.translation import change_event, entry_of, fill_route, info_of, left_part, snapshot_event
from evenq_nameserver.settings import NameserverSettings
from evenq_nameserver.stats import NameserverStats

log = logging.getLogger(__name__)

OK = definition_pb2.Status(code=definition_pb2.OK)
TOPICS_ASKED_MAX = 10_000
LOG_AGAIN_MS = 60_000


class RegistryService:
    """The handlers and what they share with the expiry loop."""

    def __init__(self, *, settings: NameserverSettings, clock: Clock, identity: str, stats: NameserverStats) -> None:
        self.registry = Registry(expiry_ms=settings.expiry_ms, brokers_max=settings.brokers_max)
        self.watchers = Watchers(watchers_max=settings.watchers_max, behind_max=settings.watcher_behind_max)
        self._settings = settings
        self._clock = clock
        self._identity = identity
        self._stats = stats
        self._encoded: tuple[tuple[int, bool], bytes] | None = None
        """The newest encoded snapshot, with its version and settling mark."""
        self._news = asyncio.Event()
        self._closing = False
        self._allowed = settings.allowed_brokers()
        self._refusal_logged_ms = clock.monotonic_ms() - LOG_AGAIN_MS
        self._settling = True
        """True until the time to register has ended: a live broker may not have registered yet."""

    def rpcs(self) -> list[Rpc]:
        """Returns all calls with their access rules."""
        service = "/evenq.v1.Registry/"
        return [
            rpc(service + "Register", self.register),
            rpc(service + "Heartbeat", self.heartbeat),
            rpc(service + "Unregister", self.unregister),
            rpc(service + "GetRoutes", self.get_routes),
            rpc(service + "WatchRoutes", self.watch_routes),
        ]

    async def register(self, data: bytes, context: RpcContext) -> bytes:
        """Handles a full report of a broker (NS-5). PRECONDITION_FAILED: another process holds the name."""
        self._check_address(context)
        request = registry_pb2.RegisterRequest.FromString(data)
        entry = entry_of(request.state, topics_max=self._settings.topics_max)
        change = self.registry.register(entry, self._clock.monotonic_ms())
        self._stats.registrations += 1
        if change is not None:
            fields = {"broker": entry.name, "address": entry.addresses[0].target, "topics": len(entry.topics)}
            log.info("broker registered: %s", entry.name, extra={**fields, "version": change.version})
            if change.replaced is not None:
                log.warning(
                    "broker %s was registered by another process at %s",
                    entry.name,
                    change.replaced.addresses[0].target,
                    extra={
                        "broker": entry.name,
                        "address": change.replaced.addresses[0].target,
                        "incarnation": change.replaced.incarnation,
                    },
                )
            self.announce(change)
        return registry_pb2.RegisterResponse(
            status=OK,
            heartbeat_interval_ms=self._settings.heartbeat_interval_ms,
            expiry_ms=self._settings.expiry_ms,
        ).SerializeToString()

    async def heartbeat(self, data: bytes, context: RpcContext) -> bytes:
        """Handles a broker's sign of life (NS-4)."""
        self._check_address(context)
        request = registry_pb2.RegistryHeartbeatRequest.FromString(data)
        self._stats.heartbeats += 1
        full_wanted = self.registry.heartbeat(
            request.broker_name, request.incarnation, request.data_version, self._clock.monotonic_ms()
        )
        return registry_pb2.RegistryHeartbeatResponse(status=OK, full_wanted=full_wanted).SerializeToString()

    async def unregister(self, data: bytes, context: RpcContext) -> bytes:
        """Removes a broker immediately. OK also if it was not registered."""
        self._check_address(context)
        request = registry_pb2.UnregisterRequest.FromString(data)
        change = self.registry.unregister(request.broker_name, request.incarnation, self._clock.monotonic_ms())
        if change is not None:
            log.info("broker left: %s", request.broker_name, extra={"version": change.version})
            self.announce(change)
        elif self._settling and not self.registry.knows(request.broker_name):
            # Registered before this nameserver started: watchers keep it until they are notified of its end.
            self.announce(RouteChange(version=self.registry.version, removed=request.broker_name))
        return registry_pb2.UnregisterResponse(status=OK).SerializeToString()

    async def get_routes(self, data: bytes, _context: RpcContext) -> bytes:
        """Answers the routes of some topics or all; a topic that no broker serves is left out."""
        request = registry_pb2.GetRoutesRequest.FromString(data)
        if len(request.topics) > TOPICS_ASKED_MAX:
            raise BadRequest(f"{len(request.topics)} topics in one call, the limit is {TOPICS_ASKED_MAX}; none = all")
        response = registry_pb2.GetRoutesResponse(status=OK, version=self.registry.version)
        for route in self.registry.routes(request.topics):
            fill_route(route, response.routes.add())
        for entry in self.registry.brokers():
            info_of(entry, response.brokers.add())
        return response.SerializeToString()

    async def watch_routes(self, data: bytes, _context: RpcContext) -> AsyncGenerator[bytes, None]:
        """Sends the whole table, then each change in order (NS-8). A watcher that does not read is cut off."""
        request = registry_pb2.WatchRoutesRequest.FromString(data)
        watcher = self.watchers.join(request.watcher[:255])
        try:
            yield self._snapshot()
            while True:
                while watcher.pending:
                    yield watcher.pending.popleft()
                news = self._news
                if watcher.cut_off:
                    raise TooManyRequests(
                        f"the watch was {self._settings.watcher_behind_max} events behind and was cut off; watch again"
                    )
                if self._closing:
                    raise ConnectionFailed("the nameserver is shutting down; watch again, or watch another one")
                await news.wait()
        finally:
            self.watchers.leave(watcher)

    def _check_address(self, context: RpcContext) -> None:
        if self._allowed.hold(context.host):
            return
        error = Forbidden(
            f"brokers may not call this nameserver from {context.host}: register_from allows {self._allowed.text}; "
            "add the address or network to it (--register-from), or switch auth on"
        )
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._refusal_logged_ms >= LOG_AGAIN_MS:  # retries must not fill the disk
            self._refusal_logged_ms = now_ms
            log.warning("a broker's call was refused: %s", error.message, extra={"peer": context.peer})
        raise error

    def announce(self, change: RouteChange) -> None:
        """Sends a change to all watchers."""
        self._tell(change_event(self._identity, change))

    def settled(self) -> None:
        """Sends all watchers the full table after the time to register: missing brokers are gone. Called once, by
        `loops.expiry`, which leaves out the time in which this process was stopped.
        """
        self._settling = False
        log.info("the time for brokers to register has ended; brokers in the routes: %d", len(self.registry.brokers()))
        self._tell(self._snapshot())

    def _snapshot(self) -> bytes:
        """Returns a snapshot shared by all watches that begin between two changes, because it may have megabytes.

        After it come the brokers that left, with their times: two encoded parts of one message are that message.
        """
        registry, now = self.registry, (self.registry.version, self._settling)
        if self._encoded is None or self._encoded[0] != now:
            encoded = snapshot_event(self._identity, registry.version, registry.brokers(), settling=now[1])
            self._encoded = now, encoded
        return self._encoded[1] + left_part(registry.left(self._clock.monotonic_ms()))

    def _tell(self, event: bytes) -> None:
        for slow in self.watchers.tell(event):
            log.warning("watch of routes by %s ended, it reads too slowly", slow.name, extra={"watcher": slow.name})
        self._wake()

    def close(self) -> None:
        """Ends all watches with an error, so that the watchers call another nameserver."""
        self._closing = True
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
