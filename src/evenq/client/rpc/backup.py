"""`evenq.v1.Backup`: snapshot and log of a broker, as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from evenq.client.core.admin.backup_views import BackupHead, BackupPart, BackupWish
from evenq.client.rpc.calls import Calls
from evenq.client.rpc.views import view
from evenq.errors import InternalError
from evenq.runtime.clock import Clock
from evenq.runtime.net import frames_within
from evenq.wire.stubs.evenq.v1 import backup_pb2 as pb

METHOD: Final = "/evenq.v1.Backup/Fetch"
STALL_MS: Final = 120_000
"""Longest silence: a snapshot of a large broker takes time, and a low rate pauses between pieces."""


async def fetch_backup(
    calls: Calls, wish: BackupWish, *, clock: Clock
) -> AsyncGenerator[BackupHead | BackupPart, None]:
    """Yields the head, then the parts. Raises the broker's error, ConnectionFailed, RequestTimeout."""
    request = pb.FetchBackupRequest(
        cluster=wish.cluster,
        broker_name=wish.broker_name,
        start=wish.start,
        compare_from=wish.compare_from,
        compare_crc32c=wish.compare_crc32c,
        bytes_per_second=wish.bytes_per_second,
        end=wish.end,
    )
    frames = calls.stream(f"#{wish.broker_name}", METHOD, request.SerializeToString(), timeout_ms=None)
    silence = f"broker {wish.broker_name} sent no part of its backup"
    headed = False
    async with aclosing(frames_within(frames, stall_ms=STALL_MS, silence=silence, clock=clock)) as pieces:
        async for data in pieces:
            piece = pb.BackupPiece.FromString(data)
            if piece.HasField("head") is headed:
                raise InternalError(f"broker {wish.broker_name} sends a backup whose head is not its first piece")
            headed = True
            yield view(BackupHead, piece.head) if piece.HasField("head") else BackupPart(piece.snapshot, piece.log)
