"""More promises about queues without a server (semantics.md section 18): files, threads, locks, and what a start finds.

`test_local_queues.py` has the others.
"""

from __future__ import annotations

import json
import logging
import os
import random
import threading

import pytest
from evenq_proofs.fault_disk import FaultDisk, Keep
from evenq_proofs.waiting import until

import evenq.local
from evenq.errors import StoreCorrupted, StorePoisoned
from evenq.local import GetStatus, LocalOptions, PutStatus, records
from evenq.local.embedded import append_batch
from evenq.local.messages import Message
from evenq.local.statuses import AppendStatus, ReadStatus
from evenq.runtime.clock import FakeClock, SystemClock
from evenq.store.io.disk import RealDisk
from evenq.store.io.memory_disk import MemoryDisk, MemoryFile

ENGINES = ["memory", "embedded", "local"]
FILE_ENGINES = ["embedded", "local"]
FOLDERS = {"embedded": "buckets/T/0", "local": "messageStore"}
FIXED = {"embedded": 16, "local": 50}
"""A record's bytes without its body, for the name `T`."""
COLD = {"cache_bytes_max": 1}


class Time(FakeClock):
    """A clock that moves at once."""

    def move(self, ms):
        self._monotonic += ms
        self._wall += ms


class WatchedDisk(MemoryDisk):
    """Tells of each write and sync, in the thread that does it, before and after."""

    def __init__(self):
        super().__init__()
        self.before = self.after = lambda kind, path: None

    def open(self, path, *, create=False):
        if create and path not in self.files:
            self.files[path] = WatchedFile(self, path)
        return super().open(path)


class WatchedFile(MemoryFile):
    __slots__ = ("path",)

    def __init__(self, disk, path):
        super().__init__(disk)
        self.path = path

    def pwrite(self, parts, offset):
        self.disk.before("write", self.path)
        super().pwrite(parts, offset)
        self.disk.after("write", self.path)

    def sync(self):
        self.disk.before("sync", self.path)
        super().sync()
        self.disk.after("sync", self.path)


def opened(engine="local", disk=None, clock=None, **options):
    if engine != "memory" and disk is None:
        disk = MemoryDisk()
    return evenq.local.open(
        engine=engine, disk=disk, clock=clock or Time(), background=False, options=LocalOptions(**options)
    )


def drain(consumer):
    found = []
    while messages := consumer.poll():
        found += messages
        consumer.commit()
    return found


def three_files(engine):
    """A disk with three full files of 100 bytes, one message in each, closed in order."""
    disk = MemoryDisk()
    with opened(engine, disk, file_bytes=100) as queues:
        queues.producer("T").send_many([b"%d" % number * (100 - FIXED[engine]) for number in range(3)])
    return disk


# Writing


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_24_25_the_position_moves_by_the_bytes_written_and_a_full_file_takes_nothing(engine):
    assert append_batch([40, 60], 100) == (AppendStatus.PUT_OK, 2, 100)
    assert append_batch([16], 0) == (AppendStatus.END_OF_FILE, 0, 0)
    disk, clock = MemoryDisk(), Time()
    with opened(engine, disk, clock, file_bytes=200) as queues:
        producer, first = queues.producer("T"), f"{FOLDERS[engine]}/{0:020d}"
        now = clock.now_ms()
        one = producer.send(bytes(120 - FIXED[engine]))
        assert (one.store_offset, one.stored_ms, len(disk.files[first].data)) == (0, now, 120)
        clock.move(7)
        two = producer.send(bytes(80 - FIXED[engine]))
        assert (two.store_offset, two.stored_ms, len(disk.files[first].data)) == (120, now + 7, 200)
        full = bytes(disk.files[first].data)
        three = producer.send(b"")
        assert (three.store_offset, three.offset) == (200, 2)
        assert bytes(disk.files[first].data) == full


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_30_without_an_allocate_service_a_file_is_made_on_the_spot_and_a_failure_is_logged(engine, caplog):
    disk = FaultDisk()
    queues = opened(engine, disk, file_bytes=100)
    producer = queues.producer("T")
    body = bytes(100 - FIXED[engine])
    for count in (1, 2):
        producer.send(body)
        assert disk.list(FOLDERS[engine]) == [f"{100 * index:020d}" for index in range(count)]
    disk.faults_of["create"] = 28
    with caplog.at_level(logging.ERROR):
        result = queues.engine.put_message("T", 0, [Message("T", 0, body)])
    assert result.status is PutStatus.CREATE_MAPEDFILE_FAILED
    (record,) = caplog.records
    assert record.message.startswith("writing to ")
    assert "No space left" in caplog.records[0].reason
    with pytest.raises(StorePoisoned):
        queues.close()


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_xo_10_warm_up_is_off_a_new_file_holds_what_was_written_and_nothing_else(engine):
    disk = MemoryDisk()
    with opened(engine, disk) as queues:
        queues.producer("T").send(b"hi")
        assert queues.options.file_bytes == 1 << 30
        assert len(disk.files[f"{FOLDERS[engine]}/{0:020d}"].data) == FIXED[engine] + 2


