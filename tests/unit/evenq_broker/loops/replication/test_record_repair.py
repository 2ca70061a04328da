"""What one copy's disk has damaged comes back from another copy; what no copy has fails loudly (D2, T4)."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from evenq_broker.core.replication.epoch_table import EpochStart, EpochTable
from evenq_broker.loops.replication.record_repair import (
    CLEAN_MS,
    METHOD,
    PART_BYTES_MAX,
    REST_MS,
    STALL_MS,
    START_MS,
    WAIT_MS,
    CommittedLog,
    RecordRepair,
    fetch_records,
)
from evenq_broker.loops.wire.records import WantedRecords
from evenq_broker.loops.wire.replication import LinkOpening, MalformedMessage
from evenq_proofs.fault_disk import BLOCK_BYTES, FaultDisk, Keep
from evenq_proofs.loop_net import LoopNet
from evenq_proofs.made_log import MadeLog, made_log, put_log
from evenq_proofs.rpcs import fake_rpc

from evenq.errors import (
    BadRequest,
    ConnectionFailed,
    HaNotAvailable,
    NotFound,
    RequestTimeout,
    StoreCorrupted,
    StoreError,
)
from evenq.runtime.clock import FakeClock
from evenq.serving.auth.calls import CALLS
from evenq.serving.rpc import CallKind
from evenq.store import StoreOptions
from evenq.store.copies import epoch_file
from evenq.store.copies.epoch_file import EpochStarts
from evenq.store.copies.log_copy import LogCopy
from evenq.store.log import lock, log_damage
from evenq.store.log.last_record import crc_of_record_at
from evenq.store.log.record import HEADER_BYTES, MESSAGE, pack
from evenq.store.log.segment import path_of
from evenq.wire.stubs.evenq.v1 import replication_pb2 as pb

LOG = made_log()
SEGMENT = LOG.segment_bytes
TABLE = EpochTable(0, tuple(EpochStart(epoch, start) for epoch, start in LOG.epochs))


class Group:
    """Three copies of one log, which reach each other."""

    def __init__(self, log: MadeLog = LOG) -> None:
        self.log, self.clock = log, FakeClock()
        self.disks = [FaultDisk() for _ in range(3)]
        self.table = EpochTable(0, tuple(EpochStart(epoch, start) for epoch, start in log.epochs))
        self.known = [CommittedLog(log.end, self.table) for _ in range(3)]
        self.answers: dict[int, Callable[[WantedRecords], Awaitable[bytes]]] = {}
        """What a copy says in place of its own."""
        self.questions: list[tuple[int, int, WantedRecords]] = []
        for disk in self.disks:
            put_log(disk, log)
        self.copies = [self._copy(number) for number in range(3)]

    def _copy(self, number: int) -> RecordRepair:
        log = self.log

        async def ask(other: int, wanted: WantedRecords) -> bytes:
            self.questions.append((number, other, wanted))
            return await self.answers.get(other, self.copies[other].given)(wanted)

        async def write(start: int, data: bytes) -> None:
            log_damage.rewrite(self.disks[number], log.segment_bytes, start, data)

        return RecordRepair(
            self.disks[number], log.segment_bytes, known=lambda: self.known[number],
            copies=lambda: [other for other in range(3) if other != number], ask=ask, write=write, clock=self.clock,
            group="broker-a",
        )  # fmt: skip

    def flip(self, number: int, place: int, bit: int = 0) -> None:
        start = place - place % SEGMENT
        file = self.disks[number].files[path_of(start)]
        file.data[place - start] ^= 1 << bit
        file.synced[place - start] = file.data[place - start]

    def is_whole(self, number: int) -> bool:
        files = self.disks[number].files
        return all(bytes(files[path_of(start)].data) == data for start, data in self.log.files().items())

    async def read(self, number: int, place: int) -> bool:
        """As a read does that meets damage there."""
        repair = self.copies[number]
        return await repair.repair(StoreCorrupted("a read failed", log_offset=place), repair.version)

    async def close(self) -> None:
        for copy in self.copies:
            await copy.close()


@asynccontextmanager
async def a_group(log: MadeLog = LOG) -> AsyncIterator[Group]:
    group = Group(log)
    try:
        yield group
    finally:
        await group.close()


@pytest.mark.slow
async def test_each_byte_of_each_file_is_repaired_and_is_then_as_the_others_have_it() -> None:
    async with a_group() as group:
        for place in range(LOG.end):
            group.flip(0, place, place % 8)
            assert not group.is_whole(0)
            assert await group.read(0, place), place
            assert group.is_whole(0), place
        assert group.copies[0].records_repaired >= LOG.end
        assert group.copies[0].parts_failed == 0


async def test_many_places_of_all_copies_are_repaired_crosswise_as_long_as_one_copy_has_each() -> None:
    async with a_group() as group:
        for seed in range(40):
            rng = random.Random(seed)
            for record in rng.sample(LOG.starts, 12):
                for number in rng.sample(range(3), rng.choice((1, 2))):
                    group.flip(number, record + rng.randrange(30), rng.randrange(8))
            for number in range(3):
                for start in LOG.files():
                    await group.clock.advance(REST_MS)
                    await group.read(number, start)
            assert all(map(group.is_whole, range(3))), seed
            assert [copy.parts_failed for copy in group.copies] == [0, 0, 0]


async def test_the_same_place_on_all_copies_fails_loudly_names_who_was_asked_and_is_asked_for_rarely() -> None:
    async with a_group() as group:
        place = LOG.starts[4] + 50
        for number in range(3):
            group.flip(number, place)
        group.flip(0, LOG.starts[9])
        for _ in range(5):
            with pytest.raises(StoreCorrupted, match=r"copy 1: it is damaged here, too.*copy 2: it is damaged here"):
                await group.read(0, place)
        assert group.copies[0].parts_failed <= 2, "only what was repaired beside it was worth a second look"
        assert group.copies[0].records_repaired == 1, "the other place is whole"
        questions = len(group.questions)
        group.flip(1, place)
        await group.clock.advance(REST_MS - 1)
        with pytest.raises(StoreCorrupted):
            await group.read(0, place)
        assert len(group.questions) == questions
        await group.clock.advance(1)
        assert await group.read(0, place)
        assert group.is_whole(0)


async def test_each_copy_is_asked_once_and_the_next_one_if_the_first_has_it_not() -> None:
    async with a_group() as group:

        async def away(_: WantedRecords) -> bytes:
            raise ConnectionFailed("nobody answers at b1:8083")

        group.answers[1] = away
        group.flip(0, LOG.starts[3] + 8)
        assert await group.read(0, LOG.starts[3])
        assert [(other, wanted.start, wanted.end) for _, other, wanted in group.questions] == [
            (1, LOG.starts[3], LOG.starts[4]),
            (2, LOG.starts[3], LOG.starts[4]),
        ]
        assert {wanted.epoch for _, _, wanted in group.questions} == {TABLE.epoch_at(LOG.starts[3])}
        assert group.is_whole(0)


@pytest.mark.parametrize("wrong", ["short", "longer", "flipped", "another place", "another epoch", "damaged", "empty"])
async def test_bytes_that_do_not_fit_are_refused_and_the_next_copy_is_asked(wrong: str) -> None:
    _, began = LOG.epochs[1]
    end = LOG.starts[LOG.starts.index(began) + 1]

    def forged(right: bytes) -> bytes:
        match wrong:
            case "short":
                return right[:-1]
            case "longer":
                return right + right
            case "flipped":
                return right[:-1] + bytes([right[-1] ^ 1])
            case "another place":
                return LOG.data[LOG.starts[0] : LOG.starts[0] + len(right)]
            case "another epoch":
                return pack(
                    kind=MESSAGE, flags=0, epoch=1, topic_id=1, queue_id=0, queue_offset=1, log_offset=began,
                    synced_offset=0, store_ms=1, born_ms=1, tag_hash=5, head=bytes(len(right) - HEADER_BYTES),
                    system=b"",
                )  # fmt: skip
            case "damaged":
                return bytes(len(right))
            case _:
                return b""

    async with a_group() as group:

        async def liar(wanted: WantedRecords) -> bytes:
            return forged(LOG.data[wanted.start : wanted.end])

        group.answers[1] = liar
        group.flip(0, began + 30)
        assert await group.read(0, began)
        assert [other for _, other, _ in group.questions] == [1, 2]
        assert group.is_whole(0)
        group.answers[2] = liar
        group.flip(0, began + 30)
        await group.clock.advance(REST_MS)
        before = bytes(group.disks[0].files[path_of(0)].data)
        with pytest.raises(StoreCorrupted, match=r"copy 1 sent other bytes.*copy 2 sent other bytes"):
            await group.read(0, began)
        assert bytes(group.disks[0].files[path_of(0)].data) == before, "nothing of it was written"
        assert end > began


@pytest.mark.parametrize("keep", list(Keep))
async def test_a_crash_at_each_step_of_the_disk_leaves_what_is_repaired_again(keep: Keep) -> None:
    async with a_group() as group:
        first, last = LOG.starts[2], LOG.starts[5]
        size, crashes = last - first, 0
        for operation in range(2):
            for written in (0, 1, 40, 87, 88, 200, size - 1, size) if operation == 0 else (0,):
                for place in range(first, last):
                    group.flip(0, place, place % 8)
                disk = group.disks[0]
                disk.cut = (disk.operations + operation, written)
                await group.clock.advance(REST_MS)
                assert not await group.read(0, first)
                assert disk.dead
                crashes += 1
                rng = random.Random(f"{operation} {written}")
                group.disks[0] = disk.crash(keep, rng)
                await group.copies[0].close()
                group.copies[0] = group._copy(0)
                await group.read(0, first)
                assert group.is_whole(0), (operation, written)
        assert crashes == 9


async def test_what_is_not_known_to_be_committed_is_neither_asked_for_nor_given() -> None:
    async with a_group() as group:
        place, following = LOG.starts[-1], LOG.end  # nothing lies behind that both have
        group.flip(0, place + 20)
        group.known[0] = CommittedLog(place, TABLE)
        assert not await group.read(0, place), "it is not committed here"
        assert group.questions == []
        group.known[0] = CommittedLog(LOG.end, TABLE)
        group.known[1] = group.known[2] = CommittedLog(following - 1, TABLE)
        with pytest.raises(StoreCorrupted, match=r"copy 1: nothing behind \d+ is known to be committed"):
            await group.read(0, place)
        group.known[2] = CommittedLog(following, TABLE)
        await group.clock.advance(REST_MS)
        assert await group.read(0, place)
        assert group.is_whole(0)


async def test_a_copy_gives_only_whole_records_of_one_file_of_the_same_epoch() -> None:
    async with a_group() as group:
        copy, starts = group.copies[0], LOG.starts
        assert await copy.given(WantedRecords(starts[1], starts[3], 0)) == LOG.data[starts[1] : starts[3]]
        for start, end in ((-1, 9), (9, 9), (9, 4), (starts[1], SEGMENT + 1), (0, PART_BYTES_MAX + 1)):
            with pytest.raises(BadRequest, match="not a part of one log file"):
                await copy.given(WantedRecords(start, end, 0))
        with pytest.raises(BadRequest, match="epoch 1 wrote the log here at 0, not epoch 2"):
            await copy.given(WantedRecords(0, starts[1], 2))
        with pytest.raises(HaNotAvailable, match="known to be committed"):
            await copy.given(WantedRecords(LOG.end - 1, LOG.end + 1, 0))
        with pytest.raises(NotFound, match="it is damaged here, too"):
            await copy.given(WantedRecords(starts[1] + 1, starts[3], 0))
        group.known[0] = CommittedLog(LOG.end, TABLE.begun(SEGMENT))
        with pytest.raises(NotFound, match=f"the log here begins at {SEGMENT}"):
            await copy.given(WantedRecords(0, starts[1], 0))
        group.known[0] = CommittedLog(LOG.end, TABLE)
        group.disks[0].remove(path_of(0))
        with pytest.raises(NotFound, match="does not reach back"):
            await copy.given(WantedRecords(0, starts[1], 0))


async def test_what_is_asked_for_and_damaged_there_too_is_repaired_there_as_well() -> None:
    async with a_group() as group:
        place = LOG.starts[4] + 9
        group.flip(0, place)
        group.flip(1, place)
        assert await group.read(0, place)
        for _ in range(20):
            await group.clock.advance(1)
        assert group.is_whole(0)
        assert group.is_whole(1)


async def test_who_read_before_a_repair_reads_again_without_another_one() -> None:
    async with a_group() as group:
        repair = group.copies[0]
        seen, place = repair.version, LOG.starts[4]
        group.flip(0, place)
        assert await group.read(0, place)
        questions = len(group.questions)
        assert await repair.repair(StoreCorrupted("late", log_offset=place), seen)
        assert len(group.questions) == questions
        assert not await group.read(0, place), "the log is whole, so something else is wrong"
        assert not await repair.repair(StoreCorrupted("elsewhere"), repair.version)
        assert not await repair.repair(StoreCorrupted("behind", log_offset=LOG.end), repair.version)
        group.flip(0, place)
        assert not await group.read(0, place), "it was walked a moment ago"
        await group.clock.advance(CLEAN_MS)
        assert await group.read(0, place)


async def test_readers_of_one_file_wait_for_one_repair_and_not_for_ever() -> None:
    async with a_group() as group:
        held = asyncio.Event()

        async def slow(wanted: WantedRecords) -> bytes:
            await held.wait()
            return LOG.data[wanted.start : wanted.end]

        group.answers[1] = slow
        group.flip(0, LOG.starts[4])
        readers = [asyncio.ensure_future(group.read(0, LOG.starts[4])) for _ in range(50)]
        await group.clock.advance(WAIT_MS - 1)
        assert not any(reader.done() for reader in readers)
        await group.clock.advance(2)
        results = await asyncio.gather(*readers, return_exceptions=True)
        assert all(isinstance(result, StoreCorrupted) for result in results)
        assert "its repair from another copy continues, read again" in str(results[0])
        held.set()
        assert await group.read(0, LOG.starts[4])
        assert group.is_whole(0)
        assert len(group.questions) == 1


async def test_a_disk_that_gives_back_other_bytes_than_were_written_is_not_written_for_ever() -> None:
    async with a_group() as group:

        async def lost(start: int, data: bytes) -> None:
            group.disks[0].files[path_of(0)].data[start] ^= 2

        group.copies[0]._write = lost
        group.flip(0, 9)
        with pytest.raises(StoreCorrupted, match="the disk is broken"):
            await group.read(0, 9)


async def test_a_write_that_is_refused_leaves_the_damage_and_says_why() -> None:
    async with a_group() as group:

        async def refused(start: int, data: bytes) -> None:
            raise StoreError("the log changes its owner just now")

        group.copies[0]._write = refused
        group.flip(0, 9)
        with pytest.raises(StoreCorrupted, match="changes its owner"):
            await group.read(0, 9)


# -- a start ----------------------------------------------------------------------------------------------------------


async def test_a_folder_that_cannot_be_opened_is_repaired_up_to_the_damage() -> None:
    async with a_group() as group:
        disk, repair = group.disks[0], group.copies[0]
        group.known[0] = CommittedLog(0, EpochTable())  # nothing is known yet
        epoch_file.save(disk, EpochStarts(LOG.epochs))
        places = (LOG.starts[2] + 5, LOG.starts[7] + 5)
        for place in (*places, LOG.starts[9] + 5):
            group.flip(0, place)
        await repair.repair_unopened(StoreCorrupted("damaged", log_offset=LOG.starts[7]))
        group.flip(0, LOG.starts[9] + 5)
        assert group.is_whole(0), "and what lies behind it is the next error's"
        lock.acquire(disk)
        disk.unlock()


async def test_a_folder_stays_as_it_is_if_no_copy_knows_that_this_is_committed() -> None:
    async with a_group() as group:
        disk, repair = group.disks[0], group.copies[0]
        place = LOG.starts[-1] + 5  # nothing lies behind that both have
        group.flip(0, place)
        error = StoreCorrupted("damaged", log_offset=LOG.starts[-1])

        async def failing() -> str:
            task = asyncio.ensure_future(repair.repair_unopened(error))
            for _ in range(START_MS // 500):
                await group.clock.advance(1_000)
            with pytest.raises(StoreCorrupted) as caught:
                await asyncio.wait_for(task, 60)
            return caught.value.message

        assert "the table of epochs is missing" in await failing()
        epoch_file.save(disk, EpochStarts(((9, 0),)))
        assert "epoch 1 wrote the log here" in await failing() or "epoch" in await failing()
        epoch_file.save(disk, EpochStarts(LOG.epochs))
        group.known[1] = group.known[2] = CommittedLog(place, TABLE)
        assert "copy 1: nothing behind" in await failing()
        disk.faults_of["write"] = errno.EIO
        group.known[1] = CommittedLog(LOG.end, TABLE)
        assert "the disk failed" in await failing()
        disk.faults_of.clear()
        disk.remove(path_of(place // SEGMENT * SEGMENT))
        assert "the file is missing" in await failing()


async def test_a_leader_gives_a_start_what_it_cannot_know_to_be_committed_before_that_copy_is_back() -> None:
    """Both would wait for each other: it serves when enough copies have its first record."""
    async with a_group() as group:
        epoch_file.save(group.disks[0], EpochStarts(LOG.epochs))
        group.flip(0, LOG.starts[7] + 5)
        group.known[1] = CommittedLog(0, TABLE)
        group.known[2] = CommittedLog(0, TABLE, LOG.end)
        repairing = asyncio.ensure_future(
            group.copies[0].repair_unopened(StoreCorrupted("damaged", log_offset=LOG.starts[7]))
        )
        for _ in range(START_MS // 500):
            await group.clock.advance(1_000)
        await repairing
        assert group.is_whole(0)
        with pytest.raises(HaNotAvailable, match="nothing behind 0 is known to be committed"):
            await group.copies[2].given(WantedRecords(LOG.starts[-1], LOG.end + 1, 0))
        epoch = TABLE.epoch_at(LOG.starts[7])
        with pytest.raises(BadRequest, match=f"epoch {epoch} wrote the log here"):
            await group.copies[2].given(WantedRecords(LOG.starts[7], LOG.starts[8], epoch + 1))


async def test_a_copy_that_knows_of_nothing_committed_gives_what_lies_below_a_record_that_both_have() -> None:
    """The two in sync have damaged one place, and the third one has just started: nobody could lead (decision 95)."""
    async with a_group() as group:
        place = LOG.starts[7]
        epoch_file.save(group.disks[0], EpochStarts(LOG.epochs))
        group.flip(0, place + 5)
        group.flip(1, place + 5)
        for copy in (1, 2):
            group.known[copy] = CommittedLog(0, TABLE)
        repairing = asyncio.ensure_future(group.copies[0].repair_unopened(StoreCorrupted("damaged", log_offset=place)))
        for _ in range(START_MS // 500):
            await group.clock.advance(1_000)
        await repairing
        assert group.is_whole(0)


async def test_a_copy_gives_nothing_uncommitted_below_another_record_or_below_none() -> None:
    async with a_group() as group:
        copy, (start, end) = group.copies[2], LOG.starts[7:9]
        group.known[2] = CommittedLog(0, TABLE)
        crc = crc_of_record_at(group.disks[0], SEGMENT, end)
        assert crc is not None
        for other in (None, crc ^ 1):
            with pytest.raises(HaNotAvailable, match="nothing behind 0 is known to be committed"):
                await copy.given(WantedRecords(start, end, 0, other))
        assert await copy.given(WantedRecords(start, end, 0, crc)) == LOG.data[start:end]
        group.flip(2, end + 5)
        with pytest.raises(HaNotAvailable, match="nothing behind 0 is known to be committed"):
            await copy.given(WantedRecords(start, end, 0, crc))


async def test_a_folder_in_which_nothing_is_damaged_is_not_said_to_be_repaired() -> None:
    """Else a start would open it and look again for ever."""
    async with a_group() as group:
        epoch_file.save(group.disks[0], EpochStarts(LOG.epochs))
        group.flip(0, LOG.starts[7] + 5)
        task = asyncio.ensure_future(
            group.copies[0].repair_unopened(StoreCorrupted("damaged", log_offset=LOG.starts[6]))
        )
        for _ in range(START_MS // 500):
            await group.clock.advance(1_000)
        with pytest.raises(StoreCorrupted, match="damaged; it could not be repaired: its file shows no damaged record"):
            await asyncio.wait_for(task, 60)
        assert not group.questions
        assert not group.is_whole(0)


async def test_a_start_waits_a_while_for_copies_that_are_about_to_know_what_is_committed() -> None:
    async with a_group() as group:
        epoch_file.save(group.disks[0], EpochStarts(LOG.epochs))
        group.flip(0, LOG.starts[-1] + 5)
        group.known[1] = group.known[2] = CommittedLog(0, TABLE)
        task = asyncio.ensure_future(
            group.copies[0].repair_unopened(StoreCorrupted("damaged", log_offset=LOG.starts[-1]))
        )
        await group.clock.advance(3_000)
        assert not task.done()
        group.known[2] = CommittedLog(LOG.end, TABLE)
        for _ in range(5):
            await group.clock.advance(1_000)
        await asyncio.wait_for(task, 60)
        assert group.is_whole(0)


async def test_each_sector_that_is_lost_is_repaired_by_a_read_and_by_a_start() -> None:
    """Decision 94: a disk loses sectors more often than it turns bits, and a start refused its folder for ever."""
    size = 4 * BLOCK_BYTES

    async def opened(disk: FaultDisk) -> LogCopy:
        return await LogCopy.open(
            None, StoreOptions(), clock=FakeClock(), disk=disk, broker_name="a", segment_bytes=size
        )

    async def long_log() -> MadeLog:
        copy = await opened(FaultDisk())
        for epoch in range(1, 70):
            await copy.append_epoch_start(epoch, bytes([epoch]) * (500 + epoch), 0)
        data = await copy.read(0, copy.end, 1 << 20)
        await copy.close()
        return MadeLog(size, data, tuple(start for _, start in copy.epochs), copy.epochs)

    log = await long_log()
    async with a_group(log) as group:
        disk = group.disks[0]
        disk.remove("commitlog")
        copy = await opened(disk)
        await copy.append(log.data, start=0, then_sync=True)
        await copy.close()
        known = group.known[0]
        for place in range(0, log.end - log.end % size, BLOCK_BYTES):
            file = disk.files[path_of(place - place % size)]
            file.lose(place % size)
            assert await group.read(0, place)
            assert not file.lost
            file.lose(place % size)
            group.known[0] = CommittedLog(0, EpochTable())  # as a start, which knows nothing yet
            with pytest.raises(StoreCorrupted, match="cannot be read") as raised:
                await opened(disk)
            await group.copies[0].repair_unopened(raised.value)
            copy = await opened(disk)
            await copy.close()
            assert not file.lost
            group.known[0] = known
            await group.clock.advance(REST_MS)


async def test_before_a_cut_what_the_leader_has_too_is_repaired_and_nothing_behind_it() -> None:
    """Decision 94: a copy that was just started knows of nothing committed, and below the cut it has its leader's log."""
    async with a_group() as group:
        place, cut_at = LOG.starts[4], LOG.starts[7]
        group.flip(0, place)
        group.known[0] = CommittedLog(0, TABLE)
        assert not await group.read(0, place)
        group.known[0] = CommittedLog(0, TABLE, 0, cut_at)
        group.known[1] = CommittedLog(0, TABLE, LOG.end)
        group.flip(0, cut_at)
        assert await group.read(0, place)
        assert not await group.read(0, cut_at)
        with pytest.raises(HaNotAvailable):
            await group.copies[0].given(WantedRecords(LOG.starts[0], LOG.starts[1], 0))
        group.flip(0, cut_at)
        assert group.is_whole(0)


