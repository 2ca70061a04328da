"""Links are read while the owner has room."""

from __future__ import annotations

import asyncio

import pytest
from evenq_proofs.bytes_in_hand import BytesInHand


async def test_who_has_more_than_the_limit_in_hand_is_waited_for() -> None:
    hand = BytesInHand(100)
    await hand.room()
    hand.take(100)
    await asyncio.wait_for(hand.room(), 60)
    hand.take(50)
    waiting = [asyncio.ensure_future(hand.room()) for _ in range(2)]
    hand.give(40)
    await asyncio.sleep(0)
    assert not any(one.done() for one in waiting)
    hand.give(10)
    await asyncio.wait_for(asyncio.gather(*waiting), 60)


def test_nonsense_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="over 0"):
        BytesInHand(0)
    with pytest.raises(AssertionError, match="not in hand"):
        BytesInHand(5).give(1)
