"""Each kind of damage is found, with the right file and byte, and what is harmless is called so."""

import asyncio
import json
from array import array

import pytest
from crc32c import crc32c
from evenq_broker.loops.coordinators import places
from evenq_broker.loops.replication import identity, remembered
from evenq_proofs.fault_disk import FaultDisk

from evenq.errors import StoreCorrupted, StoreError
from evenq.store.index import index_file
from evenq.store.index.index_file import PAGE_BYTES, PAGE_ENTRIES, IndexFile, pack_page
from evenq.store.inspection.findings import Harm
from evenq.store.inspection.repair import plan_of
from evenq.store.inspection.verify import verify
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log import snapshot
from evenq.store.log.consume_queue import ENTRY, ENTRY_BYTES
from evenq.store.log.record import FLAG_MORE, HEADER, HEADER_BYTES, MESSAGE, PREFIX_BYTES, VERSION
from evenq.store.log.snapshot import Snapshot
from evenq.store.timers import manifest, runs
from evenq.store.timers.manifest import TIMERS_UNKNOWN, Manifest, RunUse
from evenq.store.timers.runs import BLOCK_BYTES, RunWriter

HOUR = 3_600_000
QUEUE = "consumequeue/1/1/00000000000000000000"
INDEX = "index/00000000000000000000"
RUN = "timers/00000000000000000001"


def image_of(disk):
    image = MemoryDisk()
    for path, file in disk.files.items():
        image.open(path, create=True).pwrite([bytes(file.data)], 0)
    return image


def only(verdict):
    (finding,) = verdict.findings.listed
    return finding


def kinds(verdict):
    return {finding.kind for finding in verdict.findings.listed}


def flip(disk, path, byte):
    disk.files[path].data[byte] ^= 0xFF


def rewrite(disk, path, at, **values):
    """Change fields of one frame and make its CRC fit again."""
    places = {"version": 3, "flags": 5, "queue_offset": 9, "synced": 11, "store_ms": 12}
    data = disk.files[path].data
    header = list(HEADER.unpack_from(data, at))
    for name, value in values.items():
        header[places[name]] = value
    data[at : at + HEADER_BYTES] = HEADER.pack(*header)
    crc = crc32c(bytes(data[at + PREFIX_BYTES : at + header[0]]))
    data[at + 8 : at + 12] = crc.to_bytes(4, "big")


def messages(places, disk):
    return [place for place in places(disk) if place[3] == MESSAGE]


def test_a_folder_closed_in_order_is_clean(filled, look):
    verdict = look(filled())
    assert verdict.findings.listed == []
    assert verdict.clean
    assert verdict.frames[1] == verdict.frames[2] == 60
    assert (verdict.queues, verdict.entries_checked) == (3, 60)
    assert verdict.torn_bytes == 0


def test_a_folder_as_a_kill_leaves_it_is_clean(filled, look):
    verdict = look(filled(clean=False))
    assert verdict.findings.listed == []
    assert verdict.entries_checked == 46  # up to the checkpoint


def test_a_torn_tail_is_harmless_and_has_its_place(filled, look, places):
    disk = filled(clean=False)
    log_offset, path, byte, _ = places(disk)[-1]
    disk.files[path].data[-3:] = b""
    verdict = look(disk)
    finding = only(verdict)
    assert (finding.kind, finding.harm) == ("torn-tail", Harm.NOTE)
    assert (finding.file, finding.byte, finding.log_offset) == (path, byte, log_offset)
    assert verdict.clean
    assert verdict.log_end == log_offset
    assert verdict.torn_bytes == len(disk.files[path].data) - byte


@pytest.mark.parametrize("junk", [bytes(500), b"junk" * 30, b"x"])
def test_bytes_behind_the_last_record_are_a_torn_tail(filled, look, junk):
    disk = filled(clean=False)
    path = f"commitlog/{disk.list('commitlog')[-1]}"
    end = len(disk.files[path].data)
    disk.files[path].data += junk
    finding = only(look(disk))
    assert (finding.kind, finding.file, finding.byte) == ("torn-tail", path, end)


