"""The promises about the commit log and the consume queues: semantics.md section 5 (CL-1 to CL-16), replication.md 2.1 (ASYNC_FLUSH, SYNC_FLUSH)."""

from __future__ import annotations

import random

import pytest
from evenq_proofs.fault_disk import FaultDisk, Keep

from evenq.runtime.clock import FakeClock
from evenq.store import Append, FlushMode, MessageStore, StoreOptions
from evenq.store.io.disk import Usage
from evenq.store.log.consume_queue import ENTRY, ENTRY_BYTES, FILE_ENTRIES, file_at, folder_of
from evenq.store.log.record import frame_at
from evenq.store.log.segment import path_of, segment_of
from evenq.store.log.volume import segment_bytes


async def opened(disk, **options):
    return await MessageStore.open(
        None, StoreOptions(**{"segment_bytes": 4096, "flush": FlushMode.SYNC, **options}), clock=FakeClock(), disk=disk,
        broker_name="broker-a", on_state=lambda *_: None, on_snapshot=lambda _: None,
    )  # fmt: skip


def one(topic_id=1, queue_id=0, head=b"x", tag=0):
    return Append(topic_id, queue_id, tag, 0, head, b"")


async def test_cl_1_3_all_queues_share_one_log_written_strictly_one_behind_the_other():
    store = await opened(FaultDisk())
    entries = [one(topic_id, queue_id) for topic_id in (1, 2) for queue_id in (0, 1, 0)]
    for entry in entries:
        await store.append([entry])
    assert [entry.log_offset for entry in entries] == list(range(0, 6 * 89, 89))
    assert [entry.queue_offset for entry in entries] == [0, 0, 1, 0, 0, 1]
    await store.close()


def test_cl_2_a_log_file_is_1_gib_and_named_by_its_first_offset():
    """A volume under 16 GiB gets smaller ones, so that it holds several."""
    for volume, size in ((16 << 30, 1_073_741_824), (1 << 40, 1_073_741_824), (1 << 30, 64 << 20)):
        assert segment_bytes(StoreOptions(), Usage(volume, volume)) == size
    assert path_of(0) == "commitlog/00000000000000000000"
    assert path_of(segment_of(1_073_741_824, 1 << 30)[0]) == "commitlog/00000000001073741824"


async def test_cl_2_full_files_have_exactly_their_size():
    disk = FaultDisk()
    store = await opened(disk)
    for _ in range(20):
        await store.append([one(head=b"x" * 900)])
    names = disk.list("commitlog")
    assert names == [f"{index * 4096:020d}" for index in range(5)]
    assert {len(disk.files[f"commitlog/{name}"].data) for name in names[:-1]} == {4096}
    await store.close()


def test_cl_4_a_log_offset_names_its_file_and_position():
    assert segment_of(2_500_000_000, 1 << 30) == (2_147_483_648, 352_516_352)
    for start in (0, 1 << 30, 5 << 30):
        for position in (0, 1, 89, (1 << 30) - 1):
            assert segment_of(start + position, 1 << 30) == (start, position)
    assert path_of(2_147_483_648).endswith("/00000000002147483648")


@pytest.mark.parametrize("flush", list(FlushMode))
async def test_cl_5_and_replication_2_1_what_each_flush_mode_promises(flush):
    """SYNC: acknowledged means synced. ASYNC: a kill loses nothing, a power loss at most one flush interval."""
    disk = FaultDisk()
    store = await opened(disk, flush=flush)
    for number in range(10):
        await store.append([one(head=b"%d" % number)])
    killed = disk.crash(Keep.ALL, random.Random(1))
    powerless = disk.crash(Keep.NONE, random.Random(1))
    after_kill = await opened(killed)
    assert after_kill.queue_range(1, 0) == (0, 10)
    after_power_loss = await opened(powerless)
    assert after_power_loss.queue_range(1, 0) == ((0, 10) if flush is FlushMode.SYNC else (0, 0))
    for left in (store, after_kill, after_power_loss):
        await left.close()


