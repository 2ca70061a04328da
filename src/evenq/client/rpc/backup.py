"""`evenq.v1.Backup`: snapshot and log of a broker, as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from evenq.client.core.admin.backup_views import BackupHead, BackupPart, BackupWish
from evenq.client.rpc.calls import Calls
from evenq.client.rpc.views import view
from evenq.errors import InternalError, RequestTimeout
from evenq.wire.stubs.evenq.v1 import backup_pb2 as pb

METHOD: Final = "/evenq.v1.Backup/Fetch"
STALL_MS: Final = 120_000
"""Longest silence: a snapshot of a large broker takes time, and a low rate pauses between pieces."""


async def fetch_backup(calls: Calls, wish: BackupWish) -> AsyncGenerator[BackupHead | BackupPart, None]:
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
    headed = False
    try:
        while True:
            try:
                async with asyncio.timeout(STALL_MS / 1000):
                    data = await anext(frames, None)
            except TimeoutError as error:
                raise RequestTimeout(
                    f"broker {wish.broker_name} sent no part of its backup for {STALL_MS} ms"
                ) from error
            if data is None:
                return
            piece = pb.BackupPiece.FromString(data)
            if piece.HasField("head") is headed:
                raise InternalError(f"broker {wish.broker_name} sends a backup whose head is not its first piece")
            headed = True
            yield view(BackupHead, piece.head) if piece.HasField("head") else BackupPart(piece.snapshot, piece.log)
    finally:
        close = getattr(frames, "aclose", None)
        if close is not None:
            await close()
