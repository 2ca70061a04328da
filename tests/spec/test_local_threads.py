"""Promises about queues without a server that only show when several threads use them, or when a thread of its own works
(semantics.md section 18); `test_local_queues.py` has the others.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading

import pytest
from evenq_proofs.fault_disk import FaultDisk, Keep
from evenq_proofs.waiting import until

import evenq.local
from evenq.errors import StorePoisoned, TooManyRequests
from evenq.local import LocalOptions, PutStatus
from evenq.local.messages import Message
from evenq.runtime.clock import FakeClock
from evenq.store.io.memory_disk import MemoryDisk

FILE_ENGINES = ["embedded", "local"]
THREADS = 8


@pytest.fixture
def eager():
    """Threads take turns as often as they can, so that what is not one step comes apart."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*works):
    """Run all of them in threads that begin at one time."""
    start = threading.Barrier(len(works))

    def run(work):
        start.wait(60)
        work()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def memory(clock=None):
    return evenq.local.open(engine="memory", clock=clock or FakeClock())


class ToldCondition(threading.Condition):
    """One that counts who wanted it."""

    wanted = 0

    def __enter__(self):
        self.wanted += 1
        return super().__enter__()


def test_lq_10_a_put_is_one_step_another_to_the_same_bucket_comes_behind_it():
    class Between(Message):
        """Lets another thread put a message once this one takes its offset."""

        @property
        def offset(self):
            return self.place

        @offset.setter
        def offset(self, place):
            self.place = place
            if place >= 0:
                other.start()
                until(lambda: bucket.room.wanted == 2 or not other.is_alive())

    with memory() as queues:
        bucket = queues.engine.queue("bucket", 0)
        bucket.room = ToldCondition(threading.Lock())
        messages = [Between("bucket", 0, b"first"), Message("bucket", 0, b"second")]
        other = threading.Thread(target=lambda: queues.engine.put_message("bucket", 0, messages[1:]))
        assert queues.engine.put_message("bucket", 0, messages[:1]).status is PutStatus.PUT_OK
        other.join(60)
        assert [message.offset for message in messages] == [0, 1]
        assert [message.body for message in queues.consumer("bucket", group="g").poll()] == [b"first", b"second"]


def test_lq_11_pulls_of_many_threads_for_one_queue_give_each_message_once(eager):
    count = 8_000
    with memory() as queues:
        queues.engine.put_message("bucket", 0, [Message("bucket", 0, b"%d" % number) for number in range(count)])
        taken = [[] for _ in range(THREADS)]

        def pull(mine):
            while (message := queues.engine.pull_message("q", "bucket")) is not None:
                mine.append(int(message.body))

        together(*(lambda mine=mine: pull(mine) for mine in taken))
        assert sorted(number for mine in taken for number in mine) == list(range(count))
        assert all(mine == sorted(mine) for mine in taken)


class Halting(FakeClock):
    """A clock that stops one thread where it asks for the time."""

    def __init__(self):
        super().__init__()
        self.victim, self.stopped, self.go = None, threading.Event(), threading.Event()

    def monotonic_ms(self):
        if threading.current_thread() is self.victim:
            self.stopped.set()
            self.go.wait(60)
        return super().monotonic_ms()


def test_lq_14_better_a_producer_at_a_full_bucket_holds_up_nobody_at_another():
    clock = Halting()
    options = LocalOptions(bucket_bytes_max=1_000)
    with evenq.local.open(engine="memory", clock=clock, options=options) as queues:
        full, other = queues.producer("full"), queues.producer("other")
        full.send(bytes(800))
        refused, sent = [], threading.Event()

        def too_much():
            with pytest.raises(TooManyRequests) as info:
                full.send(bytes(800))
            refused.append(info.value)

        clock.victim = threading.Thread(target=too_much)
        clock.victim.start()
        try:
            assert clock.stopped.wait(60)  # in the full bucket's lock
            elsewhere = threading.Thread(target=lambda: (other.send(b"x"), sent.set()), daemon=True)
            elsewhere.start()
            assert sent.wait(60)
        finally:
            clock.go.set()
            clock.victim.join(60)
        assert len(refused) == 1


class Told:
    """A lock that tells who wants it."""

    def __init__(self, lock):
        self.lock, self.wanted = lock, 0

    def __enter__(self):
        self.wanted += 1
        self.lock.acquire()

    def __exit__(self, *_error):
        self.lock.release()


@pytest.mark.parametrize("engine", ["memory", *FILE_ENGINES])
def test_lq_49_threads_that_make_one_queue_at_one_time_use_the_same(engine):
    disk = None if engine == "memory" else MemoryDisk()
    with evenq.local.open(engine=engine, disk=disk, clock=FakeClock(), background=False) as queues:
        queues.engine.topic("T")
        make, go, making, made = queues.engine._make_queue, threading.Event(), [], []
        lock = queues.engine._table_lock = Told(queues.engine._table_lock)

        def slowly(topic, queue_id):
            making.append(queue_id)
            go.wait(60)
            return make(topic, queue_id)

        queues.engine._make_queue = slowly
        threads = [threading.Thread(target=lambda: made.append(queues.engine.queue("T", 7))) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: lock.wanted == 2 or len(making) == 2)
        go.set()
        for thread in threads:
            thread.join(60)
        assert making == [7]
        assert made[0] is made[1] is queues.engine.queue("T", 7)


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_lq_36_50_better_messages_and_progress_reach_the_disk_by_time_while_files_are_open_and_not_full(engine):
    disk = FaultDisk()
    queues = evenq.local.open(disk=disk, engine=engine, options=LocalOptions(flush_interval_ms=1))
    producer, consumer = queues.producer("T"), queues.consumer("T", group="g")
    producer.send_many([b"1", b"2", b"3"])
    consumer.ack(*consumer.poll(count=2))
    try:
        until(lambda: queues._saved.get("groups", {}).get("g") == {"T": {"0": 1}})
    finally:
        found = disk.crash(Keep.NONE, random.Random(1))
        with contextlib.suppress(StorePoisoned):  # the old process has no disk any more
            queues.close()
    with evenq.local.open(disk=found, engine=engine, background=False) as again:
        assert [message.body for message in again.consumer("T", group="g").poll()] == [b"3"]
