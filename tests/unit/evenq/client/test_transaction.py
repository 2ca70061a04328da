"""A transaction in its user's hands: the block's end decides, once."""

from __future__ import annotations

import asyncio

import pytest

from evenq.client.core.transactions.half_messages import HalfMessage
from evenq.client.transaction import AsyncTransaction, Transaction, resolution_of
from evenq.errors import BadRequest, ConnectionFailed, RequestTimeout
from evenq.model import TransactionResolution

COMMIT, ROLLBACK, UNKNOWN = TransactionResolution
HALF = HalfMessage("t", "id", "t1.a.00", "a:1")


class Resolutions:
    def __init__(self, error: Exception | None = None) -> None:
        self.resolutions: list[TransactionResolution] = []
        self.error = error

    def __call__(self, half: HalfMessage, resolution: TransactionResolution) -> None:
        assert half is HALF
        self.resolutions.append(resolution)
        if self.error is not None:
            raise self.error

    async def later(self, half: HalfMessage, resolution: TransactionResolution) -> None:
        self(half, resolution)


def test_a_block_that_ends_well_commits_and_one_that_raises_rolls_back() -> None:
    result = Resolutions()
    with Transaction(HALF, result) as good:
        assert (good.message_id, good.transaction_id, good.resolution) == ("id", "t1.a.00", None)
    assert good.resolution is COMMIT
    with pytest.raises(KeyError), Transaction(HALF, result) as bad:
        raise KeyError("the order does not exist")
    assert bad.resolution is ROLLBACK
    assert result.resolutions == [COMMIT, ROLLBACK]


def test_a_decision_in_the_block_stands_and_another_one_is_refused() -> None:
    result = Resolutions()
    with Transaction(HALF, result) as transaction:
        transaction.rollback()
        with pytest.raises(BadRequest, match="ended with ROLLBACK"):
            transaction.commit()
        transaction.rollback()  # again is no error
    assert result.resolutions == [ROLLBACK, ROLLBACK]


def test_a_rollback_that_cannot_be_told_does_not_hide_the_users_error() -> None:
    with pytest.raises(KeyError), Transaction(HALF, Resolutions(ConnectionFailed("no server there"))):
        raise KeyError("the order does not exist")


def test_a_commit_that_cannot_be_told_leaves_it_open() -> None:
    transaction = Transaction(HALF, Resolutions(ConnectionFailed("no server there")))
    with pytest.raises(ConnectionFailed):
        transaction.commit()
    assert transaction.resolution is None


def test_the_end_of_the_block_sends_nothing_after_a_decision_in_it_whose_answer_was_lost() -> None:
    lost = Resolutions(RequestTimeout("no answer"))
    with pytest.raises(RequestTimeout), Transaction(HALF, lost) as transaction:
        transaction.commit()
    assert (lost.resolutions, transaction.resolution) == ([COMMIT], None)
    lost = Resolutions(RequestTimeout("no answer"))
    with Transaction(HALF, lost) as transaction, pytest.raises(RequestTimeout):
        transaction.rollback()
    assert (lost.resolutions, transaction.resolution) == ([ROLLBACK], None)


async def test_of_the_asyncio_face_the_end_of_the_block_sends_nothing_after_a_lost_answer_either() -> None:
    lost = Resolutions(RequestTimeout("no answer"))
    with pytest.raises(RequestTimeout):
        async with AsyncTransaction(HALF, lost.later) as transaction:
            await transaction.commit()
    assert (lost.resolutions, transaction.resolution) == ([COMMIT], None)
    lost = Resolutions(RequestTimeout("no answer"))
    async with AsyncTransaction(HALF, lost.later) as transaction:
        with pytest.raises(RequestTimeout):
            await transaction.rollback()
    assert (lost.resolutions, transaction.resolution) == ([ROLLBACK], None)


async def test_a_cancelled_commit_is_not_followed_by_a_rollback() -> None:
    sent = Resolutions()
    begun = asyncio.Event()

    async def unanswered(half: HalfMessage, resolution: TransactionResolution) -> None:
        sent(half, resolution)
        begun.set()
        await asyncio.Event().wait()

    async def commit() -> None:
        async with AsyncTransaction(HALF, unanswered) as transaction:
            await transaction.commit()

    task = asyncio.create_task(commit())
    await begun.wait()
    task.cancel()
    _, pending = await asyncio.wait({task}, timeout=5)
    assert not pending, "the end of the block sent a decision and waits for its answer"
    assert sent.resolutions == [COMMIT]


async def test_the_asyncio_face_does_the_same() -> None:
    result = Resolutions()
    async with AsyncTransaction(HALF, result.later) as good:
        pass
    with pytest.raises(KeyError):
        async with AsyncTransaction(HALF, result.later) as bad:
            raise KeyError("the order does not exist")
    assert (good.resolution, bad.resolution) == (COMMIT, ROLLBACK)
    assert result.resolutions == [COMMIT, ROLLBACK]
    failing = Resolutions(ConnectionFailed("no server there"))
    with pytest.raises(KeyError):
        async with AsyncTransaction(HALF, failing.later):
            raise KeyError("the order does not exist")


async def test_of_the_asyncio_face_a_decision_stands_too_and_one_that_was_not_told_leaves_it_open() -> None:
    result = Resolutions()
    async with AsyncTransaction(HALF, result.later) as transaction:
        await transaction.rollback()
        with pytest.raises(BadRequest, match="ended with ROLLBACK"):
            await transaction.commit()
    with pytest.raises(KeyError):  # noqa: PT012 - the block is what is tested
        async with AsyncTransaction(HALF, result.later) as other:
            await other.commit()
            raise KeyError("after the decision")
    assert result.resolutions == [ROLLBACK, COMMIT]
    open_still = AsyncTransaction(HALF, Resolutions(ConnectionFailed("no server there")).later)
    with pytest.raises(ConnectionFailed):
        await open_still.commit()
    assert open_still.resolution is None


async def test_a_checker_says_a_resolution_at_once_or_later_and_nothing_else() -> None:
    async def later() -> TransactionResolution:
        return ROLLBACK

    assert await resolution_of(UNKNOWN) is UNKNOWN
    assert await resolution_of(later()) is ROLLBACK
    for wrong in (None, True, "COMMIT"):
        with pytest.raises(BadRequest, match="TransactionResolution"):
            await resolution_of(wrong)