def test_behind_a_clean_stop_nothing_can_be_torn(filled, look):
    disk = filled()
    path = f"commitlog/{disk.list('commitlog')[-1]}"
    disk.files[path].data += b"junk" * 30
    finding = only(look(disk))
    assert (finding.kind, finding.harm) == ("log-damaged", Harm.LOST)
    assert "closed in order" in finding.what


@pytest.mark.parametrize("inside", [0, 5, 9, 44, 100])
def test_a_flipped_bit_is_found_at_its_record_and_the_rest_is_read_on(filled, look, places, inside):
    disk = filled()
    log_offset, path, byte, _ = messages(places, disk)[10]
    flip(disk, path, byte + inside)
    verdict = look(disk)
    finding = only(verdict)
    assert (finding.kind, finding.harm) == ("log-damaged", Harm.LOST)
    assert (finding.file, finding.byte, finding.log_offset) == (path, byte, log_offset)
    assert [str(gone) for gone in verdict.lost] == ["message 3 of queue 1 of topic 1"]
    assert str(verdict.lost[0]) in finding.what
    assert verdict.frames[1] == 59
    assert verdict.cut_at == log_offset


def test_two_damages_are_two_findings(filled, look, places):
    disk = filled()
    for number in (10, 30):
        _, path, byte, _ = messages(places, disk)[number]
        flip(disk, path, byte + 100)
    assert [finding.kind for finding in look(disk).findings.listed] == ["log-damaged"] * 2


def test_a_missing_log_file_is_damage_with_the_messages_it_held(filled, look):
    disk = filled()
    names = disk.list("commitlog")
    disk.remove(f"commitlog/{names[1]}")
    verdict = look(disk)
    finding = only(verdict)
    assert (finding.kind, finding.file, finding.byte) == ("log-damaged", f"commitlog/{names[1]}", 0)
    assert "the file is missing" in finding.what
    assert len(verdict.lost) == 3


def test_a_missing_first_log_file_is_found(filled, look):
    disk = filled()
    first = disk.list("commitlog")[0]
    disk.remove(f"commitlog/{first}")
    assert "log-file-missing" in kinds(look(disk))


def test_a_shortened_log_file_in_the_middle_is_damage(filled, look, places):
    disk = filled()
    log_offset, path, byte, _ = messages(places, disk)[3]
    disk.files[path].data[byte:] = b""
    finding = only(look(disk))
    assert (finding.kind, finding.file, finding.byte, finding.log_offset) == ("log-damaged", path, byte, log_offset)


def test_a_log_that_ends_before_the_checkpoint_lost_something(filled, look, places):
    disk = filled()
    log_offset, path, byte, _ = places(disk)[-4]
    disk.files[path].data[byte:] = b""
    verdict = look(disk)
    finding = next(finding for finding in verdict.findings.listed if finding.kind == "log-short")
    assert (finding.harm, finding.file, finding.byte, finding.log_offset) == (Harm.LOST, path, byte, log_offset)
    assert verdict.lost
    assert verdict.cut_at == log_offset


def test_an_unfinished_append_call_at_the_end_is_a_torn_tail_from_its_first_record(filled, look, places):
    disk = filled(clean=False)
    log_offset, path, byte, _ = places(disk)[-2]
    rewrite(disk, path, byte, flags=FLAG_MORE)
    rewrite(disk, path, places(disk)[-1][2], flags=FLAG_MORE, synced=log_offset)
    finding = only(look(disk))
    assert (finding.kind, finding.file, finding.byte, finding.log_offset) == ("torn-tail", path, byte, log_offset)


def test_an_unfinished_append_call_that_was_confirmed_is_damage(filled, look, places):
    disk = filled()
    log_offset, path, byte, _ = places(disk)[-1]
    rewrite(disk, path, byte, flags=FLAG_MORE)
    finding = only(look(disk))
    assert (finding.kind, finding.harm, finding.byte, finding.log_offset) == (
        "call-unfinished", Harm.LOST, byte, log_offset,
    )  # fmt: skip