# Loading


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_28_better_after_a_crash_lengths_of_100_100_60_give_two_messages_and_say_so(engine, caplog):
    disk = three_files(engine)
    disk.files[f"{FOLDERS[engine]}/{200:020d}"].truncate(60)
    disk.remove("offsets.json")  # nothing says that the third was ever on disk
    with caplog.at_level(logging.WARNING), opened(engine, disk, file_bytes=100, **COLD) as queues:
        assert [message.body[:1] for message in drain(queues.consumer("T", group="g"))] == [b"0", b"1"]
        assert "cut an unfinished write" in caplog.text
        assert queues.producer("T").send(b"again").offset == 2
    if engine == "local":
        assert len(disk.files[f"cut/{200:020d}"].data) == 60


@pytest.mark.parametrize(
    ("place", "length"), [(100, 60), (200, 60), (0, 140), (200, 140)], ids=["middle", "last", "first-long", "last-long"]
)
@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_28_better_another_length_of_what_was_on_disk_hides_nothing_it_is_refused(engine, place, length):
    disk = three_files(engine)
    disk.files[f"{FOLDERS[engine]}/{place:020d}"].truncate(length)
    with pytest.raises(StoreCorrupted, match=rf"{place:020d}"):
        opened(engine, disk)


# Flushing


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_33_a_flush_makes_full_files_sure_as_a_whole(engine):
    disk = FaultDisk()
    queues = opened(engine, disk, file_bytes=200)
    queues.producer("T").send_many([b"%030d" % number for number in range(20)])
    assert len(disk.list(FOLDERS[engine])) > 3
    queues.flush()
    queues.engine.failure = "crashed"
    with opened(engine, disk.crash(Keep.NONE, random.Random(1))) as again:
        assert [int(message.body) for message in drain(again.consumer("T", group="g"))] == list(range(20))


