"""A client id is its user's while its client lives."""

from evenq.serving.owners import ClientOwners


def test_an_id_belongs_to_who_came_first_until_it_is_silent_or_says_farewell() -> None:
    owners = ClientOwners(silence_ms=100)
    assert owners.claim("c", "ann", 0)
    assert not owners.claim("c", "ben", 99)
    assert owners.claim("c", "ann", 99)
    assert not owners.claim("c", "ben", 150)
    assert owners.claim("c", "ben", 199)
    assert not owners.claim("c", "ann", 200)
    owners.leave("c")
    assert owners.claim("c", "ann", 200)
    owners.leave("unknown")


def test_the_longest_silent_one_makes_room() -> None:
    owners = ClientOwners(owners_max=2)
    for client, user in (("a", "ann"), ("b", "ann"), ("a", "ann"), ("c", "ann")):
        assert owners.claim(client, user, 0)
    assert len(owners) == 2
    assert not owners.claim("a", "ben", 0)
    assert owners.claim("b", "ben", 0)
