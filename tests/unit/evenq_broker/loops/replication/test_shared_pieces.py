"""Pieces of the log for followers: what two of them want at the same time is read once, on a thread of its own."""

from __future__ import annotations

import asyncio
import threading

import pytest
from evenq_broker.loops.replication.shared_pieces import SharedPieces

from evenq.errors import StoreCorrupted


class Pieces:
    """Of a log whose reads wait until they may end."""

    def __init__(self, error: Exception | None = None) -> None:
        self.reads: list[tuple[int, int, int]] = []
        self.threads: set[int] = set()
        self.began, self.may_end = threading.Event(), threading.Event()
        self.is_closed = False
        self.renewals = 0
        self._error = error

    def read(self, start: int, end: int, bytes_max: int) -> bytes:
        self.reads.append((start, end, bytes_max))
        self.threads.add(threading.get_ident())
        self.began.set()
        assert self.may_end.wait(60)
        if self._error is not None:
            raise self._error
        return b"%d" % start

    def renew(self) -> None:
        self.renewals += 1

    def record_before(self, end: int) -> tuple[int, int]:
        self.threads.add(threading.get_ident())
        return end - 5, 7

    def close(self) -> None:
        self.is_closed = True


async def test_the_same_piece_is_read_once_for_all_who_want_it_meanwhile_and_anew_afterwards() -> None:
    files = Pieces()
    pieces = SharedPieces(files)  # type: ignore[arg-type]
    reads = [asyncio.ensure_future(pieces.read(start, 90, 10)) for start in (10, 10, 20)]
    assert await asyncio.to_thread(files.began.wait, 60)
    files.may_end.set()
    assert await asyncio.gather(*reads) == [b"10", b"10", b"20"]
    assert files.reads == [(10, 90, 10), (20, 90, 10)]
    assert await pieces.read(10, 90, 10) == b"10"
    assert len(files.reads) == 3
    assert await pieces.record_before(90) == (85, 7)
    assert len(files.threads) == 1
    assert threading.get_ident() not in files.threads
    pieces.close()
    assert files.is_closed


async def test_a_reader_that_goes_takes_nothing_from_the_other_and_an_error_reaches_all() -> None:
    files = Pieces(StoreCorrupted("damaged"))
    pieces = SharedPieces(files)  # type: ignore[arg-type]
    gone, other = (asyncio.ensure_future(pieces.read(10, 90, 10)) for _ in range(2))
    assert await asyncio.to_thread(files.began.wait, 60)
    gone.cancel()
    files.may_end.set()
    with pytest.raises(StoreCorrupted, match="damaged"):
        await other
    assert files.reads == [(10, 90, 10)]
    pieces.close()


async def test_after_a_change_of_the_log_pieces_are_read_anew_also_those_that_are_being_read() -> None:
    files = Pieces()
    pieces = SharedPieces(files)  # type: ignore[arg-type]
    before = asyncio.ensure_future(pieces.read(10, 90, 10))
    assert await asyncio.to_thread(files.began.wait, 60)
    pieces.renew()
    after = asyncio.ensure_future(pieces.read(10, 90, 10))
    await asyncio.sleep(0)
    files.may_end.set()
    assert await asyncio.gather(before, after) == [b"10", b"10"]
    assert files.renewals == 1
    assert len(files.reads) == 2, "what was read before is not given to who asks behind it"
    assert await pieces.read(10, 90, 10) == b"10"
    pieces.close()
