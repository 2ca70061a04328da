"""What the nameserver counts, seen where it is counted: at the calls and in the expiry loop."""

from evenq_nameserver.stats import NameserverStats


def test_a_fresh_nameserver_has_counted_nothing_and_keeps_nothing_else() -> None:
    stats = NameserverStats()
    assert {name: getattr(stats, name) for name in NameserverStats.__slots__} == {
        "expired": 0,
        "heartbeats": 0,
        "registrations": 0,
    }
    assert not hasattr(stats, "__dict__"), "a misspelt counter must fail where it is counted"
