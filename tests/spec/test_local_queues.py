"""The promises about queues without a server: semantics.md section 18 (LQ-1 to LQ-75) and XO-10, XO-11."""

from __future__ import annotations

import json
import logging
import random
import threading
import zlib
from pathlib import Path

import pytest
from evenq_proofs.fault_disk import FaultDisk, Keep

import evenq.local
from evenq.errors import (
    BadRequest,
    BodyTooLarge,
    IllegalPropertyKey,
    IllegalTopic,
    PreconditionFailed,
    PropertiesTooLarge,
    StoreCorrupted,
    StoreError,
    StorePoisoned,
    TooManyRequests,
)
from evenq.local import Flush, GetStatus, LocalOptions, PutStatus, ReadStatus, pairs, reading, records
from evenq.local.embedded import append_batch
from evenq.local.messages import Message
from evenq.local.progress import HELD_BY_ANOTHER, LocalGroupProgress
from evenq.local.statuses import AppendStatus
from evenq.runtime.clock import FakeClock, SystemClock
from evenq.store.io.disk import RealDisk
from evenq.store.io.memory_disk import MemoryDisk

ENGINES = ["memory", "embedded", "local"]
FILE_ENGINES = ["embedded", "local"]
COLD = {"cache_bytes_max": 1}


class Time(FakeClock):
    """A clock for threads: it moves at once."""

    def move(self, ms):
        self._monotonic += ms
        self._wall += ms


def opened(engine="local", disk=None, clock=None, **options):
    if engine != "memory" and disk is None:
        disk = MemoryDisk()
    return evenq.local.open(
        engine=engine, disk=disk, clock=clock or Time(), background=False, options=LocalOptions(**options)
    )


def drain(consumer, commit=True):
    found = []
    while messages := consumer.poll():
        found += messages
        if commit:
            consumer.commit()
    return found


def crash(queues, disk, keep=Keep.ALL, seed=1):
    """The disk the next process finds, and that this one is over."""
    queues.engine.failure = "crashed"
    return disk.crash(keep, random.Random(seed))


# General


@pytest.mark.parametrize("engine", ENGINES)
def test_lq_1_the_same_program_runs_on_every_engine(engine):
    with opened(engine) as queues:
        assert type(queues.engine).__name__.lower() == f"{engine}engine"
        sent = queues.producer("orders").send(b"one", headers={"h": "1"}, properties={"p": "2"})
        consumer = queues.consumer("orders", group="billing")
        (message,) = consumer.poll()
        assert (message.body, message.headers, message.properties) == (b"one", {"h": "1"}, {"p": "2"})
        assert (message.name, message.queue_id, message.offset) == (sent.name, sent.queue_id, sent.offset)
        consumer.ack(message)
        assert consumer.poll() == []


