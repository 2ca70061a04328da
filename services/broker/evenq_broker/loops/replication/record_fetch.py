"""Fetches records of the log from another copy, in place of those that the disk has damaged.

The request bounds the answer, and the caller checks it (`loops.replication.record_repair`). The other side is
`rpc.replication.replication`.
"""

from __future__ import annotations

from contextlib import aclosing

from evenq.errors import BadRequest
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net, frames_within
from evenq_broker.loops.wire.records import WantedRecords, ask_records, data_of
from evenq_broker.loops.wire.replication import LinkOpening

METHOD = "/evenq.v1.Replication/FetchRecords"
STALL_MS = 1_500
"""The longest time without a piece: a reader waits, and there is another copy to query."""


async def fetch_records(net: Net, address: str, who: LinkOpening, wanted: WantedRecords, *, clock: Clock) -> bytes:
    """Returns the records of the broker `who.receiver` there, unchecked, and no more than requested. Raises BadRequest
    (another log, or a wrong answer), NotFound (not there, or damaged there, too), HaNotAvailable (not known there to be
    committed), TooManyRequests, ConnectionFailed, RequestTimeout.
    """
    size, parts, came = wanted.end - wanted.start, [], 0
    silence = f"{address} sent nothing of the records"
    frames = net.stream(address, METHOD, ask_records(who, wanted), timeout_ms=None)
    async with aclosing(frames_within(frames, stall_ms=STALL_MS, silence=silence, clock=clock)) as messages:
        async for message in messages:
            data = data_of(message)
            came += len(data)
            if came > size:
                raise BadRequest(f"{address} sends more than the {size} bytes of records that were requested")
            parts.append(data)
    return b"".join(parts)
