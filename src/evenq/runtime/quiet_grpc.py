"""Turns off the lines that gRPC's core writes to stderr for each failed handshake; evenq's log reports it once.

Called by the programs and the command line before anything imports grpc, which reads the variable during the import.
"""

from __future__ import annotations

import os


def quiet_grpc() -> None:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