def test_queue_offsets_with_a_gap_or_twice_are_found(filled, look, places):
    disk = filled(clean=False)
    disk.remove("checkpoint")
    log_offset, path, byte, _ = messages(places, disk)[-1]
    rewrite(disk, path, byte, queue_offset=25)
    verdict = look(disk)
    finding = next(finding for finding in verdict.findings.listed if finding.kind == "offset-gap")
    assert (finding.file, finding.byte, finding.log_offset) == (path, byte, log_offset)
    assert "messages 19 to 24 of queue 2 of topic 1" in finding.what
    rewrite(disk, path, byte, queue_offset=3)
    finding = next(finding for finding in look(disk).findings.listed if finding.kind == "offset-repeated")
    assert (finding.file, finding.byte) == (path, byte)


def test_a_store_time_that_falls_is_found(filled, look, places):
    disk = filled()
    log_offset, path, byte, _ = messages(places, disk)[7]
    rewrite(disk, path, byte, store_ms=5)
    finding = only(look(disk))
    assert (finding.kind, finding.harm, finding.log_offset) == ("time-fell", Harm.WRONG, log_offset)


def test_a_record_of_a_newer_program_is_not_judged(filled, look, places):
    disk = filled()
    _, path, byte, _ = messages(places, disk)[7]
    rewrite(disk, path, byte, version=VERSION + 1)
    with pytest.raises(StoreError, match=f"version {VERSION + 1}"):
        look(disk)


@pytest.mark.parametrize("inside", [7, 10, 19])
def test_a_wrong_consume_queue_entry_has_its_file_and_byte(filled, look, inside):
    disk = filled()
    flip(disk, QUEUE, 4 * ENTRY_BYTES + inside)
    finding = only(look(disk))
    assert (finding.kind, finding.harm, finding.file, finding.byte) == (
        "entry-differs", Harm.REBUILT, QUEUE, 4 * ENTRY_BYTES,
    )  # fmt: skip
    due = ENTRY.unpack_from(look(filled()).folder and filled().files[QUEUE].data, 4 * ENTRY_BYTES)
    assert f"due is log offset {due[0]}" in finding.what


def test_missing_consume_queue_entries_and_files_are_found(filled, look):
    disk = filled()
    disk.files[QUEUE].data[3 * ENTRY_BYTES :] = b""
    finding = only(look(disk))
    assert (finding.kind, finding.file, finding.byte) == ("entries-missing", QUEUE, 3 * ENTRY_BYTES)
    disk.remove(QUEUE)
    finding = only(look(disk))
    assert (finding.kind, finding.file, finding.byte) == ("entries-missing", QUEUE, None)


def test_a_damaged_or_missing_checkpoint_is_rebuilt(filled, look):
    disk = filled()
    flip(disk, "checkpoint", 20)
    finding = only(look(disk))
    assert (finding.kind, finding.harm, finding.file) == ("checkpoint-damaged", Harm.REBUILT, "checkpoint")
    disk.remove("checkpoint")
    finding = only(look(disk))
    assert (finding.kind, finding.harm) == ("checkpoint-missing", Harm.NOTE)
    assert "normal for a folder that is new" in finding.what


def test_files_of_a_broker_with_copies_are_no_foreign_ones(filled, look):
    disk = filled()
    for name in (identity.FILE, places.MARK, remembered.FILE):
        disk.open(name, create=True).pwrite([b"of the broker"], 0)
    assert look(disk).findings.listed == []
    disk.open(f"{identity.FILE}.new", create=True).pwrite([b"of the broker"], 0)
    finding = only(look(disk))
    assert (finding.kind, finding.harm) == ("left-over", Harm.NOTE)


def test_a_damaged_snapshot_is_found_and_an_older_one_covers_it(filled, look):
    disk = filled()
    path = f"snapshot/{disk.list('snapshot')[-1]}"
    flip(disk, path, 30)
    finding = only(look(disk))
    assert (finding.kind, finding.harm, finding.file) == ("snapshot-damaged", Harm.REBUILT, path)


def test_a_snapshot_of_another_log_is_off_the_mark(filled, look):
    disk = filled()
    name = disk.list("snapshot")[0]
    other = f"snapshot/{int(name) + 8:020d}"
    disk.rename(f"snapshot/{name}", other)
    assert kinds(look(disk)) == {"snapshot-damaged"}  # its name and its header differ


