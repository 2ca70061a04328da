"""Operations of one turn are one record; what was recorded is the state after a restart."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from evenq_broker.core.state.records import Committed
from evenq_broker.loops.state.journal import Journal
from evenq_broker.runtime import Leadership
from evenq_broker.settings import StoreSettings

from evenq.errors import HaNotAvailable, PersistenceTimeout, StoreError, StoreFull


async def test_all_changes_of_one_turn_are_one_record_and_one_answer(stage: Any) -> None:
    broker = await stage.broker()
    before = broker.ledger.journal.records
    waits = [broker.ledger.journal.record(Committed(1, 1, queue, 5)) for queue in range(10)]
    assert len(set(map(id, waits))) == 1
    await stage.during(waits[0])
    assert broker.ledger.journal.records == before + 1


async def test_a_cancelled_caller_does_not_take_the_others_answer(stage: Any) -> None:
    broker = await stage.broker()

    async def commit(queue: int) -> None:
        await broker.ledger.journal.record(Committed(1, 1, queue, 5))

    first, second = asyncio.ensure_future(commit(0)), asyncio.ensure_future(commit(1))
    await asyncio.sleep(0)
    first.cancel()
    await stage.during(second)


async def test_a_store_that_stopped_fails_whoever_waits(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.ledger.store.close())
    with pytest.raises(StoreError):
        await stage.during(broker.ledger.journal.record(Committed(1, 1, 0, 5)))


async def test_a_snapshot_holds_everything_and_numbers_are_not_used_again(stage: Any, tmp_path: Path) -> None:
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


class Held:
    """Takes state records and is answered by the test."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.answers: list[asyncio.Future[None]] = []
        self.refusal: Exception | None = None

    def append_state(self, payload: bytes) -> asyncio.Future[None]:
        if self.refusal is not None:
            raise self.refusal
        self.records.append(payload)
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]


class Owner:
    """The runtime, as far as the journal asks it."""

    def __init__(self, *, copies: bool = False) -> None:
        self.error: BaseException | None = None
        self.leadership = Leadership(attach=(lambda _: None) if copies else None)

    def fail(self, error: BaseException) -> None:
        self.error = error


async def turn() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def journal_on(store: Held, owner: Owner | None = None) -> Journal:
    journal = Journal(cast("Any", owner or Owner()), None, bytes)
    journal.begin(cast("Any", store))
    return journal


async def test_what_was_recorded_is_safe_when_its_newest_record_is() -> None:
    store = Held()
    journal = journal_on(store)
    assert journal.safe() is None, "nothing was recorded"
    journal.record_encoded([b"a"])
    await turn()
    journal.record_encoded([b"b"])
    await turn()
    waiting = asyncio.ensure_future(journal.settled())
    store.answers[0].set_result(None)
    await turn()
    assert not waiting.done(), "only the older one is"
    store.answers[1].set_result(None)
    await waiting
    assert journal.safe() is None


async def test_who_rests_on_a_record_that_may_be_lost_is_told_so() -> None:
    store = Held()
    journal = journal_on(store)
    journal.record_encoded([b"a"])
    await turn()
    store.answers[0].set_exception(PersistenceTimeout("deposed"))
    await turn()
    for _ in range(2):
        with pytest.raises(PersistenceTimeout):
            await journal.settled()
    assert len(store.records) == 1, "it may be in the log: it is not written again"


async def test_what_was_refused_is_written_before_what_comes_next_and_once() -> None:
    store = Held()
    journal = journal_on(store)
    store.refusal = HaNotAvailable("1 of 2 copies")
    for op in (b"a", b"b"):
        with pytest.raises(HaNotAvailable):
            await journal.record_encoded([op])
    with pytest.raises(HaNotAvailable):
        await journal.settled()
    store.refusal = None
    journal.record_encoded([b"c"])
    await turn()
    journal.record_encoded([b"d"])
    await turn()
    assert [record[1:] for record in store.records] == [b"abc", b"d"]


