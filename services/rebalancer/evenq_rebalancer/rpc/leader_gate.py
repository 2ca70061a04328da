"""The gate in front of all calls: passes them to the leader's term, or answers with the address of the leader.

A broker that reports to a rebalancer that does not lead receives one `Decision` with the leader's address only ("?": no
leader), and its stream ends. A unary call fails with `ConnectionFailed`, which callers may retry. A leader sends an
empty `Decision` immediately and every `BEAT_MS`, so a broker notices within seconds that a leader hangs or is cut off.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import cast

from evenq.errors import ConnectionFailed
from evenq.serving.rpc import Bidi, CallKind, Frames, Rpc, RpcContext, Unary
from evenq.wire.stubs.evenq.v1 import assignment_pb2

BEAT = assignment_pb2.Decision().SerializeToString()
"""A sign of life without any decision."""
BEAT_MS = 1_000


class LeaderGate:
    """`term`: handlers of the present term by method, None while this process does not lead. `leader`: its address."""

    def __init__(self, *, term: Callable[[], Mapping[str, Rpc] | None], leader: Callable[[], str]) -> None:
        self._term = term
        self._leader = leader

    def rpcs(self, shape: Mapping[str, Rpc]) -> list[Rpc]:
        """Returns the calls of `shape` with handlers that pass through the gate."""
        return [
            replace(rpc, handler=self._report(method) if rpc.kind is CallKind.BIDI else self._unary(method))
            for method, rpc in shape.items()
        ]

    def _unary(self, method: str) -> Unary:
        async def call(request: bytes, context: RpcContext) -> bytes:
            term = self._term()
            if term is None:
                raise ConnectionFailed(
                    f"this rebalancer does not lead; the leader is {self._leader()}: call it, or retry in a second"
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
                # If the term ended the stream, the broker must get the address of the new leader.
                if self._term() is term:
                    return
            yield assignment_pb2.Decision(leader=self._leader()).SerializeToString()

        return call