@pytest.mark.parametrize(
    "path", ["notes.txt", "commitlog/backup", "snapshot/old", "index/old", "timers/old", "photos/cat.jpg"]
)
def test_a_file_that_is_not_ours_is_named(filled, look, path):
    disk = filled()
    disk.open(path, create=True).pwrite([b"hello"], 0)
    finding = only(look(disk))
    assert (finding.kind, finding.harm) == ("foreign-file", Harm.FOREIGN)
    assert path.startswith(finding.file)


def test_left_over_files_and_what_the_tool_itself_made_are_harmless(filled, look):
    disk = filled()
    for path in ("checkpoint.new", "repair-1/checkpoint", "lost+found/x"):
        disk.open(path, create=True)
    verdict = look(disk)
    assert only(verdict).kind == "left-over"
    assert verdict.clean


def test_of_a_running_store_only_what_lies_before_the_checkpoint_is_judged(filled, places):
    disk = filled(clean=False)
    path = f"commitlog/{disk.list('commitlog')[-1]}"
    disk.files[path].data += b"half a rec"
    verdict = verify(disk, owner=lambda: "17")
    assert verdict.clean
    assert verdict.findings.listed == []
    assert verdict.folder.running
    assert verdict.log_end == verdict.folder.checkpoint.log_offset < verdict.folder.log_end
    _, path, byte, _ = messages(places, disk)[5]
    flip(disk, path, byte + 100)
    assert only(verify(disk, owner=lambda: "17")).kind == "log-damaged"


def test_a_store_that_was_started_meanwhile_is_told(filled):
    answers = iter([None, "17"])
    with pytest.raises(StoreError, match="process 17"):
        verify(filled(), owner=lambda: next(answers))


def test_no_data_folder_and_a_damaged_identity_are_told(filled, look):
    disk = filled()
    disk.files["identity"].data[:] = b"{"
    with pytest.raises(StoreCorrupted, match="identity"):
        look(disk)
    disk.files["identity"].data[:] = json.dumps({"format": 99}).encode()
    with pytest.raises(StoreError, match="newer"):
        look(disk)
    disk.remove("identity")
    with pytest.raises(StoreError, match="not an evenq data folder"):
        look(disk)


def test_progress_ends_with_all_bytes(filled):
    events = []
    verify(filled(), owner=lambda: None, on_progress=lambda done, total: events.append((done, total)))
    done, total = events[-1]
    assert 0 < done <= total


# -- what a living store does to its folder ---------------------------------------------------------------------------


@pytest.fixture
def images(open_store, message):
    """The folder of a store with retention and short files, every so often, while messages come and go."""

    def run():
        async def live():
            disk, found = FaultDisk(), []
            opened = await open_store(
                disk, snapshot_of=lambda: b"state", retention_ms=10 * HOUR, retention_hour=-1, segment_bytes=4096
            )
            await opened.store.append([message(b"gone", queue_id=9)] * 2)
            for number in range(90):
                await opened.store.append([message(b"%d" % number + b"." * 200, queue_id=number % 3)])
                if number % 9 == 0:
                    opened.clock.jump_wall(2 * HOUR)
                    await opened.clock.advance(61_000)
                found.append(image_of(disk))
            await opened.store.close()
            return [*found, image_of(disk)]

        return asyncio.run(live())

    return run


def test_a_store_with_retention_is_clean_at_every_moment(images):
    seen = images()
    assert int(seen[-1].list("commitlog")[0]) > 0  # files went
    for image in seen:
        for owner in (None, "17"):
            verdict = verify(image, owner=lambda owner=owner: owner)
            assert verdict.findings.listed == []


def test_files_that_go_while_a_running_store_is_read_are_no_findings(images):
    """The early folder when small files are read and folders are listed, the late one's log and queues after that."""
    seen = images()
    early, late = seen[40], seen[-1]

    class Moving(MemoryDisk):
        def open(self, path, *, create=False):
            return (late if path.startswith(("commitlog", "consumequeue")) else early).open(path, create=create)

        def list(self, path):
            return early.list(path)

    assert int(early.list("commitlog")[0]) < int(late.list("commitlog")[0])
    verdict = verify(Moving(), owner=lambda: "17")
    assert verdict.findings.listed == []


