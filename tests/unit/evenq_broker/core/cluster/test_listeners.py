"""The settings `listeners` and `advertise`: listeners beside the usual ones, and the address that each tells."""

import pytest
from evenq_broker.core.cluster.listeners import advertised, check_shared, parse_listeners

from evenq.errors import SettingsError
from evenq.model import PLAIN_LISTENER, TLS_LISTENER, Listener

OUT = Listener("out")
PORTS = {PLAIN_LISTENER: 7, TLS_LISTENER: 8, OUT: 9}


def lines_of(
    text: str, host: str = "0.0.0.0", ports: dict[Listener, int] = PORTS, *, peers_tls: bool = False
) -> list[str]:
    hosts = {listener.name: host for listener in ports}
    found = advertised(text, ports, hosts=hosts, peers_tls=peers_tls)
    return [f"{address.listener} {address.address}" for address in found]


@pytest.mark.parametrize(
    ("text", "host", "addresses"),
    [
        ("", "0.0.0.0", ["default 127.0.0.1:7", "tls evenqs://127.0.0.1:8", "out 127.0.0.1:9"]),
        ("", "10.0.0.5", ["default 10.0.0.5:7", "tls evenqs://10.0.0.5:8", "out 10.0.0.5:9"]),
        ("b.example:80", "0.0.0.0", ["default b.example:80", "tls evenqs://b.example:8", "out b.example:9"]),
        (
            "default=10.0.0.5:0, out=lb.example:443,tls=b.example:0",
            "0.0.0.0",
            ["default 10.0.0.5:7", "tls evenqs://b.example:8", "out lb.example:443"],
        ),
        (
            "internal=pod-0:0,out=[2001:db8::1]:443",
            "0.0.0.0",
            ["default pod-0:7", "tls evenqs://pod-0:8", "out [2001:db8::1]:443", "internal pod-0:7"],
        ),
    ],
)
def test_each_listener_tells_the_setting_or_where_it_listens(text: str, host: str, addresses: list[str]) -> None:
    assert lines_of(text, host) == addresses


def test_without_a_plain_port_an_entry_without_a_name_is_the_tls_listeners() -> None:
    assert lines_of("b.example:443", ports={TLS_LISTENER: 8}) == ["tls evenqs://b.example:443"]


def test_the_address_for_other_servers_leads_to_the_listener_that_they_want() -> None:
    assert (
        lines_of("internal=pod-0:0", ports={PLAIN_LISTENER: 7, TLS_LISTENER: 8}, peers_tls=True)[-1]
        == "internal evenqs://pod-0:8"
    )
    assert lines_of("internal=pod-0:0", ports={TLS_LISTENER: 8})[-1] == "internal evenqs://pod-0:8"


def test_the_address_of_any_copy_stands_behind_those_of_listeners_and_speaks_as_the_first_one() -> None:
    both = {PLAIN_LISTENER: 7, TLS_LISTENER: 8}
    assert lines_of("pod:7,any-copy=group:70,internal=pod:0", ports=both) == [
        "default pod:7", "tls evenqs://pod:8", "any-copy group:70", "internal pod:7"
    ]  # fmt: skip
    assert lines_of("any-copy=group:0", ports={TLS_LISTENER: 8})[-1] == "any-copy evenqs://group:8"


@pytest.mark.parametrize("text", ["here", "host:", ":80", "host:port", "=host:80", "host:70000", "a:1,,b:2", "e://a:1"])
def test_an_address_that_is_none_is_named(text: str) -> None:
    with pytest.raises(SettingsError, match="write host:port or listener=host:port"):
        lines_of(text)


def test_an_address_that_no_call_could_be_answered_with_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"open one with `listeners`.*any-copy, default, internal, out, tls"):
        lines_of("far=host:80")
    with pytest.raises(SettingsError, match="twice"):
        lines_of("a:1,default=b:1")


def test_listeners_are_named_listener_with_or_without_tls() -> None:
    spots = parse_listeners(" external=0.0.0.0:8091 , partner+tls=[::]:0")
    assert [tuple(spot) for spot in spots] == [
        (Listener("external"), "0.0.0.0", 8091),
        (Listener("partner", tls=True), "::", 0),
    ]
    assert parse_listeners("") == []


@pytest.mark.parametrize("text", ["external", "external=8091", "a b=h:1", "=h:1", "x+ssl=h:1", "x+=h:1", "x=h:65536"])
def test_a_listener_that_is_none_is_named(text: str) -> None:
    with pytest.raises(SettingsError, match="write name=host:port"):
        parse_listeners(text)


@pytest.mark.parametrize("text", ["tls=h:1", "internal=h:1", "any-copy=h:1", "x=h:1,x+tls=h:2"])
def test_a_name_that_is_taken_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="choose another name"):
        parse_listeners(text)


def test_an_entry_for_one_broker_counts_for_no_other() -> None:
    def of(name: str) -> list[str]:
        ports = {PLAIN_LISTENER: 7, OUT: 9}
        hosts = {listener.name: "0.0.0.0" for listener in ports}
        advertisement = advertised("pod:7,b-0/out=lb:30091,b-1/out=lb:30092", ports, hosts=hosts, broker_name=name)
        return [address.address for address in advertisement]

    assert of("b-0") == ["pod:7", "lb:30091"]
    assert of("b-1") == ["pod:7", "lb:30092"]
    assert of("b-2") == ["pod:7", "pod:9"]
    with pytest.raises(SettingsError, match="BROKER/ in front for one broker alone"):
        advertised("/out=lb:1", {PLAIN_LISTENER: 7, OUT: 9}, hosts={"default": "h", "out": "h"}, broker_name="b-0")


def test_a_shared_listener_that_is_none_is_refused() -> None:
    spots = parse_listeners("external=0.0.0.0:8091")
    check_shared(["external", "default", "tls"], spots)
    with pytest.raises(
        SettingsError, match=r"names 'outside', which is not a listener; name one of default, external, tls"
    ):
        check_shared(["outside"], spots)