@pytest.mark.parametrize(("ms", "logged"), [(500, []), (501, ["a flush of local queues took 501 ms"])])
@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_33_a_flush_of_over_500_ms_is_logged(engine, ms, logged, caplog):
    disk, clock = WatchedDisk(), Time()
    with opened(engine, disk, clock) as queues:
        queues.producer("T").send(b"x")
        disk.before = lambda kind, path: clock.move(ms) if path == f"{FOLDERS[engine]}/{0:020d}" else None
        with caplog.at_level(logging.WARNING):
            queues.flush()
        disk.before = lambda kind, path: None
    assert caplog.messages == logged


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ValueError("surprise")], ids=["disk", "surprise"])
@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_33_better_an_exception_of_the_flush_is_logged_and_nothing_is_taken_any_more(engine, error, caplog):
    """The documents' loop goes on, but a sync that failed once says nothing when it is called again."""
    disk = WatchedDisk()

    def fail(kind, path):
        if kind == "sync" and path.startswith(FOLDERS[engine]):
            raise error

    with caplog.at_level(logging.ERROR):
        queues = evenq.local.open(disk=disk, engine=engine, options=LocalOptions(flush_interval_ms=1))
        producer = queues.producer("T")
        disk.before = fail
        producer.send(b"x")
        queues._thread.join(60)
    disk.before = lambda kind, path: None
    assert "local queues stopped" in caplog.text
    with pytest.raises(StorePoisoned, match=r"Input/output error|surprise"):
        producer.send(b"y")
    with pytest.raises(StorePoisoned):
        queues.close()


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_45_72_one_thread_flushes_one_file_behind_the_other(engine):
    disk, enough, busy = WatchedDisk(), threading.Event(), threading.Lock()
    syncs, overlaps, kinds = [], [], set()

    def before(kind, path):
        if kind == "sync":
            kinds.add(path.partition("/")[0])
            syncs.append(threading.current_thread().name)
            if not busy.acquire(blocking=False):
                overlaps.append(path)

    def after(kind, path):
        if kind == "sync":
            busy.release()
            if len(syncs) >= 6 and len(kinds) >= 2:
                enough.set()

    options = LocalOptions(flush_interval_ms=1, index_interval_ms=1)
    with evenq.local.open(disk=disk, engine=engine, options=options) as queues:
        disk.before, disk.after = before, after

        def produce(producer):
            for _ in range(20_000):
                producer.send(b"x")
                if enough.wait(0.0005):
                    return

        threads = [threading.Thread(target=produce, args=(queues.producer("T"),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert enough.is_set()
        assert set(syncs) == {"evenq-local-flush"}
    assert overlaps == []


# Holding


def test_lq_34_a_bucket_queue_is_held_by_its_consumer_which_takes_all_that_is_cached():
    with opened("embedded", batch_messages_memory=100) as queues:
        producer = queues.producer("T")
        producer.send_many([b"%d" % number for number in range(50)])
        first, second = (queues.consumer("T", group="g") for _ in range(2))
        other = queues.consumer("T", group="other")
        assert [int(message.body) for message in first.poll(count=100)] == list(range(50))
        first.commit()
        producer.send(b"50")
        assert (second.poll(), second.holding) == ([], [])
        assert [int(message.body) for message in first.poll()] == [50]
        assert [int(message.body) for message in other.poll(count=3)] == [0, 1, 2]  # its offsets are its own
        other.commit()
        assert [queues.stored_offset("T", 0, group=group) for group in ("g", "other")] == [49, 2]


def test_lq_35_better_locals_record_has_room_for_what_embeddeds_has_not():
    found = {}
    for engine in FILE_ENGINES:
        disk, clock = MemoryDisk(), Time()
        with opened(engine, disk, clock) as queues:
            queues.producer("T")
            queues.producer("T").send_many([b"a", b"b"])
        disk.remove("consumeQueue")
        clock.move(1_000)
        with opened(engine, disk, clock, **COLD) as queues:
            (_, message) = queues.engine.get_message("T", 1, 0).messages
            found[engine] = (message.name, message.queue_id, message.offset, clock.now_ms() - message.stored_ms)
    assert found["local"] == ("T", 1, 1, 1_000)  # all of it from the record
    assert found["embedded"][:3] == ("T", 1, 1)  # from the folder and the index beside it; the time is lost
    assert found["embedded"][3] != 1_000


# Local: positions


def test_lq_47_a_position_goes_to_the_queue_of_its_topic_and_id_which_is_made_if_it_is_new():
    disk = MemoryDisk()
    with opened("local", disk) as queues:
        producers = [queues.producer(name) for name in ("T", "T", "U")]
        assert disk.list("consumeQueue") == []
        for number in range(9):
            producers[number % 3].send(b"%d" % number)
    log = bytes(disk.files[f"messageStore/{0:020d}"].data)
    for (name, queue_id), bodies in {("T", 0): b"036", ("T", 1): b"147", ("U", 0): b"258"}.items():
        entries = bytes(disk.files[f"consumeQueue/{name}/{queue_id}/{0:020d}"].data)
        for offset, (place, size) in enumerate(records.ENTRY.iter_unpack(entries)):
            status, found_size, message = records.read_local(log, place, 1_000, place)
            assert (status, found_size) == (ReadStatus.RECORD, size)
            assert (message.name, message.queue_id, message.offset) == (name, queue_id, offset)
            assert message.body == bodies[offset : offset + 1]
        assert len(entries) == 3 * 12


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_51_recovery_brings_the_stores_own_offsets_to_the_true_end(engine):
    def inner(disk):
        return json.loads(bytes(disk.files["offsets.json"].data))["state"]["groups"]["Broker Inner"]

    disk = FaultDisk()
    queues = opened(engine, disk)
    producer = queues.producer("T")
    producer.send(b"0")
    queues.flush()
    producer.send_many([b"1", b"2"])
    queues.engine.failure = "killed"
    found = disk.crash(Keep.ALL, random.Random(1))
    assert inner(found) == {"T": {"0": 0}}
    with opened(engine, found):
        assert inner(found) == {"T": {"0": 2}}


# Local: reading


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_70_messages_are_decoded_and_the_files_let_go_in_any_case(engine, damaged, tmp_path):
    def in_use():
        links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        found = [os.readlink(link) for link in links if os.path.lexists(link)]
        return [path for path in found if path.startswith(str(tmp_path)) and FOLDERS[engine] in path]

    disk = RealDisk(tmp_path)
    with opened(engine, disk) as queues:
        queues.producer("T").send_many([b"one", b"two"])
    path = f"{FOLDERS[engine]}/{0:020d}"
    with opened(engine, disk, **COLD) as queues:
        if damaged:
            file = disk.open(path)
            file.pwrite([b"X"], file.size() - 6)
            file.close()
            with pytest.raises(StoreCorrupted, match="BAD_CHECKSUM"):
                queues.engine.get_message("T", 0, 0)
        else:
            found = queues.engine.get_message("T", 0, 0)
        (queues.engine.files if engine == "local" else queues.engine._files).forget(path)
        assert in_use() == []
        if not damaged:
            disk.remove(path)
            assert [message.body for message in found.messages] == [b"one", b"two"]
            assert found.status is GetStatus.FOUND


# Performance


class Pairs(dict):
    """Headers that tell when they are packed."""

    def __init__(self, result):
        super().__init__(a="1")
        self.told = result

    def items(self):
        self.told()
        return super().items()


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_73_a_write_that_takes_long_holds_up_neither_readers_nor_the_work_of_other_producers(engine):
    disk, stuck, go = WatchedDisk(), threading.Event(), threading.Event()
    writes = []

    def before(kind, path):
        if kind == "write" and path.startswith(("messageStore/", "buckets/")):
            writes.append(path)
            if len(writes) == 1:
                stuck.set()
                go.wait(60)

    with opened(engine, disk, SystemClock()) as queues:
        producers = [queues.producer("T") for _ in range(4)]
        producers[3].send(b"old")
        disk.before = before
        packed, read = [], []
        reader = threading.Thread(target=lambda: read.extend(queues.consumer("T", group="g").poll()))
        threads = [threading.Thread(target=producers[0].send, args=(b"slow",))]
        threads += [
            threading.Thread(target=producer.send, args=(b"x",), kwargs={"headers": Pairs(lambda: packed.append(1))})
            for producer in producers[1:3]
        ]
        try:
            threads[0].start()
            assert stuck.wait(60)
            for thread in (reader, *threads[1:]):
                thread.start()
            until(lambda: len(packed) == 2)  # before any lock, in the producers' threads
            until(lambda: [queues.engine.queue("T", number).next for number in (1, 2)] == [1, 1])  # they have places
            until(lambda: [message.body for message in read] == [b"old"])
        finally:
            go.set()
            for thread in (*threads, reader):
                thread.join(60)
        assert len(drain(queues.consumer("T", group="h"))) == 4
    assert len(writes) == (2 if engine == "local" else 3)  # local: those who waited share one write


@pytest.mark.parametrize("engine", ENGINES)
def test_lq_75_a_young_message_is_handed_out_without_a_copy(engine):
    with opened(engine) as queues:
        body = b"x" * 1_000
        sent = queues.producer("T").send(body)
        for group in ("g", "h"):
            (message,) = queues.consumer("T", group=group).poll()
            assert message is sent
        assert sent.body is body