@pytest.mark.parametrize("engine", ENGINES)
def test_lq_2_5_a_producers_number_is_its_queue_and_a_closed_ones_is_free_again(engine):
    with opened(engine, queues_max=2) as queues:
        first, second, third = (queues.producer("orders") for _ in range(3))
        assert [producer.queue_id for producer in (first, second, third)] == [0, 1, 0]
        second.close()
        assert queues.producer("orders").number == 1
        assert queues.producer("other").number == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_lq_2_one_queue_stands_for_one_name_and_queue_id(engine):
    with opened(engine, **COLD) as queues:
        producers = {(name, number): queues.producer(name) for name in ("orders", "bills") for number in range(2)}
        for turn in range(3):
            for (name, number), producer in producers.items():
                sent = producer.send(b"%s %d %d" % (name.encode(), number, turn))
                assert (sent.name, sent.queue_id, sent.offset) == (name, number, turn)
        for name, number in producers:
            read = [queues.engine.get_message(name, number, offset, 1).messages[0].body for offset in range(3)]
            assert read == [b"%s %d %d" % (name.encode(), number, turn) for turn in range(3)]
            consumer = queues.consumer(name, group="g" + str(number))
            assert len(drain(consumer)) == 6
            assert queues.stored_offset(name, number, group="g" + str(number)) == 2
            consumer.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_lq_3_5_with_10_producers_and_10_consumers_each_producers_order_is_kept(engine, tmp_path):
    count = 150
    clock = SystemClock()
    path = None if engine == "memory" else tmp_path
    seen = {index: [] for index in range(10)}
    given_out = []
    with evenq.local.open(path, engine=engine) as queues:
        consumers = [queues.consumer("orders", group="billing") for _ in range(10)]

        def produce(producer):
            for number in range(count):
                sent = producer.send(b"%d %d" % (producer.number, number))
                assert (sent.queue_id, sent.offset) == (producer.number, number)

        def consume(index):
            deadline = clock.monotonic_ms() + 30_000
            while sum(map(len, seen.values())) < 10 * count and clock.monotonic_ms() < deadline:
                bodies = [message.body for message in consumers[index].poll(timeout=0.05)]
                seen[index] += bodies
                given_out.extend(bodies)  # before it is finished, so before anybody else gets what follows
                consumers[index].commit()

        threads = [threading.Thread(target=produce, args=(queues.producer("orders"),)) for _ in range(10)]
        threads += [threading.Thread(target=consume, args=(index,)) for index in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    everything = sorted(tuple(map(int, body.split())) for bodies in seen.values() for body in bodies)
    assert everything == [(producer, number) for producer in range(10) for number in range(count)]
    for bodies in (given_out, *seen.values()):
        for producer in range(10):
            mine = [int(body.split()[1]) for body in bodies if int(body.split()[0]) == producer]
            assert mine == sorted(mine)


@pytest.mark.parametrize("engine", ENGINES)
def test_lq_5_a_queue_is_held_by_one_consumer_at_a_time(engine):
    with opened(engine) as queues:
        producer = queues.producer("orders")
        producer.send_many([b"1", b"2"])
        first, second = (queues.consumer("orders", group="billing") for _ in range(2))
        assert len(first.poll(count=1)) == 1
        assert second.poll() == []
        assert (first.holding, second.holding) == ([("orders", 0)], [])


@pytest.mark.parametrize("engine", ENGINES)
def test_lq_6_7_a_stopped_consumers_queue_is_reserved_for_the_window_and_then_given_away_for_good(engine):
    clock = Time()
    with opened(engine, clock=clock) as queues:
        assert queues.options.window_ms == 30_000
        queues.producer("orders").send_many([b"1", b"2", b"3"])
        first, second = (queues.consumer("orders", group="billing", name=name) for name in ("first", "second"))
        one, two, three = first.poll()
        first.ack(one)
        clock.move(29_999)
        assert second.poll() == []
        clock.move(1)
        assert [message.body for message in second.poll()] == [b"2", b"3"]
        with pytest.raises(PreconditionFailed, match=r"first.*30000 ms"):
            first.ack(two)
        assert first.poll() == []
        with pytest.raises(PreconditionFailed):
            first.ack(three)
        assert queues.stored_offset("orders", 0, group="billing") == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_lq_6_a_closed_consumer_leaves_finished_queues_and_keeps_unfinished_ones_for_the_window(engine):
    clock = Time()
    with opened(engine, clock=clock) as queues:
        queues.producer("a").send(b"1")
        queues.producer("b").send(b"2")
        first, second = (queues.consumer("a", "b", group="billing", name=name) for name in ("first", "second"))
        (message,) = first.poll(count=1)
        first.ack(message)
        first.poll()
        first.close()
        queues.producer("a").send(b"3")
        queues.producer("a").close()
        clock.move(10_000)
        assert [message.body for message in drain(second)] == [b"3"]
        again = queues.consumer("a", "b", group="billing", name="first")
        assert [message.body for message in drain(again)] == [b"2"]


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_8_9_files_are_named_by_the_global_offset_of_their_first_byte(engine):
    disk = MemoryDisk()
    with opened(engine, disk, file_bytes=200, entries_per_file=2) as queues:
        producers = [queues.producer("orders") for _ in range(2)]
        for number in range(10):
            producers[1].send(b"%50d" % number)
    if engine == "local":
        assert disk.list("messageStore") == [f"{200 * index:020d}" for index in range(10)]
        assert disk.list("consumeQueue") == ["orders"]
        assert disk.list("consumeQueue/orders") == ["1"]
        assert disk.list("consumeQueue/orders/1") == [f"{24 * index:020d}" for index in range(5)]
    else:
        assert disk.list("buckets/orders/1") == [f"{200 * index:020d}" for index in range(4)]


@pytest.mark.parametrize(
    "name", ["", "..", ".", "a/b", "/etc", "a\0b", "é", "a b", "x" * 128, "..\\x", "a.b", "\n", "%RETRY%/../x"]
)
@pytest.mark.parametrize("engine", ENGINES)
def test_lq_9_41_a_name_that_could_be_a_path_or_is_too_long_is_refused(engine, name):
    with opened(engine) as queues, pytest.raises(IllegalTopic):
        queues.producer(name)
    with opened(engine) as queues, pytest.raises(IllegalTopic):
        queues.consumer(name, group="billing")


# Memory


def test_lq_10_11_put_and_pull_of_the_memory_engine():
    with opened("memory") as queues:
        engine = queues.engine
        assert engine.pull_message("q", "bucket") is None
        for body in (b"1", b"2"):
            assert engine.put_message("bucket", 0, [Message("bucket", 0, body)]).status is PutStatus.PUT_OK
        assert engine.put_message("other", 0, [Message("other", 0, b"3")]).status is PutStatus.PUT_OK
        assert [engine.pull_message("q", "bucket").body for _ in range(2)] == [b"1", b"2"]
        assert engine.pull_message("q", "bucket") is None
        assert engine.pull_message("q", "other").body == b"3", "each bucket has an offset of its own"
        engine.put_message("bucket", 0, [Message("bucket", 0, b"4")])
        assert engine.pull_message("q", "bucket").body == b"4", "it stood at the end, not behind it"


@pytest.mark.parametrize("engine", ENGINES)
def test_lq_12_53_every_group_sees_all_messages(engine):
    with opened(engine) as queues:
        queues.producer("orders").send_many([b"1", b"2"])
        for group in ("billing", "shipping"):
            assert [message.body for message in drain(queues.consumer("orders", group=group))] == [b"1", b"2"]
        if engine == "memory":
            assert [queues.engine.pull_message(reader, "orders").body for reader in "abab"] == [b"1", b"1", b"2", b"2"]


@pytest.mark.parametrize("engine", ENGINES)
def test_lq_13_polls_go_round_robin_and_once_around_when_all_are_empty(engine):
    with opened(engine) as queues:
        for name in "abc":
            queues.producer(name).send_many([b"1", b"2"])
        consumer = queues.consumer("a", "b", "c", group="billing")
        names = [consumer.poll(count=1)[0].name for _ in range(3)]
        queues.producer("c").close()
        rest = [consumer.poll(count=1)[0].name for _ in range(3)]
        assert sorted(names + rest) == ["a", "a", "b", "b", "c", "c"]
        assert consumer.poll() == []
        for name in "abc":
            queues.producer(name)
            queues.engine.put_message(name, 0, [Message(name, 0, b"3"), Message(name, 0, b"4")])
        turns = [consumer.poll(count=1)[0].name for _ in range(6)]
        assert turns[:3] == turns[3:]
        assert sorted(turns[:3]) == ["a", "b", "c"]


def test_lq_14_better_memory_lists_are_bounded_and_shrink_by_what_all_groups_have_finished():
    with opened("memory", bucket_bytes_max=2_000) as queues:
        producer = queues.producer("orders")
        slow, fast = (queues.consumer("orders", group=group) for group in ("slow", "fast"))
        for _ in range(8):
            producer.send(bytes(90))
        with pytest.raises(TooManyRequests, match="bucket_bytes_max"):
            producer.send(bytes(90))
        assert len(drain(fast)) == 8
        with pytest.raises(TooManyRequests):
            producer.send(bytes(90))
        slow.ack(*slow.poll(count=3))
        for _ in range(3):
            producer.send(bytes(90))
        with pytest.raises(TooManyRequests):
            producer.send(bytes(90))
        assert queues.engine.get_message("orders", 0, 0).status is GetStatus.OFFSET_TOO_SMALL


def test_lq_14_better_a_full_memory_queue_waits_for_its_consumers():
    with opened("memory", clock=SystemClock(), bucket_bytes_max=2_000) as queues:
        producer = queues.producer("orders")
        consumer = queues.consumer("orders", group="billing")
        thread = threading.Thread(target=lambda: [producer.send(bytes(90), timeout=60) for _ in range(100)])
        thread.start()
        got = 0
        while got < 100:
            got += len(consumer.poll(timeout=60))
            consumer.commit()
        thread.join()


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_14_better_messages_outlive_the_process(engine, tmp_path):
    with evenq.local.open(tmp_path, engine=engine) as queues:
        queues.producer("orders").send(b"kept", headers={"a": "1"}, properties={"b": "2"})
    with evenq.local.open(tmp_path, engine=engine) as queues:
        (message,) = queues.consumer("orders", group="billing").poll()
        assert (message.body, message.headers, message.properties) == (b"kept", {"a": "1"}, {"b": "2"})


# Embedded: bytes


@pytest.mark.spec("XO-11")
def test_lq_15_16_the_embedded_record_byte_for_byte():
    assert (records.MESSAGE_MAGIC, records.BLANK_MAGIC) == (0xDAA320A7, 0xCBD43194)
    assert (
        records.pack_embedded(Message("T", 0, b"hi")).hex()
        == "00000012" + "daa320a7" + "00000002" + "6869" + "0000" * 2
    )
    record = records.pack_embedded(Message("T", 0, b"body", b"h", b"pp"))
    assert record.hex() == "00000017" + "daa320a7" + "00000004" + b"body".hex() + "0001" + "68" + "0002" + "7070"
    assert len(record) == 16 + 4 + 1 + 2


def test_lq_15_the_embedded_file_holds_the_records_and_nothing_else():
    disk = MemoryDisk()
    with opened("embedded", disk) as queues:
        producer = queues.producer("orders")
        expected = b"".join(
            records.pack_embedded(producer.send(b"%d" % number, headers={"a": "b"})) for number in range(3)
        )
    assert bytes(disk.files[f"buckets/orders/0/{0:020d}"].data) == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_lq_17_a_null_body_is_an_empty_one_and_pairs_are_absent_when_empty(engine):
    with opened(engine) as queues:
        queues.producer("orders").send(None)
        (message,) = queues.consumer("orders", group="billing").poll()
        assert (message.body, message.headers, message.properties) == (b"", {}, {})
        with pytest.raises(BadRequest, match="encode"):
            queues.producer("orders").send("text")


def test_lq_17_xo_10_byte_1_stands_in_a_pair_and_byte_2_between_pairs():
    assert pairs.encode({"a": "1", "bé": ""}, "headers") == b"a\x011\x02b\xc3\xa9\x01"
    assert pairs.decode(b"a\x011\x02b\xc3\xa9\x01") == {"a": "1", "bé": ""}


@pytest.mark.parametrize("wrong", [{"": "x"}, {"a\x01": "x"}, {"a": "\x02"}, {"a": "\ud800"}])
def test_lq_17_pairs_that_would_not_come_back_are_refused(wrong):
    with opened() as queues, pytest.raises(IllegalPropertyKey):
        queues.producer("orders").send(b"", properties=wrong)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["headers", "properties"])