async def test_cl_5_asynchronous_flush_syncs_every_half_second_so_that_a_power_loss_costs_no_more():
    disk, clock = FaultDisk(), FakeClock()
    store = await MessageStore.open(
        None, StoreOptions(segment_bytes=4096), clock=clock, disk=disk, broker_name="broker-a",
        on_state=lambda *_: None, on_snapshot=lambda _: None,
    )  # fmt: skip
    for number in range(10):
        await store.append([one(head=b"%d" % number)])
    await clock.advance(600)
    await store.append([one(head=b"late")])
    after_power_loss = await opened(disk.crash(Keep.NONE, random.Random(1)))
    assert after_power_loss.queue_range(1, 0) == (0, 10)
    await store.close()
    await after_power_loss.close()
    assert (StoreOptions().flush, StoreOptions().flush_interval_ms) == (FlushMode.ASYNC, 500)


async def test_cl_7_consume_queue_files_lie_under_topic_then_queue():
    disk = FaultDisk()
    store = await opened(disk)
    await store.append([one(5, queue_id) for queue_id in range(16)])
    await store.checkpoint()
    assert folder_of(5, 3) == "consumequeue/5/3"
    assert disk.list("consumequeue/5") == sorted(str(queue_id) for queue_id in range(16))
    await store.close()


async def test_cl_8_an_entry_is_20_bytes_big_endian_and_finds_its_message():
    disk = FaultDisk()
    store = await opened(disk)
    await store.append([one(head=b"a" * 10, tag=-2), one(head=b"b" * 10, tag=77)])
    await store.checkpoint()
    data = bytes(disk.files["consumequeue/1/0/00000000000000000000"].data)
    assert len(data) == 2 * ENTRY_BYTES == 40
    assert data[20:28] == (98).to_bytes(8, "big")
    assert data[28:32] == (98).to_bytes(4, "big")
    assert data[32:40] == (77).to_bytes(8, "big")
    log_offset, size, _ = ENTRY.unpack_from(data, 20)
    frame = frame_at(bytes(disk.files[path_of(0)].data)[log_offset : log_offset + size], 0, log_offset)
    assert frame is not None
    assert frame.head == b"b" * 10
    await store.close()


def test_cl_9_10_entries_a_file_and_the_worked_examples():
    assert FILE_ENTRIES == 300_000
    assert FILE_ENTRIES * ENTRY_BYTES == 6_000_000
    assert file_at(299_999) == ("00000000000000000000", 5_999_980)
    assert file_at(300_000) == ("00000000000006000000", 0)
    assert file_at(450_123) == ("00000000000006000000", 3_002_460)


async def test_cl_10_a_queue_of_several_files_reads_across_them():
    disk = FaultDisk()
    store = await opened(disk, segment_bytes=1 << 26, cache_bytes=0, flush=FlushMode.ASYNC)
    call = [one(head=b"") for _ in range(5_000)]
    for _ in range(61):
        await store.append([one(head=b"") for _ in call])
        await store.checkpoint()
    assert disk.list("consumequeue/1/0") == ["00000000000000000000", "00000000000006000000"]
    found = await store.read(1, 0, 299_990, count_max=20, bytes_max=1 << 20)
    assert [message.queue_offset for message in found.messages] == list(range(299_990, 300_010))
    await store.close()
    again = await opened(disk)
    assert again.queue_range(1, 0) == (0, 305_000)
    assert again.stats.recovered_records == 305_000  # no snapshot: state records may be anywhere
    await again.close()


