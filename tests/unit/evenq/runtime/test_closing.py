"""A `with` block closes what it was given, after an error too."""

import asyncio

import pytest

from evenq.runtime.closing import AsyncClosing, Closing


class _Thing(Closing):
    closed = False

    def close(self) -> None:
        self.closed = True


def test_the_block_gets_the_thing_itself_and_closes_it_at_its_end() -> None:
    thing = _Thing()
    with thing as inside:
        assert inside is thing
        assert not thing.closed
    assert thing.closed


def test_an_error_in_the_block_closes_the_thing_and_goes_on() -> None:
    thing = _Thing()
    with pytest.raises(ValueError, match="inside"), thing:
        raise ValueError("inside")
    assert thing.closed


class AsyncDoor(AsyncClosing):
    def __init__(self) -> None:
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("error", [None, KeyError("in the block")])
def test_an_async_block_closes_it_after_success_and_failure(error: Exception | None) -> None:
    door = AsyncDoor()

    async def story() -> None:
        async with door as same:
            assert same is door
            assert not door.closed
            if error is not None:
                raise error

    if error is None:
        asyncio.run(story())
    else:
        with pytest.raises(KeyError):
            asyncio.run(story())
    assert door.closed == 1