def test_lq_18_better_pairs_over_32767_bytes_are_refused_and_nothing_is_stored(engine, kind):
    with opened(engine) as queues:
        producer = queues.producer("orders")
        producer.send(b"", **{kind: {"n": "x" * 32_765}})
        with pytest.raises(PropertiesTooLarge, match=r"32768 bytes, the limit is 32767"):
            producer.send(b"", **{kind: {"n": "x" * 32_766}})
        (message,) = drain(queues.consumer("orders", group="billing"))
        assert getattr(message, kind) == {"n": "x" * 32_765}


def test_lq_18_21_a_batch_over_a_limit_is_illegal_as_a_whole():
    for engine in FILE_ENGINES:
        with opened(engine, message_bytes_max=1_000) as queues:
            good, large = Message("T", 0, b"good"), Message("T", 0, bytes(1_000))
            wide = Message("T", 0, b"", b"x" * 32_768)
            for bad, error in ((large, BodyTooLarge), (wide, PropertiesTooLarge)):
                result = queues.engine.put_message("T", 0, [good, bad])
                assert result.status is PutStatus.MESSAGE_ILLEGAL
                assert isinstance(result.error, error)
            assert queues.engine.get_message("T", 0, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE


LOCAL_MESSAGE = Message("T", 3, b"hi")
LOCAL_MESSAGE.offset, LOCAL_MESSAGE.store_offset, LOCAL_MESSAGE.stored_ms = 7, 0, 1_700_000_000_000


def local_record(message):
    payload = records.pack_payload(message)
    return records.pack_local(message, payload, zlib.crc32(payload)) + payload


@pytest.mark.parametrize("kind", FILE_ENGINES)
@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda data: data, ReadStatus.RECORD),
        (lambda data: bytes(len(data)), ReadStatus.EMPTY),
        (lambda data: records.filler(100) + bytes(92), ReadStatus.END),
        (lambda data: data[:4] + b"\1\2\3\4" + data[8:], ReadStatus.BAD_MAGIC),
        (lambda data: data[:-3] + b"\x01" + data[-2:], ReadStatus.BAD_CHECKSUM),
        (lambda data: b"\0\0\0\1" + data[4:], ReadStatus.BAD_CHECKSUM),
        (lambda data: data[:-1], ReadStatus.CUT),
    ],
)
def test_lq_19_end_bad_magic_and_bad_checksum_are_three_results(kind, change, status):
    if kind == "local":
        found = records.read_local(change(local_record(LOCAL_MESSAGE)), 0, 100, 0)
    else:
        found = records.read_embedded(change(records.pack_embedded(LOCAL_MESSAGE)), 0, 100, "T", 3)
    assert found[0] is status
    assert (found[2] is not None) == (status is ReadStatus.RECORD)


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_19_a_flipped_bit_in_a_stored_record_is_refused_with_file_and_offset(engine):
    for bit in range(0, 8 * 20, 7):
        disk = MemoryDisk()
        with opened(engine, disk, **COLD) as queues:
            queues.producer("orders").send_many([b"first", b"second"])
        path = f"{'messageStore' if engine == 'local' else 'buckets/orders/0'}/{0:020d}"
        disk.files[path].data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StoreCorrupted, match=r"0{20} at byte 0"), opened(engine, disk, **COLD) as queues:
            drain(queues.consumer("orders", group="billing"))