@pytest.fixture
def indexed(filled):
    """A folder with an index file of three pages."""
    disk = filled()
    count = 2 * PAGE_ENTRIES + 5
    numbers = array("Q", (number for entry in range(count) for number in (entry * 1000, entry)))
    pages = [pack_page(0, numbers[first : first + 2 * PAGE_ENTRIES]) for first in range(0, 2 * count, 2 * PAGE_ENTRIES)]
    index_file.write(disk, IndexFile(count, 0, 0, 64 << 20, 1, 2), pages)
    return disk


@pytest.fixture
def timed(filled):
    """A folder whose newest snapshot names a run of timers of three blocks."""
    disk = filled()
    writer = RunWriter(disk, 1)
    keys = [number.to_bytes(runs.KEY_BYTES, "big") for number in range(1, 1200)]
    writer.add(keys)
    run = writer.finish()
    newest = int(disk.list("snapshot")[-1])
    section = manifest.pack(Manifest(next_run=2, floor=0, runs=(RunUse(1, run.count, 0),), keys=[]))
    snapshot.save(disk, Snapshot(newest, b"owner", timers=section))
    return disk


def test_good_ones_are_clean(indexed, timed, look):
    assert look(indexed).findings.listed == []
    assert look(timed).findings.listed == []


@pytest.mark.parametrize(
    ("byte", "found_at"), [(3, 0), (20, 0), (PAGE_BYTES + 7, PAGE_BYTES), (3 * PAGE_BYTES + 40, 3 * PAGE_BYTES)]
)
def test_a_flipped_bit_in_an_index_file_has_its_page(indexed, look, byte, found_at):
    indexed.files[INDEX].data[byte] ^= 1
    verdict = look(indexed)
    (finding,) = verdict.findings.listed
    assert (finding.kind, finding.harm, finding.file, finding.byte) == (
        "index-damaged", Harm.REBUILT, INDEX, found_at,
    )  # fmt: skip
    assert [step.path for step in plan_of(indexed, verdict).steps] == [INDEX]


def test_a_shortened_index_file_ends_too_early(indexed, look):
    indexed.files[INDEX].data[-100:] = b""
    (finding,) = look(indexed).findings.listed
    assert (finding.kind, finding.byte) == ("index-damaged", 4 * PAGE_BYTES - 100)


@pytest.mark.parametrize("byte", [10, 200, runs.HEADER.size + 2 * BLOCK_BYTES + 50])
def test_a_flipped_bit_in_a_run_of_timers_is_found(timed, look, byte):
    timed.files[RUN].data[byte] ^= 1
    verdict = look(timed)
    (finding,) = verdict.findings.listed
    assert (finding.kind, finding.harm, finding.file) == ("run-damaged", Harm.REBUILT, RUN)
    assert "at byte" in finding.what
    assert [step.path for step in plan_of(timed, verdict).steps] == [RUN]


def test_a_missing_run_is_found_and_needs_no_repair(timed, look):
    timed.remove(RUN)
    verdict = look(timed)
    (finding,) = verdict.findings.listed
    assert finding.kind == "run-damaged"
    assert "missing" in finding.what
    assert plan_of(timed, verdict).left == []


def test_a_damaged_manifest_is_found_in_its_snapshot(filled, look):
    disk = filled()
    newest = int(disk.list("snapshot")[-1])
    snapshot.save(disk, Snapshot(newest, b"owner", timers=b"no manifest at all, is it?" * 3))
    assert [finding.kind for finding in look(disk).findings.listed] == ["manifest-damaged"]


def test_a_restored_folder_whose_snapshot_names_no_timers_is_clean_and_says_why(filled, look):
    disk = filled()
    newest = int(disk.list("snapshot")[-1])
    snapshot.save(disk, Snapshot(newest, b"owner", timers=TIMERS_UNKNOWN))
    verdict = look(disk)
    (finding,) = verdict.findings.listed
    assert (finding.kind, finding.harm) == ("timers-unread", Harm.NOTE)
    assert "restored from a backup" in finding.what
    assert verdict.clean
    assert plan_of(disk, verdict).steps == []
