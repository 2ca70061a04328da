"""Options of one gRPC server, with which `evenq.serving.front.grpc_server` opens it."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import grpc

from evenq.model import PLAIN_LISTENER, Listener
from evenq.serving.http2.limits import Http2Limits

Front: TypeAlias = Literal["grpcio", "http2"]

CLEAN_END_MS = 200  # shortest time in which `GrpcServer.stop` lets its streams end cleanly


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcServerOptions:
    """Options of one gRPC server. The defaults fit all clients of wire contract 2.5 and reliability 5.11."""

    receive_bytes_max: int = 8 << 20
    """Largest request, bytes. A send of 4 MiB + 128 KiB must fit; calls between our servers may be larger."""
    running_max: int = 20_000
    """Most calls at the same time, including waiting ones; one more is answered TooManyRequests."""
    front: Front = "http2"
    """HTTP/2 implementation: our own server, or grpcio's."""
    limits: Http2Limits = field(default_factory=Http2Limits)
    """All other bounds. Those of streams, metadata, keepalive and idle time apply to grpcio too."""
    credentials: grpc.ServerCredentials | None = None
    """TLS for grpcio, made by `serving.tls.ServerTls`; None = plain text."""
    tls: Callable[[], ssl.SSLContext] | None = None
    """TLS for our own front, made by the same class."""
    listener: Listener = PLAIN_LISTENER
    """Listener in the context of calls through this server."""

    def channel_arguments(self) -> list[tuple[str, int]]:
        """Returns the options with gRPC's names."""
        return [
            ("grpc.so_reuseport", 0),  # otherwise a second server gets half of the connections instead of an error
            ("grpc.max_receive_message_length", self.receive_bytes_max),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", self.limits.header_list_bytes_max),
            ("grpc.absolute_max_metadata_size", self.limits.header_list_bytes_max),
            ("grpc.max_concurrent_streams", self.limits.streams_per_connection_max),
            # Received calls that wait for the loop. By default gRPC resets calls of a burst over 1000 at random, which
            # looks like a broken connection to a client; our own bound answers with a status.
            ("grpc.server.max_pending_requests", self.running_max),
            ("grpc.server.max_pending_requests_hard_limit", self.running_max),
            ("grpc.keepalive_permit_without_calls", 1),  # C++ and Java clients ping without calls
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ("grpc.http2.max_ping_strikes", 0),  # no GOAWAY too_many_pings
            ("grpc.keepalive_time_ms", self.limits.keepalive_ms),
            ("grpc.keepalive_timeout_ms", self.limits.keepalive_timeout_ms),
            ("grpc.max_connection_idle_ms", self.limits.idle_ms),
        ]