async def test_cl_12_a_message_is_consumable_exactly_when_its_entry_exists():
    store = await opened(FaultDisk())
    ranges = []
    store.on_dispatched = lambda grown: ranges.append((grown, store.queue_range(1, 0)))
    future = store.append([one(), one()])
    assert store.queue_range(1, 0) == (0, 0)
    assert (await store.read(1, 0, 0, count_max=9, bytes_max=1 << 20)).messages == []
    assert not future.done(), "it was not safe yet"
    await future
    assert ranges == [([(1, 0, 2)], (0, 2))]
    store.append([one()])
    assert len((await store.read(1, 0, 0, count_max=9, bytes_max=1 << 20)).messages) == 2
    assert await store.read_at(1, 0, [2]) == []
    await store.close()


async def test_cl_15_consume_queues_are_a_pure_function_of_the_log():
    disk = FaultDisk()
    store = await opened(disk)
    for number in range(60):
        await store.append([one(1 + number % 2, number % 3, head=b"x" * number, tag=number)])
    await store.close()
    before = {path: bytes(file.data) for path, file in disk.files.items() if path.startswith("consumequeue")}
    image = disk.crash(Keep.ALL, random.Random(1))
    image.remove("consumequeue")
    again = await opened(image)
    after = {path: bytes(file.data) for path, file in image.files.items() if path.startswith("consumequeue")}
    assert after == before
    await again.close()


# -- the message index ------------------------------------------------------------------------------------------------


async def indexed(disk, clock=None):
    return await MessageStore.open(
        None, StoreOptions(segment_bytes=4096, flush=FlushMode.SYNC), clock=clock or FakeClock(), disk=disk,
        broker_name="broker-a", on_state=lambda *_: None, on_snapshot=lambda _: None,
        keys_of=lambda _, system: system.split(b",") if system else (),
    )  # fmt: skip


async def test_cl_14_the_index_finds_messages_by_topic_and_key_and_by_time_newest_first():
    clock = FakeClock()
    store = await indexed(FaultDisk(), clock)
    entries = [Append(1 + n % 2, n % 3, 0, 0, b"%d" % n, b"order-%d,id-%d" % (n % 9, n)) for n in range(90)]
    for entry in entries:
        await store.append([entry])
        clock.jump_wall(1_000)
    found = await store.find(1, b"order-4")
    assert [int(message.head) for message in found] == [76, 58, 40, 22, 4]
    (by_id,) = await store.find(2, b"id-31")
    assert by_id.head == b"31"
    assert await store.find(1, b"id-31") == []
    found = await store.find(1, b"order-4", begin_ms=entries[22].store_ms, end_ms=entries[58].store_ms)
    assert [int(message.head) for message in found] == [58, 40, 22]
    await store.close()


async def test_cl_14_another_key_or_topic_with_the_same_hash_is_not_found_for_it(monkeypatch):
    monkeypatch.setattr("evenq.store.index.message_index.key_hash", lambda topic_id, key: 7)
    store = await indexed(FaultDisk())
    for n in range(60):
        await store.append([Append(1 + n % 2, 0, 0, 0, b"%d" % n, b"k%d" % (n % 6))])
    assert [int(message.head) for message in await store.find(1, b"k4")] == list(range(58, 0, -6))
    assert await store.find(2, b"k4") == []
    await store.close()


async def test_cl_14_a_span_of_time_without_a_key_is_two_offsets_and_a_read():
    clock = FakeClock()
    store = await indexed(FaultDisk(), clock)
    entries = [one(head=b"%d" % n) for n in range(60)]
    for entry in entries:
        await store.append([entry])
        clock.jump_wall(1_000)
    start = await store.offset_at(1, 0, entries[20].store_ms)
    end = await store.offset_at(1, 0, entries[30].store_ms + 1)
    found = await store.read(1, 0, start, count_max=end - start, bytes_max=1 << 20)
    assert [int(message.head) for message in found.messages] == list(range(20, 31))
    await store.close()


