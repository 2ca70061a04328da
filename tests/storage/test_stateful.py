"""Any mixture of everything a store can do and suffer agrees with lists: `evenq_proofs.storage.story`.

Every day some seconds, the same each time; EVENQ_TEST_SCALE=full takes at least 20,000 steps and EVENQ_TEST_SEED others.
A failure prints its steps, what was left after each crash, and the command that runs it again.
"""

from __future__ import annotations

import asyncio
import logging
import os

import pytest
from evenq_proofs.fault_disk import Keep
from evenq_proofs.storage.session import TIMER_QUEUE
from evenq_proofs.storage.small_parts import small_parts
from evenq_proofs.storage.story import Kept, Story
from evenq_proofs.storage.workload import QUEUES
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from evenq.store import FlushMode

FULL = os.environ.get("EVENQ_TEST_SCALE") == "full"
SEED = int(os.environ.get("EVENQ_TEST_SEED", "1"))
EXAMPLES, STEPS = (260, 50) if FULL else (50, 30)  # of each flush mode
AGAIN = f"EVENQ_TEST_SCALE={'full' if FULL else 'fast'} EVENQ_TEST_SEED={SEED} pytest tests/storage/test_stateful.py"
PHASES = [Phase.generate, Phase.shrink] if FULL or "EVENQ_TEST_SHRINK" in os.environ else [Phase.generate]
"""Making a failure small takes minutes, so only when asked for."""

QUEUE = st.sampled_from([*QUEUES[:3], *QUEUES])  # what holds all files is rarer
ANY_QUEUE = st.sampled_from([*QUEUES, TIMER_QUEUE, (1, 9)])
SIZE = st.sampled_from([0, 30, 200, 600, 1_500, 5_000])
CALL = st.lists(st.tuples(QUEUE, SIZE), min_size=1, max_size=6)
DELAY = st.sampled_from([-5, 0, 1, 700, 5_000, 30_000, 3_600_000])
OFFSET = st.one_of(st.integers(-1, 80), st.just(10_000))
KEPT = [Kept(), Kept(), Kept(((2, 5_000), (7, 0), (9, 60_000))), Kept(automatic=False)]


async def _end_tasks():
    """Of a store that was left open by a failure."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class StoreMachine(RuleBasedStateMachine):
    """Rules are steps of a story."""

    flush = FlushMode.SYNC
    steps = 0

    @initialize(kept=st.sampled_from(KEPT), cache=st.sampled_from([0, 3_000, 1 << 20]))
    def begin(self, kept, cache):
        self.loop = asyncio.new_event_loop()
        self.story = Story(self.flush, kept, cache)
        self._step(f"a store, {self.flush} mode, {kept}, {cache} bytes of cache", self.story.begin())

    def teardown(self):
        if not hasattr(self, "story"):
            return
        try:
            if not self.story.failed:
                self.loop.run_until_complete(self.story.end())
        finally:
            type(self).steps += self.story.steps
            self.loop.run_until_complete(_end_tasks())
            self.loop.close()

    def _step(self, line, work):
        self.loop.run_until_complete(self.story.step(line, work))

    @rule(calls=st.lists(CALL, min_size=1, max_size=4), state=st.booleans())
    def append(self, calls, state):
        self._step(f"append {calls}, state {state}", self.story.append(calls, state=state))

    @rule(call=CALL, state=st.booleans(), delays=st.lists(DELAY, min_size=1, max_size=6), ends=st.integers(0, 3))
    def timers(self, call, state, delays, ends):
        work = self.story.append([call], state=state, delays_ms=delays, ends=ends)
        self._step(f"append {call}, state {state}, timers in {delays} ms, {ends} timers end", work)

    @rule(count=st.integers(1, 5))
    def states(self, count):
        self._step(f"{count} state records", self.story.states(count))

    @rule(index=st.integers(0, 100))
    def cancel(self, index):
        self._step(f"cancel timer {index}", self.story.cancel(index))

    @rule(what=st.sampled_from(["checkpoint", "snapshot", "flush"]))
    def save(self, what):
        self._step(what, self.story.save(what))

    @rule(jump=st.sampled_from([0, 0, 0, -7_000, 25_000]), advance=st.sampled_from([1, 300, 700, 5_500]))
    def time(self, jump, advance):
        self._step(f"the clock jumps {jump} ms, {advance} ms pass", self.story.time(jump, advance))

    @rule()
    def clean(self):
        self._step("clean", self.story.clean())

    @rule()
    def expire(self):
        self._step("all gets old", self.story.expire())

    @rule(hard=st.booleans(), after=st.integers(0, 4))
    def fill(self, hard, after):
        self._step(
            f"the disk fills, {f'hard, after {after}' if hard else 'softly'}", self.story.fill(hard=hard, after=after)
        )

    @rule()
    def free(self):
        self._step("space again", self.story.free())

    @rule()
    def reopen(self):
        self._step("stop and start", self.story.reopen())

    @rule(keep=st.sampled_from(Keep), after=st.sampled_from([0, 0, 1, 2, 3, 5, 9, 20]))
    def crash(self, keep, after):
        self._step(f"crash after {after} changes, left is {keep}", self.story.crash(keep, after))

    @rule(
        queue=ANY_QUEUE,
        start=OFFSET,
        count=st.integers(0, 40),
        size=st.integers(1, 5_000),
        tags=st.sets(st.integers(-2, 2)),
    )
    def read(self, queue, start, count, size, tags):
        work = self.story.read(queue, max(0, start), count, size, frozenset(tags) or None)
        self._step(f"read {queue} from {start}, {count} messages, {size} bytes, tags {tags}", work)

    @rule(queue=ANY_QUEUE, offsets=st.lists(OFFSET, max_size=6))
    def read_at(self, queue, offsets):
        self._step(f"read {queue} at {offsets}", self.story.read_at(queue, offsets))

    @rule(queue=ANY_QUEUE, index=st.integers(0, 100), delta=st.sampled_from([-1_000_000, -1, 0, 1, 1_000_000]))
    def offset_at(self, queue, index, delta):
        self._step(f"offset of {queue} at the time of {index} {delta:+} ms", self.story.offset_at(queue, index, delta))

    @rule(
        topic=st.sampled_from([1, 2, 7, 9, 4]), number=st.integers(0, 12), begin=st.integers(0, 60),
        end=st.integers(0, 60), count=st.sampled_from([1, 3, 100]),
    )  # fmt: skip
    def find(self, topic, number, begin, end, count):
        self._step(
            f"find {number} in {topic}, {begin}..{end}, {count}", self.story.find(topic, number, begin, end, count)
        )


class AsyncMachine(StoreMachine):
    """The same store that answers before the sync."""

    flush = FlushMode.ASYNC
    steps = 0


@pytest.mark.timeout(3_600 if FULL else 300)
@pytest.mark.parametrize("machine", [StoreMachine, AsyncMachine])
def test_whatever_happens_to_a_store_it_agrees_with_lists(machine):
    checks = list(HealthCheck)
    options = settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, suppress_health_check=checks, database=None,
        phases=PHASES, report_multiple_bugs=False,
    )  # fmt: skip
    logging.disable(logging.CRITICAL)
    try:
        with small_parts():
            run_state_machine_as_test(seed(SEED)(machine), settings=options)
    except AssertionError as error:
        error.add_note(f"Again: {AGAIN} (EVENQ_TEST_SHRINK=1 makes the story short)")
        raise
    finally:
        logging.disable(logging.NOTSET)
    assert not FULL or machine.steps >= 10_000
