"""Keeps gRPC's core from writing lines of its own to stderr, one for each handshake that somebody gets wrong: what is
to be said, our own log says once.

Called by the programs and the command line before anything imports grpc, which reads the variable when it is imported.
"""

from __future__ import annotations

import os

__all__ = ["quiet_grpc"]


def quiet_grpc() -> None:
    """Unless the environment says how much it is to write."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