# Embedded: writing


@pytest.mark.parametrize(
    ("sizes", "left", "answer"),
    [
        ([40, 40, 40], 100, (AppendStatus.END_OF_FILE, 2, 80)),
        ([40], 20, (AppendStatus.END_OF_FILE, 0, 0)),
        ([40, 60], 100, (AppendStatus.PUT_OK, 2, 100)),
        ([40], 0, (AppendStatus.END_OF_FILE, 0, 0)),
    ],
)
def test_lq_21_23_24_an_append_tells_how_much_one_file_takes(sizes, left, answer):
    assert append_batch(sizes, left) == answer


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_20_21_23_25_three_records_of_40_in_files_of_100_fill_one_and_open_the_next(engine):
    disk = MemoryDisk()
    fixed = 16 if engine == "embedded" else 50
    size = 40 if engine == "embedded" else 60
    with opened(engine, disk, file_bytes=100 if engine == "embedded" else 140) as queues:
        sent = queues.producer("T").send_many([bytes(size - fixed)] * 3)
        assert [message.offset for message in sent] == [0, 1, 2]
        assert [message.store_offset for message in sent] == [0, size, queues.options.file_bytes]
        assert len(drain(queues.consumer("T", group="g"))) == 3
    folder = "buckets/T/0" if engine == "embedded" else "messageStore"
    first = bytes(disk.files[f"{folder}/{0:020d}"].data)
    assert first[2 * size :].hex() == "00000014cbd43194" + "00" * 12


@pytest.mark.parametrize("rest", [*range(10), 16])
@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_23_the_rest_of_a_file_is_filler_whatever_its_size(engine, rest):
    """The blank magic where its 8 bytes fit, else zeros; the next message begins with the next file."""
    disk, fixed = MemoryDisk(), 16 if engine == "embedded" else 50
    with opened(engine, disk, file_bytes=100) as queues:
        sent = queues.producer("T").send_many([bytes(100 - rest - fixed)] * 2)
        assert [message.store_offset for message in sent] == [0, 100]
    data = bytes(disk.files[f"{'buckets/T/0' if engine == 'embedded' else 'messageStore'}/{0:020d}"].data)
    marked = rest.to_bytes(4, "big") + bytes.fromhex("cbd43194") + bytes(max(0, rest - 8))
    assert data[100 - rest :] == (marked if rest >= 8 else bytes(rest))
    disk.remove("consumeQueue")
    with opened(engine, disk, **COLD) as queues:
        assert [message.offset for message in drain(queues.consumer("T", group="g"))] == [0, 1]


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_22_better_a_batch_larger_than_one_file_is_stored_whole(engine):
    disk = MemoryDisk()
    bodies = [b"%030d" % number for number in range(50)]
    with opened(engine, disk, file_bytes=300) as queues:
        queues.producer("T").send_many(bodies)
    with opened(engine, disk, file_bytes=300) as queues:
        assert [message.body for message in drain(queues.consumer("T", group="g"))] == bodies


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_21_no_new_file_and_any_other_failure_are_told_apart_and_nothing_is_taken_afterwards(engine):
    for kind, status in (("create", PutStatus.CREATE_MAPEDFILE_FAILED), ("write", PutStatus.UNKNOWN_ERROR)):
        disk = FaultDisk()
        queues = opened(engine, disk)
        disk.faults_of[kind] = 28
        assert queues.engine.put_message("T", 0, [Message("T", 0, b"x")]).status is status
        disk.faults_of.clear()
        with pytest.raises(StorePoisoned, match="No space left"):
            queues.producer("T").send(b"x")
        with pytest.raises(StorePoisoned):
            queues.close()


# Partitions


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_26_28_a_presized_last_file_does_not_hide_the_true_end(engine):
    disk = MemoryDisk()
    with opened(engine, disk, file_bytes=1_000) as queues:
        queues.producer("T").send_many([b"1", b"2"])
    folder = "buckets/T/0" if engine == "embedded" else "messageStore"
    disk.files[f"{folder}/{0:020d}"].truncate(1_000)
    with opened(engine, disk) as queues:
        queues.producer("T").send(b"3")
        assert [message.body for message in drain(queues.consumer("T", group="g"))] == [b"1", b"2", b"3"]


def test_lq_27_28_better_a_short_file_in_the_middle_is_refused_not_hidden():
    disk = MemoryDisk()
    with opened("local", disk, file_bytes=100) as queues:
        queues.producer("T").send_many([bytes(50)] * 3)
    disk.files[f"messageStore/{100:020d}"].truncate(60)
    disk.remove("offsets.json")
    disk.remove("consumeQueue")
    with opened("local", disk, file_bytes=100, **COLD) as queues:  # nothing says that the rest was ever on disk
        assert len(drain(queues.consumer("T", group="g"))) == 1
        assert disk.list("cut")
    disk = MemoryDisk()
    with opened("local", disk, file_bytes=100) as queues:
        queues.producer("T").send_many([bytes(50)] * 3)
    disk.files[f"messageStore/{100:020d}"].truncate(60)
    disk.remove("consumeQueue")
    with pytest.raises(StoreCorrupted, match=r"0100 at byte 0 \(store offset 100\)"):
        opened("local", disk)


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_27_a_missing_or_foreign_file_is_named(engine):
    folder = "buckets/T/0" if engine == "embedded" else "messageStore"
    for harm, text in (
        (lambda disk: disk.remove(f"{folder}/{100:020d}"), r"0100 is missing"),
        (lambda disk: disk.open(f"{folder}/notes.txt", create=True), r"notes.txt does not belong"),
    ):
        disk = MemoryDisk()
        with opened(engine, disk, file_bytes=100) as queues:
            queues.producer("T").send_many([bytes(50)] * 3)
        harm(disk)
        with pytest.raises(StoreCorrupted, match=text):
            opened(engine, disk)


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_27_an_i_o_error_while_loading_is_a_failure_that_names_its_cause_and_lets_the_folder_go(engine):
    class Failing(MemoryDisk):
        broken = False

        def list(self, path):
            if self.broken and path.startswith(("buckets", "messageStore")):
                raise OSError(5, "Input/output error")
            return super().list(path)

    disk = Failing()
    with opened(engine, disk) as queues:
        queues.producer("T").send(b"1")
    disk.broken = True
    with pytest.raises(StoreError, match="Input/output error"):
        opened(engine, disk)
    disk.broken = False
    with opened(engine, disk) as queues:
        assert len(drain(queues.consumer("T", group="g"))) == 1


