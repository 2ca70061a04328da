"""Calls from a thread that waits for the answer: the twin of `GrpcNet` for the hot path of the sync face.

A hop to the loop's thread and back costs more than a call. `GrpcNet.blocking` and `SignedNet.blocking` make it, with
the same channel options and credentials. Only single calls: streams, and all that may wait long, belong to the loop.
Always true: errors are those of `GrpcNet`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc

from evenq import errors

__all__ = ["BlockingNet"]

Translate = Callable[[Any, str, str, int | None], errors.Error]


class BlockingNet:
    """Thread-safe without a lock. One channel per address, made on first use."""

    def __init__(
        self,
        *,
        credentials: grpc.ChannelCredentials | None,
        options: Sequence[tuple[str, int | str]],
        channels_max: int,
        translate: Translate,
        sign: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        """`sign`: makes further headers of each call."""
        self._credentials = credentials
        self._options = options
        self._channels_max = channels_max
        self._translate = translate
        self.sign = sign
        self._calls: dict[tuple[str, str], Any] = {}
        self._channels: dict[str, grpc.Channel] = {}
        self._closed = False

    def unary(
        self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Sequence[tuple[str, str]]
    ) -> bytes:
        """One request, one answer; waits at most `timeout_ms`. Raises as `GrpcNet.unary`."""
        call = self._calls.get((address, method)) or self._call(address, method)
        if self.sign is not None:
            metadata = (*metadata, *self.sign().items())
        try:
            answer: bytes = call(request, timeout_ms / 1000, metadata)
        except grpc.RpcError as error:
            raise self._translate(error, address, method, timeout_ms) from error
        except ValueError as error:  # the channel was closed
            raise errors.ConnectionFailed(f"cannot call {address}: this side is shutting down") from error
        return answer

    def close(self) -> None:
        """End all channels; running calls are cancelled."""
        self._closed = True
        self._calls.clear()
        while self._channels:
            self._channels.popitem()[1].close()

    def _call(self, address: str, method: str) -> Any:
        channel = self._channels.get(address)
        if channel is None:
            if len(self._channels) >= self._channels_max:
                raise errors.TooManyRequests(f"{self._channels_max} addresses are open, the maximum")
            made = self._open(address)
            channel = self._channels.setdefault(address, made)  # one step: of two threads one makes it for both
            if channel is not made:
                made.close()
        if self._closed:
            self.close()
            raise errors.ConnectionFailed(f"cannot call {address}: this side is shutting down")
        return self._calls.setdefault((address, method), channel.unary_unary(method, None, None))  # bytes as they are

    def _open(self, address: str) -> grpc.Channel:
        if self._credentials is None:
            return grpc.insecure_channel(address, options=self._options)
        return grpc.secure_channel(address, self._credentials, options=self._options)
