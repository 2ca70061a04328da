"""Whose folder it is."""

import json

import pytest

from evenq.errors import StoreCorrupted, StoreError, StoreLocked
from evenq.store.io.disk import RealDisk, read_whole, write_whole
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log import lock


def test_a_new_folder_gets_an_identity_that_stays():
    disk = MemoryDisk()
    first = lock.identify(disk, broker_name="a", segment_bytes=4_096)
    again = lock.identify(disk, broker_name="a", segment_bytes=8_192)
    assert again == first
    assert again.segment_bytes == 4_096, "the folder's size wins over a changed setting"
    assert lock.identify(MemoryDisk(), broker_name="a", segment_bytes=4_096).store_id != first.store_id


def test_another_brokers_folder_is_refused_with_both_names():
    disk = MemoryDisk()
    lock.identify(disk, broker_name="a", segment_bytes=4_096)
    with pytest.raises(StoreError, match="belongs to broker 'a', this one is 'b'"):
        lock.identify(disk, broker_name="b", segment_bytes=4_096)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 1, "broker_name": "a"}'])
def test_an_identity_that_does_not_parse_is_refused(text):
    disk = MemoryDisk()
    write_whole(disk, lock.PATH, text)
    with pytest.raises(StoreCorrupted, match="identity does not parse"):
        lock.identify(disk, broker_name="a", segment_bytes=4_096)


def test_a_format_of_the_future_and_a_log_without_identity_are_refused():
    disk = MemoryDisk()
    lock.identify(disk, broker_name="a", segment_bytes=4_096)
    text = json.loads(read_whole(disk, lock.PATH))
    write_whole(disk, lock.PATH, json.dumps({**text, "format": 2}).encode())
    with pytest.raises(StoreError, match="has format 2; this program reads format 1"):
        lock.identify(disk, broker_name="a", segment_bytes=4_096)
    disk.remove(lock.PATH)
    disk.open("commitlog/" + "0" * 20, create=True)
    with pytest.raises(StoreCorrupted, match="is missing beside a commit log"):
        lock.identify(disk, broker_name="a", segment_bytes=4_096)


def test_a_second_owner_is_told_the_first_ones_process_and_the_lock_goes_with_it(tmp_path):
    first, second = RealDisk(tmp_path), RealDisk(tmp_path)
    lock.acquire(first)
    with pytest.raises(StoreLocked, match=r"in use by process \d+: stop that broker, or give this one its own"):
        lock.acquire(second)
    first.unlock()
    lock.acquire(second)
    second.unlock()
