"""Operations of one turn are one record; what was recorded is the state after a restart."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.core.state.records import Committed
from evenq_broker.settings import StoreSettings

from evenq.errors import StoreError

Run = Callable[[Callable[[Any], Awaitable[None]]], None]


def test_all_changes_of_one_turn_are_one_record_and_one_answer(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()
        before = broker.ledger.journal.records
        waits = [broker.ledger.journal.record(Committed(1, 1, queue, 5)) for queue in range(10)]
        assert len(set(map(id, waits))) == 1
        await stage.during(waits[0])
        assert broker.ledger.journal.records == before + 1

    run(story)


def test_a_cancelled_caller_does_not_take_the_others_answer(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()

        async def commit(queue: int) -> None:
            await broker.ledger.journal.record(Committed(1, 1, queue, 5))

        first, second = asyncio.ensure_future(commit(0)), asyncio.ensure_future(commit(1))
        await asyncio.sleep(0)
        first.cancel()
        await stage.during(second)

    run(story)


def test_a_store_that_stopped_fails_whoever_waits(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()
        await stage.during(broker.ledger.store.close())
        with pytest.raises(StoreError):
            await stage.during(broker.ledger.journal.record(Committed(1, 1, 0, 5)))

    run(story)


def test_a_snapshot_holds_everything_and_numbers_are_not_used_again(run: Run, tmp_path: Path) -> None:
    async def story(stage: Any) -> None:
        store = StoreSettings(path=tmp_path, disk_free_min_bytes=0, disk_used_max_ratio=1, snapshot_log_bytes=1 << 10)
        broker = await stage.broker(store=store)
        await stage.during(broker.catalog.create_topic("kept", queues=3))
        await stage.during(broker.catalog.create_topic("gone"))
        group = await stage.during(broker.catalog.create_group("g", ordered=True, max_attempts=5))
        await stage.during(broker.catalog.delete_topic("gone"))
        for offset in range(200):  # enough for a snapshot in between
            if broker.ledger.progress.commit(group.group_id, 1, 0, offset):
                await stage.during(broker.ledger.journal.record(Committed(group.group_id, 1, 0, offset)))
        await stage.until(lambda: any((tmp_path / "snapshot").iterdir()))
        key = broker.ledger.key
        await stage.during(broker.close())
        again = await stage.broker(store=store)
        assert again.catalog.topics.all() == broker.catalog.topics.all()
        assert again.catalog.groups.all() == [group]
        assert again.catalog.topics.next_id() == 3
        assert again.ledger.progress.committed(group.group_id, 1, 0) == 199
        assert again.ledger.key == key

    run(story)
