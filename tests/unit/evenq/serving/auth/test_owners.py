"""A client id is its user's while its client lives."""

from contextlib import nullcontext

import pytest

from evenq.errors import Forbidden, TooManyRequests
from evenq.serving.auth.guard import ClientOwners


def test_an_id_belongs_to_who_came_first_until_it_is_silent_or_says_farewell() -> None:
    owners = ClientOwners(silence_ms=100)
    owners.claim("c", "ann", 0)
    with pytest.raises(Forbidden, match="'c' is another user's"):
        owners.claim("c", "ben", 99)
    owners.claim("c", "ann", 99)
    with pytest.raises(Forbidden):
        owners.claim("c", "ben", 150)
    owners.claim("c", "ben", 199)
    with pytest.raises(Forbidden):
        owners.claim("c", "ann", 200)
    owners.leave("c")
    owners.claim("c", "ann", 200)
    owners.leave("unknown")


def test_nobody_takes_an_id_over_by_coming_with_very_many() -> None:
    owners = ClientOwners(silence_ms=100, user_max=5, owners_max=8)
    owners.claim("victim", "ann", 0)
    for number in range(20):
        with nullcontext() if number < 5 else pytest.raises(TooManyRequests, match="the limit is auth"):
            owners.claim(f"flood-{number}", "ben", 1)
    assert len(owners) == 6
    with pytest.raises(Forbidden):
        owners.claim("victim", "ben", 2)
    owners.claim("other", "cid", 2)
    owners.claim("flood-0", "ben", 3)


def test_the_total_is_bounded_and_refuses_what_is_new() -> None:
    owners = ClientOwners(silence_ms=100, user_max=2, owners_max=2)
    owners.claim("a", "ann", 0)
    owners.claim("b", "ben", 0)
    with pytest.raises(TooManyRequests, match="try again"):
        owners.claim("c", "cid", 0)
    owners.claim("a", "ann", 1)
    owners.claim("c", "cid", 100)  # the silent one's place
    with pytest.raises(Forbidden):
        owners.claim("a", "ben", 100)


def test_an_id_that_goes_over_to_another_user_counts_at_the_new_one() -> None:
    owners = ClientOwners(silence_ms=100, user_max=1)
    owners.claim("a", "ann", 0)
    owners.claim("a", "ben", 100)
    owners.claim("b", "ann", 100)
    with pytest.raises(TooManyRequests):
        owners.claim("c", "ben", 101)
