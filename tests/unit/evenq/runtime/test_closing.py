"""A `with` block closes what it was given, after an error too."""

import pytest

from evenq.runtime.closing import Closing


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