def test_lq_26_29_the_first_file_starts_at_a_multiple_of_the_size_and_its_name_says_where():
    disk = MemoryDisk()
    with opened("local", disk, file_bytes=100) as queues:
        store = queues.engine.store
        store.write(250, [b"x"], 1)
        assert store.starts == [200]
        store.write(300, [b"x"], 1)
        assert store.starts == [200, 300]
        store.starts = []
        store.load()
        assert (store.starts, store.end) == ([200, 300], 301)


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_36_better_data_is_flushed_by_time_before_a_file_is_full(engine):
    disk = FaultDisk()
    queues = opened(engine, disk)
    queues.producer("T").send(b"1")
    queues.flush()
    queues.producer("T").send(b"2")
    with opened(engine, crash(queues, disk, Keep.NONE)) as queues:
        assert [message.body for message in drain(queues.consumer("T", group="g"))] == [b"1"]


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_38_better_progress_counts_messages_not_files(engine):
    """Also when some of those that were handed out are finished, and some are not."""
    disk = MemoryDisk()
    with opened(engine, disk, file_bytes=300) as queues:
        queues.producer("T").send_many([b"%030d" % number for number in range(20)])
        consumer = queues.consumer("T", group="g")
        consumer.ack(*consumer.poll(count=5))
        consumer.ack(*consumer.poll(count=4)[:2])
    with opened(engine, disk) as queues:
        assert [int(message.body) for message in drain(queues.consumer("T", group="g"))] == list(range(7, 20))


# Local: store


def test_lq_37_39_all_queues_share_one_store_in_order_of_coming():
    with opened() as queues:
        producers = [queues.producer(name) for name in ("a", "b", "a")]
        sent = [producer.send(b"x") for producer in producers * 2]
        assert [message.store_offset for message in sent] == [51 * index for index in range(6)]


def test_lq_40_41_the_local_record_byte_for_byte():
    record = local_record(LOCAL_MESSAGE)
    assert record[:8].hex() == "00000034" + "daa320a7"  # 52
    assert record[12:].hex() == (f"00000003{7:016x}{0:016x}{1_700_000_000_000:016x}0000000268690154" + "0000" * 2)
    assert len(record) == 49 + len(b"hi") + len("T") == 52


@pytest.mark.parametrize(
    ("body", "name", "headers", "properties", "total"),
    [
        (b"hi", "T", b"", b"", 52),
        (b"", "T", b"", b"", 50),
        (b"abc", "orders", b"h", b"pp", 61),
        (b"", "x" * 127, b"", b"", 176),
    ],
)
def test_lq_41_total_size_is_49_and_the_parts(body, name, headers, properties, total):
    message = Message(name, 0, body, headers, properties)
    message.offset = message.store_offset = message.stored_ms = 0
    assert len(local_record(message)) == total
    assert int.from_bytes(local_record(message)[:4], "big") == total


def test_lq_41_a_name_over_127_bytes_has_no_record():
    assert records.pack_payload(Message("x" * 127, 0, b""))[4] == 127
    with pytest.raises(BodyTooLarge, match="the limit is 127"):
        records.pack_payload(Message("é" * 64, 0, b""))


