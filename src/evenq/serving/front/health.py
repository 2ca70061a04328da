"""`grpc.health.v1.Health`, for Kubernetes' gRPC probes and load balancers. Check answers once, Watch on every change.

The two messages have one field each, so they are read and written by hand: importing the published package would delay
every start. Three names always exist. The empty one and `readiness` report whether clients should connect. `liveness`
reports whether a restart would help: it is serving while the loop runs, and not serving once the process cannot recover
by itself. So neither a full disk nor a drain gets a server killed. Any other name is NOT_FOUND for Check and
SERVICE_UNKNOWN for Watch until it is set.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from evenq.errors import NotFound, TooManyRequests
from evenq.serving.fields import read_fields
from evenq.serving.rpc import Access, Action, CallKind, Resource, Rpc, RpcContext

LIVENESS, READINESS = "liveness", "readiness"

SERVING = b"\x08\x01"  # HealthCheckResponse{status: SERVING}
NOT_SERVING = b"\x08\x02"
SERVICE_UNKNOWN = b"\x08\x03"

WATCHERS_MAX = 1_000
ACCESS = Access(resource=Resource.NONE, action=Action.DESCRIBE)


class Health:
    """The state that probes get. A server is "serving" from the start; its program may change that."""

    def __init__(self) -> None:
        self._states: dict[str, bytes] = {"": SERVING, READINESS: SERVING, LIVENESS: SERVING}
        self._changed = asyncio.Event()
        self._watchers = 0
        self._closed = False

    @property
    def serving(self) -> bool:
        return self._states[""] == SERVING

    @property
    def alive(self) -> bool:
        """Answer for `liveness`."""
        return self._states[LIVENESS] == SERVING

    def set_serving(self, *, serving: bool, service: str = "") -> None:
        """Changes the answer. The empty service means the whole server, and `readiness` has the same answer."""
        state = SERVING if serving else NOT_SERVING
        for name in ("", READINESS) if service in {"", READINESS} else (service,):
            self._states[name] = state
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def close(self) -> None:
        """Reports that the server does not serve, and ends every watch, so that a stop waits for none."""
        self._closed = True
        self.set_serving(serving=False)

    def rpcs(self) -> list[Rpc]:
        """Returns the two calls, for the gRPC server."""
        return [
            Rpc(
                method="/grpc.health.v1.Health/Check",
                kind=CallKind.UNARY,
                handler=self._check,
                response=bytes,
                access=ACCESS,
                anybody=True,
            ),
            Rpc(
                method="/grpc.health.v1.Health/Watch",
                kind=CallKind.SERVER_STREAM,
                handler=self._watch,
                response=bytes,
                access=ACCESS,
                anybody=True,
            ),
        ]

    async def _check(self, request: bytes, _context: RpcContext) -> bytes:
        state = self._states.get(_service(request))
        if state is None:
            raise NotFound(
                f"service {_service(request)!r} has no health state; use the empty name, {READINESS} or {LIVENESS}"
            )
        return state

    async def _watch(self, request: bytes, _context: RpcContext) -> AsyncIterator[bytes]:
        if self._watchers >= WATCHERS_MAX:
            raise TooManyRequests(f"{WATCHERS_MAX} calls watch the health already, the maximum")
        self._watchers += 1
        try:
            last_state = b""
            while True:
                changed, last = self._changed, self._closed  # both may change while the state is sent
                state = self._states.get(_service(request), SERVICE_UNKNOWN)
                if state != last_state:
                    last_state = state
                    yield state
                if last:
                    return
                await changed.wait()
        finally:
            self._watchers -= 1


def _service(request: bytes) -> str:
    for number, value in read_fields(request):
        if number == 1 and isinstance(value, bytes):
            return value.decode(errors="replace")
    return ""
