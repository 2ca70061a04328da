"""One text for one or several access points."""

import pytest

from evenq.client.core.routes.access_points import AccessPoints, access_points
from evenq.errors import IllegalAccessPoint


@pytest.mark.parametrize(
    ("text", "targets", "tls"),
    [
        ("a:8081", ["a:8081"], None),
        ("a:8081;b:8081", ["a:8081", "b:8081"], None),
        ("a:8081,b:8081", ["a:8081", "b:8081"], None),
        (" a:1 ; b:2 , a:1 ;", ["a:1", "b:2"], None),
        ("evenqs://a:1;b:2", ["a:1", "b:2"], True),
        ("evenqs://a:1,evenqs://b:2", ["a:1", "b:2"], True),
        ("EVENQ://a:1/", ["a:1"], False),
        ("[::1]:8081", ["[::1]:8081"], None),
    ],
)
def test_semicolons_and_commas_part_them_and_a_scheme_counts_for_all(
    text: str, targets: list[str], tls: bool | None
) -> None:
    points = access_points(text)
    assert (list(points.targets), points.tls) == (targets, tls)
    assert access_points(points.endpoint).targets == points.targets


def test_addresses_keep_their_scheme() -> None:
    assert access_points("evenqs://a:1;b:2").addresses == ["evenqs://a:1", "evenqs://b:2"]
    assert access_points("evenq://a:1").addresses == ["evenq://a:1"]
    assert access_points("a:1").addresses == ["a:1"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        (" ; , ", "is empty"),
        ("a", "'a' is not host:port"),
        ("a:1;b", "'b' is not host:port"),
        ("a:99999", "port of 1 to 65535"),
        ("http://a:1", "unknown scheme"),
        ("evenq://a:1;evenqs://b:1", "mixes"),
    ],
)
def test_what_is_none_is_named(text: str, words: str) -> None:
    with pytest.raises(IllegalAccessPoint, match=words):
        access_points(text)


def test_one_address_is_said_behind_an_endpoint_and_kept_in_its_text() -> None:
    points = access_points("evenqs://a:1?one-address;b:2")
    assert (points.addresses, points.one_address) == (["evenqs://a:1", "evenqs://b:2"], True)
    assert access_points(points.endpoint) == AccessPoints(("a:1", "b:2"), None, one_address=True)
    assert not access_points("a:1;b:2").one_address
    with pytest.raises(IllegalAccessPoint, match=r"'\?one'; the only one is \?one-address"):
        access_points("a:1?one")
