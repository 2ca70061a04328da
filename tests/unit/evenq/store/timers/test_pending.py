"""The structure of pending timers agrees with a plain dictionary, whatever is spilled, merged, frozen or given back."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from evenq.errors import BadRequest
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.timers import manifest, runs
from evenq.store.timers.keys import due_of, id_of, key_of, kind_of
from evenq.store.timers.merging import ScanJob
from evenq.store.timers.pending import PendingTimers

SIZES = {"table_max": 5, "ahead": 512, "runs_max": 2}


class Steps:
    """A job that is carried out step by step, as on a thread."""

    def __init__(self, job, disk):
        self.job = job
        self.steps = job.steps(disk)

    def go_on(self):
        return next(self.steps, self) is not self


class PendingMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.disk = MemoryDisk()
        self.pending = PendingTimers(**SIZES)
        self.model = {}
        self.past = {}
        self.taken = {}
        self.held = set()
        self.now = 1_000
        self.next_id = 0
        self.writing = None
        self.reading = None
        self.fired = set()

    @rule(ahead_ms=st.integers(-50, 300), count=st.integers(1, 12), gap=st.integers(1, 3))
    def put(self, ahead_ms, count, gap):
        for number in range(count):
            self.next_id += gap
            due_ms = self.now + ahead_ms + number
            self.pending.put(due_ms, self.next_id, 1)
            self.model[self.next_id] = due_ms

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def end(self, data):
        timer_id = data.draw(st.sampled_from(sorted(self.model)))
        self.ended(timer_id)
        self.taken.pop(timer_id, None)

    def ended(self, timer_id):
        self.pending.end(timer_id)
        self.past[timer_id] = self.model.pop(timer_id)

    @rule(count=st.integers(1, 8))
    def due(self, count):
        keys = self.pending.due(self.now, count)
        for key in keys:
            assert id_of(key) not in self.taken
            assert self.model[id_of(key)] == due_of(key) <= self.now
            self.taken[id_of(key)] = key
        assert len(keys) <= count
        if not self.reading and not self.pending.read_job_needed():
            left = [
                timer_id
                for timer_id, due in self.model.items()
                if due <= self.now and timer_id not in {*self.taken, *self.held}
            ]
            assert not left or len(keys) == count

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), fire=st.booleans())
    def settle(self, data, fire):
        for timer_id in data.draw(st.sets(st.sampled_from(sorted(self.taken)))):
            key = self.taken.pop(timer_id)
            if fire:
                assert timer_id not in self.fired
                self.fired.add(timer_id)
                self.ended(timer_id)
            else:
                self.pending.give_back([key])

    @rule(ms=st.integers(-100, 200))
    def clock(self, ms):
        self.now += ms

    @rule(steps=st.integers(1, 3))
    def write(self, steps):
        if self.writing is None:
            job = self.pending.write_job()
            if job is None:
                return
            self.writing = Steps(job, self.disk)
        for _ in range(steps):
            if not self.writing.go_on():
                self.pending.write_done(self.writing.job)
                self.writing = None
                return

    @rule()
    def write_fails(self):
        if self.writing is not None:
            self.pending.write_failed()
            self.writing = None

    @rule()
    def read(self):
        if self.reading is None:
            job = self.pending.read_job()
            self.reading = Steps(job, self.disk) if job else None
        elif not self.reading.go_on():
            self.pending.read_done(self.reading.job)
            self.reading = None

    @precondition(lambda self: self.model or self.past)
    @rule(data=st.data(), cancel=st.booleans())
    def hold(self, data, cancel):
        """Some of the timers have ended, and a search may see their dead entries before these are passed or merged."""
        dues = self.past | self.model
        chosen = data.draw(st.sets(st.sampled_from(sorted(dues)), min_size=1))
        watch = self.pending.watch()
        near = [key for timer_id in chosen if (key := self.pending.in_memory(timer_id))]
        held = self.pending.hold(near, watch)
        self.held = {id_of(key) for key in held}
        far = [key_of(dues[i], i, 1) for i in chosen if i not in {id_of(key) for key in near}]
        scan = ScanJob(self.pending.used_runs(), keys=far)
        list(scan.steps(self.disk))
        if data.draw(st.booleans()):
            self.due(5)
        if data.draw(st.booleans()):
            self.write(9)
        held += self.pending.hold(scan.found, watch)
        self.pending.unwatch(watch)
        found = {id_of(key) for key in held}
        assert len(found) == len(held)
        assert found.isdisjoint(self.taken)
        assert found | set(self.taken) >= chosen & self.model.keys()
        assert found <= self.model.keys()
        self.held = found
        self.due(8)
        self.held = set()
        if cancel:
            for timer_id in found:
                self.ended(timer_id)
        else:
            self.pending.release(held)

    @rule(below=st.integers(0, 200))
    def scan_below(self, below):
        scan = ScanJob(self.pending.used_runs(), below=below, count_max=10_000, skip=self.pending.ended_ids())
        list(scan.steps(self.disk))
        found = {id_of(key) for key in [*scan.found, *self.pending.below(below)]} - set(self.taken)
        wanted = {timer_id for timer_id in self.model if timer_id < below} - set(self.taken)
        assert found == wanted

    @rule()
    def restart(self):
        frozen = manifest.unpack(manifest.pack(self.pending.freeze()))
        self.pending = PendingTimers(**SIZES)
        self.pending.restore(frozen, [runs.verify(self.disk, run.number, count=run.count) for run in frozen.runs])
        self.writing = self.reading = None
        self.taken.clear()
        self.pending.begin_runs_at(max(runs.numbers(self.disk), default=0) + 1)

    @invariant()
    def agrees(self):
        self.pending.check()
        assert len(self.pending) == len(self.model)
        waiting = {timer_id: due for timer_id, due in self.model.items() if timer_id not in self.taken}
        next_ms = self.pending.next_due_ms()
        if waiting:
            assert next_ms <= min(waiting.values())
        lowest = self.pending.lowest_id()
        assert not self.model or lowest <= min(self.model)
        assert self.model or self.pending.memory_count >= 0


PendingMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
TestPending = pytest.mark.slow(PendingMachine.TestCase)  # 120 histories


def test_runs_far_larger_than_what_is_read_ahead_give_every_timer_once_and_in_time():
    disk, rng = MemoryDisk(), random.Random(7)
    pending = PendingTimers(table_max=1_500, ahead=512, runs_max=3)
    model, order = {}, []
    now = 0
    for timer_id in range(1, 20_001):
        due = rng.choice([rng.randint(0, 100), rng.randint(0, 20_000), rng.randint(15_000, 40_000)])
        model[timer_id] = due
        pending.put(due, timer_id, timer_id % 256)
        if timer_id % 3 == 0:
            gone = rng.choice(list(model)) if timer_id % 300 == 0 else timer_id
            pending.end(gone)
            del model[gone]
        if timer_id % 100 == 0:
            _carry_out(pending, disk)
            now += rng.randint(0, 60)
            order += _fire(pending, disk, model, now)
    assert pending.memory_count < 1_500 + 512 * 5 + 3_000
    while model:
        now += 500
        order += _fire(pending, disk, model, now)
    assert len(pending) == 0
    assert pending.next_due_ms() is None
    assert pending.lowest_id() is None
    assert len(set(order)) == len(order)
    _carry_out(pending, disk)
    assert pending.used_runs() == []


def _carry_out(pending, disk):
    while job := pending.write_job():
        for _ in job.steps(disk):
            pass
        pending.write_done(job)


def _fire(pending, disk, model, now):
    fired = []
    while True:
        while job := pending.read_job():
            for _ in job.steps(disk):
                pass
            pending.read_done(job)
        keys = pending.due(now, 100)
        if not keys:
            assert not [timer_id for timer_id, due in model.items() if due <= now]
            return fired
        assert keys == sorted(keys)
        for key in keys:
            assert model.pop(id_of(key)) == due_of(key) <= now
            assert kind_of(key) == id_of(key) % 256
            pending.end(id_of(key))
            fired.append(id_of(key))


def test_a_timer_in_the_past_and_one_before_1970_are_due_at_once():
    pending = PendingTimers()
    pending.put(-5, 1, 1)
    pending.put(10, 2, 1)
    assert [id_of(key) for key in pending.due(10, 10)] == [1, 2]


def test_a_due_time_over_what_a_frame_holds_is_refused_with_its_limit():
    with pytest.raises(BadRequest, match="9223372036854775808 ms exceeds the largest one"):
        PendingTimers().put(1 << 63, 1, 1)


def test_ended_timers_leave_memory_with_their_entries_when_runs_are_merged():
    disk, pending = MemoryDisk(), PendingTimers(table_max=1_000, ahead=512)
    for timer_id in range(1, 5_001):
        pending.put(10_000_000 + timer_id, timer_id, 1)
        _carry_out(pending, disk)
    for timer_id in range(1, 4_901):
        pending.end(timer_id)
        _carry_out(pending, disk)
    assert len(pending) == 100
    assert len(pending.ended_ids()) <= 500
    assert sum(file.count - used for file, used in pending.used_runs()) <= 600


@pytest.mark.parametrize("merged", [False, True])
def test_a_search_that_read_a_dead_entry_holds_nothing_when_the_entry_is_gone(merged):
    """A timer fired while its run was merged, so the new run had a dead entry. A cancel that read it, and ended after
    the entry was passed or left out of a next run, said that the timer would never fire.
    """
    disk, pending = MemoryDisk(), PendingTimers(table_max=2, runs_max=1)
    for timer_id in (1, 2):
        pending.put(timer_id, timer_id, 1)
    _carry_out(pending, disk)
    for timer_id in (3, 4):
        pending.put(timer_id, timer_id, 1)
    spill = Steps(pending.write_job(), disk)
    while spill.go_on():
        pass
    pending.write_done(spill.job)
    merge = Steps(pending.write_job(), disk)
    (first,) = pending.due(1, 1)
    pending.end(1)
    while merge.go_on():
        pass
    pending.write_done(merge.job)
    watch = pending.watch()
    scan = ScanJob(pending.used_runs(), keys=[first])
    list(scan.steps(disk))
    assert scan.found == [first]
    if merged:
        for timer_id in (5, 6):
            pending.put(timer_id, timer_id, 1)
        _carry_out(pending, disk)
    else:
        assert pending.next_ready_ms() == 2
    assert pending.hold(scan.found, watch) == []
    assert len(pending) == (5 if merged else 3)


def test_a_failed_write_loses_nothing_and_is_tried_again():
    pending = PendingTimers(table_max=10)
    for timer_id in range(1, 26):
        pending.put(timer_id, timer_id, 1)
    assert pending.write_job() is not None
    assert pending.write_job() is None
    first = pending.due(3, 10)
    pending.write_failed()
    job = pending.write_job()
    disk = MemoryDisk()
    for _ in job.steps(disk):
        pass
    pending.write_done(job)
    assert [id_of(key) for key in first + pending.due(100, 100)] == list(range(1, 26))