def test_lq_42_body_crc_is_crc_32_over_payload_and_numbers_and_finds_any_flipped_bit():
    record = local_record(LOCAL_MESSAGE)
    assert int.from_bytes(record[8:12], "big") == zlib.crc32(record[12:40], zlib.crc32(record[40:]))
    for bit in range(8 * len(record)):
        data = bytearray(record)
        data[bit // 8] ^= 1 << bit % 8
        assert records.read_local(bytes(data), 0, 1_000, 0)[2] is None


@pytest.mark.parametrize("engine", FILE_ENGINES)
@pytest.mark.parametrize(("number", "count"), [(0, 4), (1, 4), (2, 4), (3, 4), (0, 3), (1, 3), (2, 3)])
def test_lq_42_a_restart_after_a_crash_checks_the_bodies_it_finds(engine, number, count):
    """What was surely on disk is refused, with file and offset; what may never have been is cut. A start looks at what
    the index has not on disk; before that, whoever reads a damaged body is refused.
    """
    disk = FaultDisk()
    queues = opened(engine, disk)
    producer = queues.producer("T")
    producer.send(b"body-0")
    queues.flush()
    producer.send_many([b"body-1", b"body-2"])
    if engine == "local":
        queues.flush()
    if count == 4:
        producer.send(b"body-3")
    found = crash(queues, disk)
    path = f"{'messageStore' if engine == 'local' else 'buckets/T/0'}/{0:020d}"
    body = found.files[path].data.index(b"body-%d" % number)
    found.files[path].data[body + 1] ^= 4
    sure = 3 if engine == "local" else 1
    if number == 0 and engine == "local":
        with opened(engine, found, **COLD) as queues:
            consumer = queues.consumer("T", group="g")
            with pytest.raises(StoreCorrupted, match=rf"{0:020d} at byte 0 .*BAD_CHECKSUM for message 0"):
                consumer.poll()
            assert queues.engine.get_message("T", 0, 1).messages[0].body == b"body-1", "its neighbours can be read"
    elif number < sure:
        with pytest.raises(StoreCorrupted, match=rf"{0:020d} at byte \d+"):
            opened(engine, found, **COLD)
    else:
        with opened(engine, found, **COLD) as queues:
            assert [message.offset for message in drain(queues.consumer("T", group="g"))] == list(range(number))
            assert queues.producer("T").send(b"again").offset == number
        found.remove("offsets.json")  # the next start looks at all of it again
        with opened(engine, found, **COLD) as queues:
            assert drain(queues.consumer("T", group="h"))[-1].body == b"again"


def test_lq_43_48_entry_n_lies_at_byte_12_n():
    disk = MemoryDisk()
    with opened("local", disk) as queues:
        queues.producer("T").send_many([b"a", b"bb", b"ccc"])
    log = bytes(disk.files[f"messageStore/{0:020d}"].data)
    for offset, place in enumerate((0, 51, 103)):  # behind total size, magic, checksum and queue id
        assert log[place + 16 : place + 32].hex() == f"{offset:016x}{place:016x}"
    data = bytes(disk.files[f"consumeQueue/T/0/{0:020d}"].data)
    assert data.hex() == "".join(f"{place:016x}{size:08x}" for place, size in ((0, 51), (51, 52), (103, 53)))


def test_lq_44_45_xo_10_defaults():
    options = LocalOptions()
    assert options.file_bytes == 1 << 30
    assert options.entries_per_file == 300_000
    with opened("local") as queues:  # and these are the sizes of its files
        assert queues.engine.store.file_bytes == 1 << 30
        assert queues.engine.queue("T", 0).positions.file_bytes == 300_000 * 12
    assert (options.flush_interval_ms, options.index_interval_ms) == (500, 5_000)
    assert (options.batch_messages_memory, options.batch_bytes_memory, options.memory_ratio) == (32, 300 << 10, 40)
    assert (records.MESSAGE_MAGIC, records.BLANK_MAGIC) == (0xDAA320A7, 0xCBD43194)  # XO-11


def test_lq_46_consume_queues_are_made_again_from_the_store():
    disk = MemoryDisk()
    with opened("local", disk, file_bytes=400, entries_per_file=4) as queues:
        producers = [queues.producer(name) for name in ("a", "b", "b")]
        for number in range(20):
            producers[number % 3].send(b"%040d" % number)
    before = {path: bytes(file.data) for path, file in disk.files.items() if path.startswith("consumeQueue")}
    disk.remove("consumeQueue")
    with opened("local", disk) as queues:
        assert sorted(int(message.body) for message in drain(queues.consumer("a", "b", group="g"))) == list(range(20))
    assert {path: bytes(file.data) for path, file in disk.files.items() if path.startswith("consumeQueue")} == before


def test_lq_49_two_threads_that_make_one_queue_get_the_same():
    with opened() as queues:
        made = []
        threads = [threading.Thread(target=lambda: made.append(queues.engine.queue("T", 7))) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(queue) for queue in made}) == 1


# Local: consumers and offsets


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_50_51_offsets_are_json_with_the_stores_own_under_broker_inner(engine):
    disk = MemoryDisk()
    with opened(engine, disk) as queues:
        queues.producer("T").send_many([b"1", b"2", b"3"])
        consumer = queues.consumer("T", group="billing")
        consumer.ack(*consumer.poll(count=2))
    state = json.loads(bytes(disk.files["offsets.json"].data))["state"]
    assert state["groups"] == {"billing": {"T": {"0": 1}}, "Broker Inner": {"T": {"0": 2}}}


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_50_a_damaged_offsets_file_is_refused_and_a_missing_one_means_from_the_start(engine):
    disk = MemoryDisk()
    with opened(engine, disk) as queues:
        queues.producer("T").send_many([b"1", b"2"])
        drain(queues.consumer("T", group="g"))
    data = disk.files["offsets.json"].data
    place = data.index(b'"g":{"T":{"0":1') + 14
    data[place] = ord("0")
    with pytest.raises(StoreCorrupted, match=r"offsets.json at byte 0"):
        opened(engine, disk)
    disk.remove("offsets.json")
    with opened(engine, disk) as queues:
        assert len(drain(queues.consumer("T", group="g"))) == 2


def test_lq_52_query_offset_and_lock():
    group = LocalGroupProgress("g", 30_000)
    key = ("T", 0)
    assert group.query_offset_and_lock("127.0.0.1:0", key, 0) == -1
    assert group.query_offset_and_lock("127.0.0.1:1", key, 10) == HELD_BY_ANOTHER == -2
    assert group.query_offset_and_lock("127.0.0.1:0", key, 20) == -1  # XO-10: an own queue is not refused
    group.offsets[key] = 4
    assert group.query_offset_and_lock("127.0.0.1:0", key, 30) == 4
    with opened() as queues:
        assert [queues.consumer("T", group="g").name for _ in range(2)] == ["127.0.0.1:0", "127.0.0.1:1"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("stored", "there", "read_from", "stored_then"), [(-1, 5, 0, 4), (4, 3, 5, 7), (7, 0, None, 7)]
)
def test_lq_54_55_reading_starts_behind_the_stored_offset(engine, stored, there, read_from, stored_then):
    with opened(engine) as queues:
        producer = queues.producer("T")
        consumer = queues.consumer("T", group="g")
        if stored >= 0:
            producer.send_many([b"old"] * (stored + 1))
            drain(consumer)
        assert queues.stored_offset("T", 0, group="g") == stored
        producer.send_many([b"new"] * there)
        found = drain(consumer)
        assert (found[0].offset if found else None) == read_from
        assert len(found) == there
        assert queues.stored_offset("T", 0, group="g") == stored_then


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("finished", [0, 1, 5])
def test_lq_54_another_consumer_of_the_group_reads_on_behind_the_stored_offset(engine, finished):
    with opened(engine) as queues:
        queues.producer("T").send_many([b"%d" % number for number in range(8)])
        with queues.consumer("T", group="g") as first:
            if finished:
                first.ack(*first.poll(count=finished))
        assert queues.stored_offset("T", 0, group="g") == finished - 1
        with queues.consumer("T", group="g") as second:
            assert [message.offset for message in drain(second)] == list(range(finished, 8))


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_56_better_a_crash_repeats_what_was_not_finished_and_loses_nothing(engine):
    disk = FaultDisk()
    queues = opened(engine, disk)
    queues.producer("T").send_many([b"%d" % number for number in range(10)])
    consumer = queues.consumer("T", group="g")
    messages = consumer.poll()
    assert len(messages) == 10
    consumer.ack(messages[0], messages[1], messages[3])  # 2 is not finished, so 3 comes again
    queues.flush()
    with opened(engine, crash(queues, disk)) as queues:
        assert [int(message.body) for message in drain(queues.consumer("T", group="g"))] == list(range(2, 10))