async def test_what_a_full_disk_took_back_comes_first_also_in_the_turn_in_which_it_is_told() -> None:
    store = Held()
    journal = journal_on(store)
    journal.record_encoded([b"a"])
    await turn()
    journal.record_encoded([b"b"])
    await turn()
    journal.record_encoded([b"c"])  # its turn's end comes before those of the answers
    for answer in store.answers:
        answer.set_exception(StoreFull("full"))
    await turn()
    assert store.records[-1][1:] == b"abc"


async def test_a_change_that_its_caller_takes_back_is_not_written_later() -> None:
    store = Held()
    journal = journal_on(store)
    store.refusal = HaNotAvailable("1 of 2 copies")
    op = Committed(1, 1, 0, 5)
    journal.record_encoded([b"a"])
    taken_back = journal.record_once(op)
    journal.record_encoded([b"b"])
    with pytest.raises(HaNotAvailable):
        await taken_back
    store.refusal = None
    journal.flush()
    assert [record[1:] for record in store.records] == [b"ab"]


async def test_a_broker_that_is_owed_too_much_ends() -> None:
    store, owner = Held(), Owner()
    journal = journal_on(store, owner)
    store.refusal = HaNotAvailable("1 of 2 copies")
    for _ in range(8):
        with pytest.raises(HaNotAvailable):
            await journal.record_encoded([bytes(1 << 20)])
    assert owner.error is None
    with pytest.raises(HaNotAvailable):
        await journal.record_encoded([b"x"])
    assert isinstance(owner.error, StoreError)


async def test_a_leader_of_copies_confirms_by_a_record_of_its_own_that_it_still_leads() -> None:
    store = Held()
    journal = journal_on(store, Owner(copies=True))
    journal.record_encoded([b"a"])
    await turn()
    telling = [asyncio.ensure_future(journal.still_leads()) for _ in range(3)]
    await turn()
    assert store.records == [b"\x01a", b"\x01"], "one empty record for all that ask in a turn"
    store.answers[0].set_result(None)
    await turn()
    assert not any(one.done() for one in telling), "that record was on its way before they asked"
    store.answers[1].set_exception(HaNotAvailable("epoch 2 began"))
    for one in telling:
        with pytest.raises(HaNotAvailable):
            await one


async def test_who_tells_the_state_of_a_full_disk_waits_for_what_is_under_way_alone() -> None:
    store = Held()
    journal = journal_on(store, Owner(copies=True))
    journal.record_encoded([b"a"])
    await turn()
    store.refusal = StoreFull("no space")
    telling = asyncio.ensure_future(journal.still_leads())
    await turn()
    store.answers[0].set_result(None)
    await telling


async def test_one_copy_writes_nothing_to_tell_its_state() -> None:
    store = Held()
    journal = journal_on(store)
    await journal.still_leads()
    assert store.records == []


async def test_a_group_with_messages_follows_what_was_recorded_before_and_is_not_owed() -> None:
    store: Any = Held()
    appended: list[tuple[Any, bytes]] = []

    def append(messages: Any, *, state: bytes) -> asyncio.Future[None]:
        appended.append((messages, state))
        if store.refusal is not None:
            raise store.refusal
        store.records.append(state)
        return asyncio.get_running_loop().create_future()

    store.append = append
    journal = journal_on(store)
    journal.record_encoded([b"a"])
    await turn()
    store.answers[0].set_exception(StoreFull("full"))  # the journal was not notified yet
    journal.record_encoded([b"b"])
    journal.append(["message"], [b"c", b"d"])  # type: ignore[list-item]
    assert [record[1:] for record in store.records] == [b"a", b"ab", b"cd"]
    assert appended[0][0] == ["message"]
    store.refusal = HaNotAvailable("1 of 2 copies")
    with pytest.raises(HaNotAvailable):
        journal.append([], [b"e"])
    store.refusal = None
    journal.record_encoded([b"f"])
    await turn()
    assert store.records[-1][1:] == b"f"
