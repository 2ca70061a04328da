"""A copy whose bytes are not those of its group is refused with a sentence; any other log is cut as ever."""

from __future__ import annotations

import pytest
from evenq_broker.core.replication.messages import LastRecord
from evenq_broker.loops.replication.other_history import compare, cut, ends_elsewhere

from evenq.errors import StoreError, WithinRecord
from evenq.store import StoreOptions
from evenq.store.copies.log_copy import LogCopy
from evenq.store.io.memory_disk import MemoryDisk


async def copied(*sizes: int) -> tuple[LogCopy, list[int]]:
    """A log with an epoch for each size, and where each ends."""
    copy = await LogCopy.open(
        None, StoreOptions(), disk=MemoryDisk(1 << 30), broker_name="broker-a", segment_bytes=1 << 20
    )
    return copy, [await copy.append_epoch_start(epoch, bytes(size), 1) for epoch, size in enumerate(sizes, start=1)]


async def test_a_log_that_would_be_cut_within_a_record_is_of_another_history() -> None:
    copy, ends = await copied(100, 5_000)
    with pytest.raises(StoreError) as raised:
        await cut(copy, ends[0] + 1_000, group="broker-a")
    assert not isinstance(raised.value, WithinRecord)
    assert f"copy of broker-a is in epoch 2 and ends at {ends[1]}, its leader's ends at {ends[0] + 1_000}" in str(
        raised.value
    )
    assert "with an empty folder" in str(raised.value)
    assert copy.end == ends[1], "nothing was cut"
    await cut(copy, ends[0], group="broker-a")
    assert copy.end == ends[0]
    await copy.close()


async def test_a_log_whose_last_common_record_is_another_one_is_of_another_history() -> None:
    theirs = LastRecord(30, 90, 0xABCD)
    copy, ends = await copied(100)

    async def compared(mine: LastRecord | None, known: LastRecord | None = theirs) -> None:
        async def own(end: int) -> LastRecord | None:
            assert end == theirs.end
            return mine

        await compare(known, own, copy, group="broker-a")

    for other in (LastRecord(30, 90, 0xABCE), LastRecord(31, 90, 0xABCD)):
        with pytest.raises(StoreError) as raised:
            await compared(other)
        text = str(raised.value)
        assert f"copy of broker-a is in epoch 1 and ends at {ends[0]}, and its last record before log offset 90" in text
        assert f"begins at {other.start} with crc32c {other.crc32c:08x}, its leader's at 30 with 0000abcd" in text
        assert "with an empty folder" in text
        assert "look at the leader's disk first" in text
    await compared(theirs)
    await compared(None)
    await compared(LastRecord(1, 90, 2), None)
    await copy.close()


def test_a_follower_that_reports_a_place_within_a_record_is_told_what_it_is() -> None:
    assert ends_elsewhere(77).startswith("its log ends at 77, where no record of its leader's ends. Same epochs")