@pytest.mark.parametrize("engine", ENGINES)
def test_lq_56_progress_never_goes_back_and_a_consumer_may_ask_again_for_what_it_has_not_finished(engine):
    with opened(engine) as queues:
        queues.producer("T").send_many([b"1", b"2", b"3"])
        consumer = queues.consumer("T", group="g")
        one, two, _ = consumer.poll()
        consumer.ack(one)
        consumer.rewind()
        assert [message.body for message in consumer.poll()] == [b"2", b"3"]
        consumer.ack(two, one)
        assert queues.stored_offset("T", 0, group="g") == 1
        consumer.commit()
        assert queues.stored_offset("T", 0, group="g") == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_lq_57_better_a_queue_that_was_empty_is_looked_at_again(engine):
    with opened(engine) as queues:
        producer, consumer = queues.producer("T"), queues.consumer("T", group="g")
        assert consumer.poll() == []
        for number in range(3):
            producer.send(b"%d" % number)
            assert [message.body for message in drain(consumer)] == [b"%d" % number]


@pytest.mark.parametrize("engine", ENGINES)
def test_lq_57_better_a_waiting_consumer_is_woken_by_a_new_message(engine, monkeypatch):
    """At once, not when it would have looked again by itself."""
    monkeypatch.setattr("evenq.local.consumer.RECHECK_MS", 60_000)
    with opened(engine, clock=SystemClock()) as queues:
        producer, consumer = queues.producer("T"), queues.consumer("T", group="g")
        found, waits = [], threading.Event()
        event, wait = consumer._event, consumer._event.wait
        event.wait = lambda seconds: waits.set() or wait(seconds)
        thread = threading.Thread(target=lambda: found.extend(consumer.poll(timeout=60)))
        thread.start()
        assert waits.wait(60)
        producer.send(b"1")
        thread.join(60)
        assert [message.body for message in found] == [b"1"]


# Local: reading


@pytest.mark.parametrize(
    ("minimum", "end", "offset", "status", "following"),
    [
        (0, 0, 5, GetStatus.NO_MESSAGE_IN_QUEUE, 0),
        (100, 200, 50, GetStatus.OFFSET_TOO_SMALL, 100),
        (100, 200, 200, GetStatus.OFFSET_OVERFLOW_ONE, 200),
        (100, 200, 201, GetStatus.OFFSET_OVERFLOW_BADLY, 200),
        (0, 200, 201, GetStatus.OFFSET_OVERFLOW_BADLY, 0),
        (0, 0, 0, GetStatus.NO_MESSAGE_IN_QUEUE, 0),
    ],
)
def test_lq_58_59_60_61_62_64_what_an_offset_outside_the_range_gets(minimum, end, offset, status, following):
    result = reading.refusal(minimum, end, offset)
    assert (result.status, result.next_offset, result.messages) == (status, following, [])


def test_lq_58_59_60_61_62_an_offset_inside_the_range_is_not_refused():
    assert reading.refusal(100, 200, 100) is None
    assert reading.refusal(100, 200, 199) is None


def test_lq_62_better_starting_over_is_a_setting():
    assert reading.refusal(0, 200, 201, overflow_to_zero=False).next_offset == 200
    with opened("local", overflow_to_zero=False) as queues:
        queues.producer("T").send(b"1")
        assert queues.engine.get_message("T", 0, 9).next_offset == 1


def test_lq_58_60_the_smallest_readable_offset_is_the_first_whose_message_was_kept():
    disk = MemoryDisk()
    with opened("local", disk, file_bytes=200, entries_per_file=2, store_bytes_max=400, **COLD) as queues:
        queues.producer("T").send_many([b"%0140d" % number for number in range(10)])  # one in each file
        queues.producer("U").send(b"u")
        for _ in range(3):
            queues.flush(everything=True)
        first = int(disk.list("messageStore")[0]) // 200
        assert 0 < first < 10
        get = queues.engine.get_message
        for offset in range(first):
            result = get("T", 0, offset)
            assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, first)
            assert (result.min_offset, result.max_offset) == (first, 10)
        result = get("T", 0, first, 1)
        assert (result.status, int(result.messages[0].body)) == (GetStatus.FOUND, first)


@pytest.mark.parametrize("engine", ENGINES)
def test_lq_58_59_61_62_64_the_engines_answer_by_the_table(engine):
    with opened(engine) as queues:
        get = queues.engine.get_message
        assert get("T", 0, 5).status is GetStatus.NO_MESSAGE_IN_QUEUE
        queues.producer("T").send_many([b"1", b"2", b"3"])
        assert get("T", 0, 3).status is GetStatus.OFFSET_OVERFLOW_ONE
        assert (get("T", 0, 4).status, get("T", 0, 4).next_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, 0)
        result = get("T", 0, 1, 1)
        assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (GetStatus.FOUND, 2, 0, 3)


def test_lq_63_a_missing_consume_queue_file_leads_to_the_next_one_with_a_warning(caplog):
    disk = MemoryDisk()
    with opened("local", disk, entries_per_file=4, **COLD) as queues:
        queues.producer("T").send_many([b"%d" % number for number in range(10)])
        queues.flush(everything=True)
        queues.engine.files.forget(f"consumeQueue/T/0/{0:020d}")
        disk.remove(f"consumeQueue/T/0/{0:020d}")
        with caplog.at_level(logging.WARNING):
            result = queues.engine.get_message("T", 0, 1)
        assert (result.status, result.next_offset) == (GetStatus.OFFSET_FOUND_NULL, 4)
        assert "missing" in caplog.text