async def test_a_copy_that_has_all_of_a_part_is_preferred_to_one_that_has_its_begin() -> None:
    """Decision 94: a block that the disk lost can be written as a whole only."""
    async with a_group() as group:
        for begin in (2, 3):
            group.flip(0, LOG.starts[begin])
        group.flip(1, LOG.starts[3] + 50)
        assert await group.read(0, LOG.starts[2])
        asked = [(other, wanted.start, wanted.end) for number, other, wanted in group.questions if number == 0]
        assert asked == [(other, LOG.starts[2], LOG.starts[4]) for other in (1, 2)], "one write for all of it"
        assert group.is_whole(0)


ADDRESS = "host-0:8081"


def fetched(*pieces: bytes, ends: bool = True, address: str = ADDRESS) -> bytes:
    """Ten bytes are asked for, and these come."""

    async def send(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
        if not ends:
            await asyncio.Event().wait()

    async def body() -> bytes:
        clock = FakeClock()
        net = LoopNet(clock)
        net.serve(
            ADDRESS,
            [
                fake_rpc(METHOD, send, pb.FetchedRecords, kind=CallKind.SERVER_STREAM, access=CALLS[METHOD].access)
            ],
        )  # fmt: skip
        who = LinkOpening("c", "broker-a", 1, 0)
        try:
            return await clock.during(fetch_records(net, address, who, WantedRecords(5, 15, 0), clock=clock))
        finally:
            assert len(asyncio.all_tasks()) == 1, "nothing is left running"

    return asyncio.run(body())


def piece(data: bytes) -> bytes:
    return pb.FetchedRecords(data=data).SerializeToString()


def test_pieces_are_put_together_and_may_be_fewer_than_were_asked_for() -> None:
    assert fetched(piece(b"0123"), piece(b"456789")) == b"0123456789"
    assert fetched(piece(b"0123")) == b"0123"
    assert fetched() == b""


def test_more_than_was_asked_for_is_refused_before_it_is_all_there() -> None:
    with pytest.raises(BadRequest, match="more than the 10 bytes"):
        fetched(piece(b"0123"), piece(b"4567890"), ends=False)


def test_what_is_no_piece_is_refused() -> None:
    with pytest.raises(MalformedMessage):
        fetched(b"\xff\xff\xff")


def test_who_sends_nothing_for_a_while_is_left() -> None:
    with pytest.raises(RequestTimeout, match=f"nothing of the records for {STALL_MS} ms"):
        fetched(piece(b"0123"), ends=False)


def test_where_nobody_serves_nothing_comes() -> None:
    with pytest.raises(ConnectionFailed):
        fetched(address="host-9:1")
