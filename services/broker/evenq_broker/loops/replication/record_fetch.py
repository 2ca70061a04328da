"""A copy fetches records of the log from another one, in place of those that its disk has damaged.

What comes is bounded by what was asked for, and judged by who asked (`loops.replication.record_repair`);
`rpc.replication.records` is the other side.
"""

from __future__ import annotations

from contextlib import aclosing

from evenq.errors import BadRequest
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net
from evenq_broker.loops.replication.peer_stream import peer_stream
from evenq_broker.loops.wire.records import WantedRecords, ask_records, data_of
from evenq_broker.loops.wire.replication import Opening

__all__ = ["METHOD", "STALL_MS", "fetch_records"]

METHOD = "/evenq.v1.Replication/FetchRecords"
STALL_MS = 1_500
"""The longest time without a piece: a reader waits, and there is another copy to ask."""


async def fetch_records(net: Net, address: str, who: Opening, wanted: WantedRecords, *, clock: Clock) -> bytes:
    """What the broker `who.receiver` has there, unchecked, and no more than was asked for. Raises BadRequest (it has
    another log, or sends something else), NotFound (not there, or damaged there, too), HaNotAvailable (it does not know
    that this is committed), TooManyRequests, ConnectionFailed, RequestTimeout.
    """
    size, parts, came = wanted.end - wanted.start, [], 0
    messages = peer_stream(
        net, address, METHOD, ask_records(who, wanted), stall_ms=STALL_MS, of="the records", clock=clock
    )
    async with aclosing(messages):
        async for message in messages:
            data = data_of(message)
            came += len(data)
            if came > size:
                raise BadRequest(f"{address} sends more than the {size} bytes of records that were asked for")
            parts.append(data)
    return b"".join(parts)