@pytest.mark.parametrize(
    ("count", "begun"), [(1, 1_334), (32, 1_334), (1_333, 1_334), (1_334, 1_334), (1_335, 1_335), (2_000, 2_000)]
)
def test_lq_65_a_read_walks_over_a_bounded_piece_of_the_index(count, begun):
    """16,000 bytes, or 12 for each message that is wanted if that is more; an entry that begins there counts."""
    assert reading.index_entries(count) == begun


@pytest.mark.parametrize(("count", "walked"), [(1, 1_334), (32, 1_334), (1_500, 1_500), (5_000, 2_000)])
def test_lq_65_a_read_begins_with_no_match_and_walks_over_no_more_than_that(count, walked):
    """Over 2,000 messages whose file is gone, one with the text in the next."""
    disk = MemoryDisk()
    with opened("local", disk, file_bytes=60_000 * 2, entries_per_file=10_000, **COLD) as queues:
        producer = queues.producer("T")
        producer.send_many([bytes(10)] * 2_000)  # of 60 bytes each
        queues.producer("U").send(b"u")
        queues.flush(everything=True)
        path = f"messageStore/{0:020d}"
        queues.engine.files.forget(path)
        disk.remove(path)
        result = queues.engine.get_message("T", 0, 0, count)
        assert (result.status, result.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, walked)


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_66_a_batch_is_full_by_count_and_bytes_and_holds_at_least_one(engine, cold):
    where = "disk" if cold else "memory"
    options = {f"batch_messages_{where}": 3, f"batch_bytes_{where}": 500} | (COLD if cold else {})
    with opened(engine, **options) as queues:
        producer = queues.producer("T")
        producer.send_many([b"x"] * 4 + [bytes(300)] * 2 + [bytes(900), b"end"])
        consumer = queues.consumer("T", group="g")
        assert [len(consumer.poll()) for _ in range(5)] == [3, 2, 1, 1, 1]


def test_lq_67_68_messages_whose_file_is_gone_are_skipped_to_the_next_file():
    disk = MemoryDisk()
    with opened("local", disk, file_bytes=200, **COLD) as queues:
        queues.producer("T").send_many([bytes(50)] * 6)  # two in each file
        queues.flush(everything=True)
        for start in (0, 200):
            queues.engine.files.forget(f"messageStore/{start:020d}")
        disk.remove(f"messageStore/{0:020d}")
        found = queues.engine.get_message("T", 0, 0, 1)
        assert (found.status, [message.offset for message in found.messages]) == (GetStatus.FOUND, [2])
        assert found.next_offset == 3
        disk.remove(f"messageStore/{200:020d}")
        disk.remove(f"messageStore/{400:020d}")
        for start in (200, 400):
            queues.engine.files.forget(f"messageStore/{start:020d}")
        found = queues.engine.get_message("T", 0, 0)
        assert (found.status, found.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 6)


@pytest.mark.parametrize(
    ("gone", "there", "following", "status"),
    [
        ([], [0, 1, 2, 3, 4, 5], 6, GetStatus.FOUND),
        ([0], [2, 3, 4, 5], 6, GetStatus.FOUND),
        ([200], [0, 1, 4, 5], 6, GetStatus.FOUND),
        ([400], [0, 1, 2, 3], 6, GetStatus.FOUND),
        ([200, 400], [0, 1], 6, GetStatus.FOUND),
        ([0, 200, 400], [], 6, GetStatus.MESSAGE_WAS_REMOVING),
    ],
)
def test_lq_67_68_what_is_gone_is_skipped_as_a_whole_file_and_what_is_there_is_found(gone, there, following, status):
    class Watched(MemoryDisk):
        misses = 0

        def open(self, path, *, create=False):
            self.misses += path.startswith("messageStore") and path not in self.files and not create
            return super().open(path, create=create)

    disk = Watched()
    with opened("local", disk, file_bytes=200, **COLD) as queues:
        queues.producer("T").send_many([bytes(50)] * 6)  # two in each file
        queues.producer("U").send(b"last")  # the newest message stays in memory
        queues.flush(everything=True)
        for start in gone:
            queues.engine.files.forget(f"messageStore/{start:020d}")
            disk.remove(f"messageStore/{start:020d}")
        result = queues.engine.get_message("T", 0, 0)
        assert (result.status, [message.offset for message in result.messages]) == (status, there)
        assert result.next_offset == following
        assert disk.misses == len(gone), "each lost file was looked for once"


@pytest.mark.parametrize(("behind_gib", "suggests"), [(6.39, False), (6.41, True)])
def test_lq_69_a_replica_is_suggested_behind_the_share_of_memory(behind_gib, suggests):
    end = int(behind_gib * (1 << 30))
    assert reading.is_far_behind(end, 0, 16 << 30, 40) is suggests


def test_lq_69_the_answer_carries_the_suggestion():
    with opened("local", machine_bytes=1_000, memory_ratio=10, **COLD) as queues:
        queues.producer("T").send_many([bytes(50)] * 10)
        assert queues.engine.get_message("T", 0, 0, 1).suggest_replica
        assert not queues.engine.get_message("T", 0, 8).suggest_replica
    for ratio, suggests in ((99, True), (100, False)):  # the end is 1,000 bytes behind the first message
        with opened("local", machine_bytes=1_000, memory_ratio=ratio, **COLD) as queues:
            queues.producer("T").send_many([bytes(50)] * 10)
            assert queues.engine.get_message("T", 0, 0, 1).suggest_replica is suggests


def test_lq_72_one_sync_serves_all_producers_that_wait(tmp_path):
    class Counting(RealDisk):
        syncs = 0

        def open(self, path, *, create=False):
            file = super().open(path, create=create)
            if not path.startswith("messageStore"):
                return file
            disk = self

            class Counted(type(file)):
                __slots__ = ()

                def sync(self):
                    disk.syncs += 1
                    super().sync()

            file.__class__ = Counted
            return file

    disk = Counting(Path(tmp_path))
    with opened("local", disk, flush=Flush.SYNC) as queues:
        producers = [queues.producer("T") for _ in range(8)]
        before = disk.syncs
        threads = [
            threading.Thread(target=lambda producer=producer: [producer.send(b"x") for _ in range(25)])
            for producer in producers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert disk.syncs - before < 200
