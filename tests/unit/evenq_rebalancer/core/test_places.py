"""Own labels win over what is known of addresses."""

from __future__ import annotations

from evenq_rebalancer.core.places import MemberPlace, Places


def test_labels_win_and_addresses_help_where_there_are_none() -> None:
    places = Places(
        lambda address: f"zone of {address}", lambda address: MemberPlace(f"controller of {address}", leaving=False)
    )
    assert places.zone("mine", "10.0.0.1") == "mine"
    assert places.zone("", "10.0.0.1") == "zone of 10.0.0.1"
    assert places.zone("", "") == ""
    assert places.place("web-0", "10.0.0.1") == MemberPlace("instance web-0", leaving=True)
    assert places.place("", "10.0.0.1") == MemberPlace("controller of 10.0.0.1", leaving=False)
    assert places.place("", "") is None


def test_alone_nothing_is_known_by_address() -> None:
    assert Places().zone("", "10.0.0.1") == ""
    assert Places().place("", "10.0.0.1") is None