async def test_cl_6_the_index_is_built_in_the_background_by_following_the_log():
    disk, clock = FaultDisk(), FakeClock()
    store = await indexed(disk, clock)
    for number in range(60):
        await store.append([Append(1, 0, 0, 0, b"x" * 200, b"k%d" % number)])
    assert disk.list("index") == []
    await clock.advance(2_000)
    assert disk.list("index") == disk.list("commitlog")[:-1]
    assert store.stats.index_end == store.stats.log_end
    await store.close()


async def test_cl_6_entries_are_filed_in_the_background_by_time_and_when_there_are_many():
    disk, clock = FaultDisk(), FakeClock()
    store = await MessageStore.open(
        None, StoreOptions(segment_bytes=1 << 20, checkpoint_entries=100), clock=clock, disk=disk,
        broker_name="broker-a", on_state=lambda *_: None, on_snapshot=lambda _: None,
    )  # fmt: skip

    def filed():
        file = disk.files.get("consumequeue/1/0/00000000000000000000")
        return 0 if file is None else len(file.data) // ENTRY_BYTES

    await store.append([one() for _ in range(10)])
    assert filed() == 0, "a send does not wait for them"
    await clock.advance(6_000)
    assert filed() == 10
    await store.append([one() for _ in range(99)])
    await clock.advance(0)
    assert filed() == 10
    await store.append([one()])
    await clock.advance(0)
    assert filed() == 110
    await store.close()


HARMS = {
    "nothing": lambda disk, path: None,
    "an entry is missing": lambda disk, path: disk.files[path].truncate(len(disk.files[path].data) - ENTRY_BYTES),
    "half an entry is missing": lambda disk, path: disk.files[path].truncate(len(disk.files[path].data) - 10),
    "the file is missing": lambda disk, path: disk.remove(path),
    "entries behind the checkpoint": lambda disk, path: disk.files[path].data.extend(b"\7" * 50),
}


@pytest.mark.parametrize("harm", HARMS)
async def test_cl_15_consume_queues_are_made_again_from_a_checkpoint_on_or_from_the_whole_log_where_files_do_not_fit(
    harm, caplog
):
    def messages():
        return [one(1 + number % 2, number % 3, head=b"x" * number, tag=number) for number in range(60)]

    def queues_of(disk):
        return {path: bytes(file.data) for path, file in disk.files.items() if path.startswith("consumequeue")}

    whole, disk = FaultDisk(), FaultDisk()
    store = await opened(whole)
    await store.append(messages())
    await store.close()
    store = await opened(disk)
    first, second = messages()[:31], messages()[31:]
    await store.append(first)
    await store.checkpoint()
    await store.append(second)
    image = disk.crash(Keep.ALL, random.Random(1))
    HARMS[harm](image, "consumequeue/2/1/00000000000000000000")
    again = await opened(image)
    assert ("rebuilding the consume queues from the log" in caplog.text) == ("missing" in harm)
    for topic_id, queue_id in ((topic_id, queue_id) for topic_id in (1, 2) for queue_id in range(3)):
        found = await again.read(topic_id, queue_id, 0, count_max=99, bytes_max=1 << 20)
        assert [message.queue_offset for message in found.messages] == list(range(10))
    await again.close()
    assert queues_of(image) == queues_of(whole)


async def test_cl_15_the_index_is_a_pure_function_of_the_log():
    disk = FaultDisk()
    store = await indexed(disk)
    for number in range(120):
        await store.append([Append(1 + number % 2, 0, 0, 0, b"x" * number, b"k%d,all" % number)])
    everything = [message.log_offset for message in await store.find(1, b"all", count_max=1_000)]
    await store.close()
    before = {path: bytes(file.data) for path, file in disk.files.items() if path.startswith("index")}
    assert len(before) >= 3
    image = disk.crash(Keep.ALL, random.Random(1))
    image.remove("index")
    again = await indexed(image)
    assert [message.log_offset for message in await again.find(1, b"all", count_max=1_000)] == everything
    after = {path: bytes(file.data) for path, file in image.files.items() if path.startswith("index")}
    assert after == before
    await again.close()
