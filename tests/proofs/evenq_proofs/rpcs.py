"""Calls of servers that tests make up."""

from __future__ import annotations

from typing import Any

from evenq.serving.rpc import Access, Action, CallKind, Resource, Rpc

DESCRIBES = Access(Resource.NONE, Action.DESCRIBE)


def fake_rpc(
    method: str,
    handler: Any,
    response: type[Any],
    *,
    kind: CallKind = CallKind.UNARY,
    access: Access = DESCRIBES,
    **fields: Any,
) -> Rpc:
    """Unary and of no resource, unless the arguments differ."""
    return Rpc(method=method, kind=kind, handler=handler, response=response, access=access, **fields)
