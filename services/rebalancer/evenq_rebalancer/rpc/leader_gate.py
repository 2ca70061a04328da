"""The gate in front of all calls: while this rebalancer leads, they go to its term; else the caller learns which one
does.

A broker that reports here is answered with one `Decision` that only names the leader ("?": none leads), and its
stream ends; a unary call is refused with `ConnectionFailed`, which callers may retry. A leader sends an empty
`Decision` at once and then every `BEAT_MS`, so a broker knows within seconds that a leader hangs or is cut off.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import cast

from evenq.errors import ConnectionFailed
from evenq.serving.rpc import Bidi, CallKind, Frames, Rpc, RpcContext, Unary
from evenq.wire.stubs.evenq.v1 import assignment_pb2

__all__ = ["BEAT", "BEAT_MS", "LeaderGate"]

BEAT = assignment_pb2.Decision().SerializeToString()
"""A sign of life: says nothing of any group."""
BEAT_MS = 1_000


class LeaderGate:
    """`term`: handlers by method of the present term, None while this process does not lead. `leader`: where to go."""

    def __init__(self, *, term: Callable[[], Mapping[str, Rpc] | None], leader: Callable[[], str]) -> None:
        self._term = term
        self._leader = leader

    def rpcs(self, shape: Mapping[str, Rpc]) -> list[Rpc]:
        """The same calls as `shape` has, kept."""
        return [
            replace(rpc, handler=self._report(method) if rpc.kind is CallKind.BIDI else self._unary(method))
            for method, rpc in shape.items()
        ]

    def _unary(self, method: str) -> Unary:
        async def call(request: bytes, context: RpcContext) -> bytes:
            term = self._term()
            if term is None:
                raise ConnectionFailed(
                    f"this rebalancer does not lead; the leader is {self._leader()}: ask there, or again in a second"
                )
            return await cast("Unary", term[method].handler)(request, context)

        return call

    def _report(self, method: str) -> Bidi:
        async def call(requests: AsyncIterator[bytes], context: RpcContext) -> AsyncIterator[Frames]:
            term = self._term()
            if term is not None:
                yield BEAT
                async for decision in cast("Bidi", term[method].handler)(requests, context):
                    yield decision
                # The broker ended it; else the term did, and the broker must hear who leads now.
                if self._term() is term:
                    return
            yield assignment_pb2.Decision(leader=self._leader()).SerializeToString()

        return call
