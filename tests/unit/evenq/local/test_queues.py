"""The whole of local queues: crashes at every change of the disk, engines against a model, the folder's lock."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter

import pytest
from evenq_proofs.fault_disk import FaultDisk, Keep
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import evenq.local
from evenq.errors import (
    BadRequest,
    Error,
    IllegalGroup,
    PreconditionFailed,
    SettingsError,
    StoreCorrupted,
    StoreError,
    StoreLocked,
    TooManyRequests,
)
from evenq.local import Flush, LocalOptions
from evenq.runtime.clock import FakeClock
from evenq.store.io.memory_disk import MemoryDisk

SMALL = {"file_bytes": 700, "entries_per_file": 5, "index_interval_ms": 1, "cache_bytes_max": 1_500}


class Time(FakeClock):
    def move(self, ms):
        self._monotonic += ms
        self._wall += ms


def opened(engine, disk, clock=None, **options):
    return evenq.local.open(
        engine=engine, disk=disk, clock=clock or Time(), background=False, options=LocalOptions(**{**SMALL, **options})
    )


def test_importing_it_needs_neither_grpc_nor_protobuf_nor_pydantic():
    code = "import evenq.local, sys; print([m for m in ('grpc', 'google', 'pydantic', 'crc32c', 'asyncio', 'evenq.client') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# Crashes


class Work:
    """A fixed workload that remembers what was promised."""

    def __init__(self):
        self.sent = {}
        self.acknowledged = Counter()
        self.flushed = Counter()
        self.finished = {}
        self.surely_finished = {}

    def send(self, producer, count):
        key = (producer.name, producer.queue_id)
        bodies = [
            b"%d:%d" % (producer.number, len(self.sent.setdefault(key, [])) + n) + bytes(n * 37) for n in range(count)
        ]
        self.sent[key] += bodies
        producer.send_many(bodies, properties={"k": "v"} if count > 2 else None)
        self.acknowledged[key] += count

    def run(self, queues, clock):
        producers = [queues.producer(name) for name in ("a", "a", "b")]
        consumer = queues.consumer("a", "b", group="g")
        for step in range(14):
            self.send(producers[step % 3], 1 + step * 5 % 7)
            clock.move(1)
            if step % 3 == 1:
                found = consumer.poll(count=4)
                for message in found[:3]:
                    consumer.ack(message)
                    self.finished[message.name, message.queue_id] = message.offset
            if step % 4 == 3:
                queues.flush(everything=step % 8 == 7)
                self.flushed = self.acknowledged.copy()
        queues.close()
        self.flushed = self.acknowledged.copy()

    def check(self, disk, engine, surely):
        """Everything promised is there, in order, and nothing that was not sent."""
        queues = opened(engine, disk)
        for key, bodies in self.sent.items():
            found = []
            while True:
                result = queues.engine.get_message(*key, len(found))
                if not result.messages:
                    break
                found += [message.body for message in result.messages]
            assert found == bodies[: len(found)], key
            assert len(found) >= surely[key], (key, len(found), surely)
            assert queues.stored_offset(*key, group="g") <= self.finished.get(key, -1)
        rest = queues.consumer("a", "b", group="g")
        while rest.poll():
            rest.commit()
        producer = queues.producer("a")
        again = producer.send(b"again")
        queues.close()
        queues = opened(engine, disk)
        assert queues.engine.get_message("a", 0, again.offset).messages[0].body == b"again"
        queues.close()


@pytest.mark.parametrize("flush", list(Flush))
@pytest.mark.parametrize("engine", ["embedded", "local"])
@pytest.mark.slow
def test_a_crash_at_any_change_of_the_disk_loses_nothing_that_was_promised(engine, flush):
    whole = FaultDisk()
    clock = Time()
    Work().run(opened(engine, whole, clock, flush=flush), clock)
    rng = random.Random(7)
    assert whole.operations > 60
    for number in range(whole.operations):
        keep = list(Keep)[number % 3]
        disk, work, clock = FaultDisk(), Work(), Time()
        disk.cut = (number, rng.choice([0, 1, 7, 12, 30, 60, 200]))
        try:
            work.run(opened(engine, disk, clock, flush=flush), clock)
        except (Error, OSError):
            assert disk.dead
        surely = work.acknowledged if keep is Keep.ALL or flush is Flush.SYNC else work.flushed
        work.check(disk.crash(keep, rng), engine, surely)


@pytest.mark.parametrize("engine", ["embedded", "local"])
def test_a_broken_fsync_is_caught_by_the_crash_test(engine):
    class Lying(FaultDisk):
        def open(self, path, *, create=False):
            file = super().open(path, create=create)
            if not path.startswith("offsets"):
                file.__class__.sync = lambda _: None
            return file

    from evenq_proofs.fault_disk import FaultFile

    honest = FaultFile.sync
    try:
        disk, work, clock = Lying(), Work(), Time()
        queues = opened(engine, disk, clock, flush=Flush.SYNC)
        work.run(queues, clock)
        with pytest.raises((AssertionError, StoreCorrupted)):
            work.check(disk.crash(Keep.NONE, random.Random(1)), engine, work.acknowledged)
    finally:
        FaultFile.sync = honest


@pytest.mark.parametrize("engine", ["embedded", "local"])
def test_after_a_failed_write_or_sync_nothing_is_acknowledged(engine):
    for kind in ("write", "sync"):
        disk = FaultDisk()
        queues = opened(engine, disk, flush=Flush.SYNC)
        producer = queues.producer("a")
        producer.send(b"1")
        disk.faults_of[kind] = 5
        for _ in range(2):
            with pytest.raises(StoreError, match="Input/output error"):
                producer.send(b"2")
        with pytest.raises(StoreError):
            queues.close()
        found = opened(engine, disk.crash(Keep.ALL, random.Random(1)))
        assert found.engine.get_message("a", 0, 0).messages[0].body == b"1"


# Bit flips


@pytest.mark.parametrize("engine", ["embedded", "local"])
@pytest.mark.slow
def test_any_flipped_bit_or_cut_file_is_refused_or_harmless(engine):
    rng = random.Random(3)
    disk, work, clock = FaultDisk(), Work(), Time()
    work.run(opened(engine, disk, clock), clock)
    for _ in range(300):
        harmed = disk.crash(Keep.ALL, rng)
        path = rng.choice([path for path, file in sorted(harmed.files.items()) if file.data and path != "lock"])
        data = harmed.files[path].data
        if rng.random() < 0.7:
            bit = rng.randrange(8 * len(data))
            data[bit // 8] ^= 1 << bit % 8
        else:
            del data[rng.randrange(len(data)) :]
        try:
            work.check(harmed, engine, work.acknowledged)
        except StoreCorrupted as error:
            assert path.rpartition("/")[2] in str(error) or "consumeQueue" in str(error) or "bucketIndex" in str(error)  # noqa: PT017
        except StoreError as error:
            assert "format" in str(error) or "engine" in str(error)  # noqa: PT017


# Against a model


class Model(RuleBasedStateMachine):
    """One engine beside lists."""

    engine = "local"

    @initialize()
    def begin(self):
        self.clock = Time()
        self.disk = None if self.engine == "memory" else FaultDisk()
        self.lists = {}
        self.given = {}
        self.finished = {}
        self.connect()

    def connect(self):
        if self.engine == "memory":
            self.queues = evenq.local.open(engine="memory", clock=self.clock)
        else:
            self.queues = opened(self.engine, self.disk, self.clock)
        self.producers = [self.queues.producer(name) for name in ("a", "a", "b")]
        self.consumers = {group: self.queues.consumer("a", "b", group=group) for group in ("g", "h")}
        self.held = {group: [] for group in ("g", "h")}

    @rule(which=st.integers(0, 2), sizes=st.lists(st.integers(0, 300), min_size=1, max_size=9))
    def send(self, which, sizes):
        producer = self.producers[which]
        known = self.lists.setdefault((producer.name, producer.queue_id), [])
        bodies = [b"%d:" % (len(known) + index) + bytes(size) for index, size in enumerate(sizes)]
        sent = producer.send_many(bodies)
        assert [message.offset for message in sent] == list(range(len(known), len(known) + len(bodies)))
        known += bodies

    @rule(group=st.sampled_from("gh"), count=st.integers(1, 40))
    def poll(self, group, count):
        found = self.consumers[group].poll(count=count)
        for message in found:
            key = (message.name, message.queue_id)
            expected = self.given.get((group, key), self.finished.get((group, key), -1) + 1)
            assert message.offset == expected
            assert message.body == self.lists[key][expected]
            self.given[group, key] = expected + 1
        self.held[group] += found
        if not found:
            for key, bodies in self.lists.items():
                assert self.given.get((group, key), self.finished.get((group, key), -1) + 1) == len(bodies)

    @rule(group=st.sampled_from("gh"), data=st.data())
    def ack(self, group, data):
        if not self.held[group]:
            return
        index = data.draw(st.integers(0, len(self.held[group]) - 1))
        message = self.held[group].pop(index)
        self.consumers[group].ack(message)
        self.settle(group)

    @rule(group=st.sampled_from("gh"))
    def commit(self, group):
        self.consumers[group].commit()
        self.held[group] = []
        self.settle(group)

    def settle(self, group):
        for key in self.lists:
            if (group, key) in self.given:
                open_ones = [m.offset for m in self.held[group] if (m.name, m.queue_id) == key]
                self.finished[group, key] = min(open_ones, default=self.given[group, key]) - 1

    @rule()
    def rewind(self):
        self.consumers["g"].rewind()
        self.held["g"] = []
        self.forget("g")

    def forget(self, group):
        for name, key in list(self.given):
            if name == group:
                del self.given[name, key]

    @rule()
    def flush(self):
        self.clock.move(600)
        self.queues.flush()

    @rule(clean=st.booleans())
    def reopen(self, clean):
        if self.engine == "memory":
            return
        if clean:
            self.queues.close()
        else:
            self.queues.flush()  # progress since the last one may come again
            self.queues.engine.failure = "killed"
            self.disk = self.disk.crash(Keep.ALL, random.Random(1))
        self.connect()
        for group in "gh":
            self.forget(group)

    @invariant()
    def progress_is_as_told(self):
        for (group, key), offset in getattr(self, "finished", {}).items():
            assert self.queues.stored_offset(*key, group=group) == offset


class MemoryModel(Model):
    engine = "memory"


class EmbeddedModel(Model):
    engine = "embedded"


for machine in (Model, MemoryModel, EmbeddedModel):
    machine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestLocalAgainstLists = Model.TestCase
TestMemoryAgainstLists = MemoryModel.TestCase
TestEmbeddedAgainstLists = EmbeddedModel.TestCase


# Limits and refusals


def test_old_files_go_when_the_store_is_over_its_limit_and_numbers_are_kept():
    disk, clock = MemoryDisk(), Time()
    with opened("local", disk, clock, store_bytes_max=3_000) as queues:
        old, busy = queues.producer("old"), queues.producer("busy")
        consumer = queues.consumer("busy", "old", group="g")
        old.send_many([b"1", b"2"])
        for number in range(60):
            busy.send(b"%0100d" % number)
            clock.move(10)
            queues.flush()
        assert len(disk.list("messageStore")) <= 7
        found = []
        while messages := consumer.poll():
            found += [message for message in messages if message.name == "busy"]
            consumer.commit()
        assert 10 < len(found) < 40
        assert [int(message.body) for message in found] == list(range(60 - len(found), 60))
        assert old.send(b"3").offset == 2
    for lost in ([], ["consumeQueue"]):
        for path in lost:
            disk.remove(path)
        with opened("local", disk) as queues:
            assert queues.engine.get_message("busy", 0, 0).next_offset >= 60 - len(found)
            assert queues.engine.get_message("old", 0, 2).messages[0].body == b"3"


def test_living_consumers_share_the_queues():
    clock = Time()
    with opened("local", MemoryDisk(), clock) as queues:
        producers = [queues.producer("a") for _ in range(6)]
        consumers = [queues.consumer("a", group="g") for _ in range(2)]

        def round_of_all():
            for producer in producers:
                producer.send(b"x")
            for _ in range(8):
                for consumer in consumers:
                    consumer.poll()
                    consumer.commit()

        round_of_all()
        assert [len(consumer.holding) for consumer in consumers] == [3, 3]
        consumers.append(queues.consumer("a", group="g"))
        round_of_all()
        assert [len(consumer.holding) for consumer in consumers] == [2, 2, 2]
        consumers.pop(0).close()
        round_of_all()
        assert [len(consumer.holding) for consumer in consumers] == [3, 3]


def test_a_consumer_holds_a_bounded_number_of_unfinished_messages():
    with opened("local", MemoryDisk(), unfinished_max=5) as queues:
        queues.producer("a").send_many([b"x"] * 8)
        consumer = queues.consumer("a", group="g")
        assert len(consumer.poll()) == 5
        with pytest.raises(TooManyRequests, match="unfinished_max"):
            consumer.poll()
        consumer.commit()
        assert len(consumer.poll()) == 3


def test_memory_is_bounded_by_the_cache():
    with opened("local", MemoryDisk(), cache_bytes_max=10_000) as queues:
        producer = queues.producer("a")
        for _ in range(2_000):
            producer.send(bytes(100))
        assert queues.engine.cache.bytes <= 10_000
        assert len(producer._queue.tail[1]) < 2_000


def test_a_folder_has_one_owner_and_one_engine(tmp_path):
    with evenq.local.open(tmp_path), pytest.raises(StoreLocked, match="in use by process"):
        evenq.local.open(tmp_path)
    with pytest.raises(StoreError, match="belongs to the engine 'local'"):
        evenq.local.open(tmp_path, engine="embedded")
    with evenq.local.open(tmp_path):
        pass


def test_a_folder_of_another_format_is_refused():
    from evenq.local import state_file

    disk = MemoryDisk()
    state_file.save(disk, {"format": 9, "engine": "local"})
    with pytest.raises(StoreError, match="format 9; this program reads format 1"):
        opened("local", disk)


def test_wrong_calls_are_refused_with_a_sentence(tmp_path):
    for wrong in ({"engine": "fast"}, {"engine": "memory", "path": tmp_path}, {"engine": "local"}):
        with pytest.raises(SettingsError):
            evenq.local.open(**wrong)
    with pytest.raises(ValueError, match="file_bytes is 1"):
        LocalOptions(file_bytes=1)
    with evenq.local.open(engine="memory") as queues:
        with pytest.raises(IllegalGroup):
            queues.consumer("a", group="a/b")
        with pytest.raises(BadRequest):
            queues.consumer(group="g")
        consumer = queues.consumer("a", group="g", name="me")
        with pytest.raises(PreconditionFailed, match="has an open consumer 'me'"):
            queues.consumer("a", group="g", name="me")
        with pytest.raises(BadRequest, match="count is 0; it must be at least 1"):
            consumer.poll(count=0)
        message = queues.producer("a").send(b"x")
        with pytest.raises(PreconditionFailed, match="does not hold"):
            consumer.ack(message)
        consumer.close()
        consumer.close()
        with pytest.raises(StoreError, match="closed"):
            consumer.poll()
        producer = queues.producer("a")
        producer.close()
        with pytest.raises(StoreError, match="closed"):
            producer.send(b"x")
        with pytest.raises(BadRequest, match="queues_max"):
            queues.engine.queue("a", 5_000)


@pytest.mark.parametrize("engine", ["memory", "embedded", "local"])
def test_after_close_everything_is_refused(engine):
    queues = evenq.local.open(engine="memory") if engine == "memory" else opened(engine, MemoryDisk())
    producer, consumer = queues.producer("a"), queues.consumer("a", group="g")
    queues.close()
    queues.close()
    for call in (consumer.poll, consumer.commit, consumer.ack):
        with pytest.raises(StoreError, match="closed"):
            call()
    consumer.close()
    with pytest.raises(StoreError, match="closed"):
        producer.send(b"x")
    with pytest.raises(StoreError, match="closed"):
        queues.producer("a")


@pytest.mark.parametrize("engine", ["embedded", "local"])
def test_a_send_that_is_interrupted_in_its_middle_ends_the_taking_and_loses_nothing(engine):
    class Interrupting(FaultDisk):
        armed = False

        def step(self, kind):
            if self.armed and kind == "write":
                self.armed = False
                raise KeyboardInterrupt
            return super().step(kind)

    disk = Interrupting()
    queues = opened(engine, disk)
    producer = queues.producer("a")
    producer.send(b"1")
    disk.armed = True
    with pytest.raises(KeyboardInterrupt):
        producer.send(b"2")
    with pytest.raises(StoreError, match="interrupted"):
        producer.send(b"3")
    with pytest.raises(StoreError, match="interrupted"):
        queues.close()
    disk.faults_of.clear()
    with opened(engine, disk) as queues:
        assert queues.engine.get_message("a", 0, 0).messages[0].body == b"1"
        assert queues.producer("a").send(b"4").offset == 1
