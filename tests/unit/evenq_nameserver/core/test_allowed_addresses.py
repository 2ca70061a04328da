"""Which callers an operator's list of addresses holds."""

import pytest
from evenq_nameserver.core.allowed_addresses import ANY, LOOPBACK, NETWORKS_MAX, AllowedAddresses

from evenq.errors import BadRequest


@pytest.mark.parametrize(
    ("text", "host", "held"),
    [
        (LOOPBACK, "127.0.0.1", True),
        (LOOPBACK, "127.9.9.9", True),
        (LOOPBACK, "::1", True),
        (LOOPBACK, "::ffff:127.0.0.1", True),
        (LOOPBACK, "10.0.0.1", False),
        (LOOPBACK, "", False),
        ("10.0.0.0/8, fd00::/8", "10.255.0.1", True),
        ("10.0.0.0/8, fd00::/8", "::ffff:10.255.0.1", True),
        ("10.0.0.0/8, fd00::/8", "fd12::5", True),
        ("10.0.0.0/8, fd00::/8", "11.0.0.1", False),
        ("10.0.0.7", "10.0.0.7", True),
        ("10.0.0.7", "10.0.0.8", False),
        ("10.0.0.7/8", "10.0.0.8", True),
        ("fe80::/10", "fe80::1%eth0", True),
        (ANY, "anything", True),
        (f"10.0.0.7,{ANY}", "192.0.2.1", True),
        ("0.0.0.0/0", "unix:", False),
    ],
)
def test_an_address_is_held_by_its_network(text: str, host: str, held: bool) -> None:
    assert AllowedAddresses(text).hold(host) is held


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "give 1 to"),
        (" , ", "give 1 to"),
        ("broker-a", "'broker-a' is not an address; write 10.0.0.7"),
        ("10.0.0.0/33", "is not an address"),
        (",".join(["10.0.0.1"] * (NETWORKS_MAX + 1)), f"give 1 to {NETWORKS_MAX}"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(text: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        AllowedAddresses(text)
