"""Any mixture of appends, reads, stops and crashes agrees with lists in memory."""

from __future__ import annotations

import asyncio
import random

import pytest
from evenq_proofs.fault_disk import FaultDisk, Keep
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenq.store import Append, FlushMode

QUEUE = st.integers(0, 2)
SIZE = st.sampled_from([0, 1, 50, 400, 3_000])
TAG = st.integers(0, 3)
CALL = st.lists(st.tuples(QUEUE, SIZE, TAG), min_size=1, max_size=4)
STEP = st.one_of(
    st.tuples(st.just("append"), st.lists(CALL, min_size=1, max_size=5)),
    st.tuples(st.just("state"), st.integers(0, 300)),
    st.tuples(
        st.just("read"), st.tuples(QUEUE, st.integers(0, 60), st.integers(1, 40), st.integers(1, 5_000), st.sets(TAG))
    ),
    st.tuples(st.just("at"), st.tuples(QUEUE, st.lists(st.integers(-2, 60), max_size=6))),
    st.tuples(st.sampled_from(["checkpoint", "snapshot", "restart", "kill", "power"]), st.none()),
)


class Model:
    """What the store should hold."""

    def __init__(self):
        self.queues = {0: [], 1: [], 2: []}
        self.states = []
        self.snapshot = 0
        self.number = 0


@pytest.mark.slow  # 250 histories; tests/storage/test_stateful.py plays some, too
@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=st.lists(STEP, max_size=25), cache=st.sampled_from([0, 2_000, 1 << 20]))
def test_the_store_agrees_with_lists(open_store, steps, cache):
    async def scenario():
        model = Model()
        disk = FaultDisk()
        options = {"flush": FlushMode.SYNC, "cache_bytes": cache, "segment_bytes": 4096}
        opened = await open_store(disk, **options)
        for kind, value in [*steps, ("kill", None), ("restart", None)]:
            if kind in ("restart", "kill", "power"):
                if kind != "restart":
                    disk = disk.crash(Keep.ALL if kind == "kill" else Keep.SOME, random.Random(len(steps)))
                await opened.store.close()
                opened = await open_store(disk, **options)
                assert opened.snapshots == ([b"%d" % model.snapshot] if model.snapshot else [])
                assert opened.states == model.states[model.snapshot :]
                for queue_id, messages in model.queues.items():
                    assert await opened.contents(1, queue_id) == [head for head, _ in messages]
            else:
                await STEPS[kind](opened.store, model, value)
        await opened.store.close()

    asyncio.run(scenario())


async def _append(store, model, calls):
    futures = []
    for call in calls:
        entries = []
        for queue_id, size, tag in call:
            head = b"%d" % model.number + b"." * size
            model.number += 1
            entries.append(Append(1, queue_id, tag, 0, head, b""))
            model.queues[queue_id].append((head, tag))
        futures.append(store.append(entries))
    await asyncio.gather(*futures)


async def _state(store, model, size):
    model.states.append(b"%d" % len(model.states) + b"." * size)
    await store.append_state(model.states[-1])


async def _read(store, model, value):
    queue_id, start, count, size, tags = value
    wanted = frozenset(tags) or None
    result = await store.read(1, queue_id, start, count_max=count, bytes_max=size, tag_hashes=wanted)
    messages = model.queues[queue_id]
    assert result.max_offset == len(messages)
    matching = [n for n in range(start, len(messages)) if wanted is None or messages[n][1] in wanted]
    found = [message.queue_offset for message in result.messages]
    assert found == matching[: len(found)]
    assert [message.head for message in result.messages] == [messages[n][0] for n in found]
    assert all(n in found for n in matching if n < result.next_offset), "a message was skipped"
    assert len(found) <= count
    assert sum(len(messages[n][0]) for n in found) <= size or len(found) == 1
    assert result.next_offset > start or start >= len(messages) or not count


async def _at(store, model, value):
    queue_id, offsets = value
    messages = model.queues[queue_id]
    found = await store.read_at(1, queue_id, offsets)
    wanted = [n for n in offsets if 0 <= n < len(messages)]
    assert [(m.queue_offset, m.head) for m in found] == [(n, messages[n][0]) for n in wanted]


async def _checkpoint(store, model, value):
    await store.checkpoint()


async def _snapshot(store, model, value):
    if model.states:
        model.snapshot = len(model.states)
        await store.save_snapshot(b"%d" % model.snapshot)


STEPS = {"append": _append, "state": _state, "read": _read, "at": _at, "checkpoint": _checkpoint, "snapshot": _snapshot}
