"""What a client's TLS is made from, and what its text does not show."""

import pytest

from evenq.client.wiring import ClientContext
from evenq.errors import SettingsError
from evenq.wire.tls import Tls

VARIABLES = ("CA", "CERTIFICATE", "KEY", "SERVER_NAME", "INSECURE")


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"EVENQ_TLS_{name}", raising=False)
    monkeypatch.delenv("EVENQ_ENDPOINT", raising=False)


@pytest.mark.parametrize(
    ("environ", "tls"),
    [
        ({}, None),
        ({"EVENQ_TLS_CA": "ca.pem"}, Tls(ca="ca.pem")),
        (
            {"EVENQ_TLS_CERTIFICATE": "c", "EVENQ_TLS_KEY": "k", "EVENQ_TLS_SERVER_NAME": "n"},
            Tls(certificate="c", key="k", server_name="n"),
        ),
        ({"EVENQ_TLS_INSECURE": "true"}, Tls(insecure=True)),
        ({"EVENQ_TLS_INSECURE": "false"}, None),
    ],
)
def test_the_environment_says_it(environ: dict[str, str], tls: Tls | None) -> None:
    assert Tls.of_environment(environ) == tls


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"EVENQ_TLS_INSECURE": "maybe"}, "'maybe'; give true or false"),
        ({"EVENQ_TLS_KEY": "k"}, "certificate is empty"),
        ({"EVENQ_TLS_CA": "c", "EVENQ_TLS_INSECURE": "yes"}, "leave out insecure"),
    ],
)
def test_what_contradicts_itself_is_refused(environ: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        Tls.of_environment(environ)


@pytest.mark.parametrize(
    ("endpoint", "asked", "tls"),
    [
        ("", None, None),
        ("a:1", None, None),
        ("a:1", True, Tls()),
        ("a:1", Tls(ca="ca.pem"), Tls(ca="ca.pem")),
        ("evenqs://a:1", None, Tls()),
        ("evenqs://a:1", Tls(ca="ca.pem"), Tls(ca="ca.pem")),
        ("evenq://a:1", None, None),
        ("evenq://a:1", False, None),
    ],
)
def test_the_endpoint_and_the_argument_say_it(endpoint: str, asked: Tls | bool | None, tls: Tls | None) -> None:
    context = ClientContext.of(None, None, endpoint=endpoint, tls=asked)
    assert context.tls == tls
    assert "://" not in context.endpoint


def test_the_environment_counts_where_neither_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENQ_TLS_CA", "ca.pem")
    monkeypatch.setenv("EVENQ_ENDPOINT", "x:1,y:2")
    assert ClientContext.of(None, None).endpoint == "x:1;y:2"
    assert ClientContext.of(None, None, endpoint="z:3").endpoint == "z:3"
    for endpoint, asked in (("", None), ("evenqs://a:1", None), ("a:1", True)):
        assert ClientContext.of(None, None, endpoint=endpoint, tls=asked).tls == Tls(ca="ca.pem")
    assert ClientContext.of(None, None, endpoint="evenq://a:1").tls is None
    assert ClientContext.of(None, None, tls=False).tls is None


@pytest.mark.parametrize(
    ("endpoint", "asked"), [("evenq://a:1", True), ("evenq://a:1", Tls()), ("evenqs://a:1", False)]
)
def test_an_endpoint_and_an_argument_that_contradict_each_other_are_refused(endpoint: str, asked: Tls | bool) -> None:
    with pytest.raises(SettingsError, match="contradict each other"):
        ClientContext.of(None, None, endpoint=endpoint, tls=asked)
