"""`grpc.health.v1.Health`: what Kubernetes' gRPC probes and load balancers ask. Check answers once, Watch on every
change.

The two messages are one field each, so they are read and written here by hand; the published package would cost every
start an import. Three names are known from the start: the empty one and `readiness` say whether clients should come,
`liveness` whether a restart would help: it says yes while the loop turns, and no once the process cannot recover by
itself. So neither a full disk nor a drain gets a server killed. Any other name that was never set is NOT_FOUND to
Check and SERVICE_UNKNOWN to Watch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from evenq.errors import NotFound, TooManyRequests
from evenq.serving.fields import read_fields
from evenq.serving.rpc import Access, Action, CallKind, Resource, Rpc, RpcContext

__all__ = ["LIVENESS", "READINESS", "Health"]

LIVENESS, READINESS = "liveness", "readiness"

SERVING = b"\x08\x01"  # HealthCheckResponse{status: SERVING}
NOT_SERVING = b"\x08\x02"
SERVICE_UNKNOWN = b"\x08\x03"

WATCHERS_MAX = 1_000
ACCESS = Access(resource=Resource.NONE, action=Action.DESCRIBE)


class Health:
    """The state that probes see. A server is "serving" from the start; its program may say otherwise."""

    def __init__(self) -> None:
        self._states: dict[str, bytes] = {"": SERVING, READINESS: SERVING, LIVENESS: SERVING}
        self._changed = asyncio.Event()
        self._watchers = 0
        self._closed = False

    @property
    def serving(self) -> bool:
        """What the empty name answers."""
        return self._states[""] == SERVING

    @property
    def alive(self) -> bool:
        """What `liveness` answers."""
        return self._states[LIVENESS] == SERVING

    def set_serving(self, *, serving: bool, service: str = "") -> None:
        """Change the answer. The empty service stands for the whole server, and `readiness` says the same."""
        state = SERVING if serving else NOT_SERVING
        for name in ("", READINESS) if service in {"", READINESS} else (service,):
            self._states[name] = state
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def close(self) -> None:
        """The server ends: tell that it does not serve, and end every watch, so that it waits for none."""
        self._closed = True
        self.set_serving(serving=False)

    def rpcs(self) -> list[Rpc]:
        """The two calls, for the gRPC server."""
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
                f"no health is known of service {_service(request)!r}; "
                f"ask with the empty name, {READINESS} or {LIVENESS}"
            )
        return state

    async def _watch(self, request: bytes, _context: RpcContext) -> AsyncIterator[bytes]:
        if self._watchers >= WATCHERS_MAX:
            raise TooManyRequests(f"{WATCHERS_MAX} calls watch the health already, the maximum")
        self._watchers += 1
        try:
            last_state = b""
            while True:
                changed, last = self._changed, self._closed  # as of now: both may change while the state is sent
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
