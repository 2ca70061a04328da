"""A small share of `make fuzz-front`, and that it sees what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from evenq.serving.http2.connection import Connection
from tests.unit.evenq.serving.http2 import hostile_input


def test_nothing_a_peer_sends_raises_or_grows() -> None:
    seen = hostile_input.run(6_000, seed=7)
    for kind in ("RequestStarted", "DataReceived", "StreamReset", "PingAnswered", "GrpcFault", "ENHANCE_YOUR_CALM"):
        assert seen[kind] > 5, kind
    assert seen["RequestStarted"] > seen["connections"], "most of the input is nearly right"


def test_an_exception_and_a_stream_too_many_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Connection._on_reset

    def raising(self: Connection, stream_id: int, payload: bytes, events: Any) -> None:
        if payload == bytes(4):
            raise KeyError(stream_id)
        first(self, stream_id, payload, events)

    def keeping(self: Connection, _stream: Any) -> None:
        """A stream that stays."""

    for name, broken, error in (("_on_reset", raising, "KeyError"), ("close_stream", keeping, "AssertionError")):
        with monkeypatch.context() as patch:
            patch.setattr(Connection, name, broken)
            with pytest.raises(AssertionError, match=rf"seed 7, input \d+: .*{error}"):
                hostile_input.run(6_000, seed=7)
