"""Settings of a kombu connection in the units of evenq."""

from __future__ import annotations

from typing import Any

import pytest

from evenq.celery.settings import TransportSettings, settings_of
from evenq.errors import IllegalTopic, SettingsError
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls


def settings(options: dict[str, Any] | None = None, *, secure: bool = False, **given: Any) -> TransportSettings:
    connection: dict[str, Any] = {
        "hostname": "broker", "port": None, "userid": None, "password": None, "virtual_host": "/", "ssl": False,
    }  # fmt: skip
    return settings_of(**{**connection, **given}, options=options or {}, secure=secure)


def test_the_defaults() -> None:
    found = settings()
    assert found.endpoint == "broker:8081"
    assert found.names.prefix == "celery-"
    assert (found.credentials, found.tls, found.visibility_ms) == (None, None, 30_000)
    assert found == settings()
    assert hash(found) == hash(settings())


def test_the_path_of_the_url_is_the_prefix() -> None:
    assert settings(virtual_host="shop").names.prefix == "shop-"
    assert settings({"topic_prefix": ""}, virtual_host="shop").names.prefix == ""


def test_addresses() -> None:
    assert settings(hostname="::1", port=9).endpoint == "[::1]:9"
    assert settings(hostname=None).endpoint == "127.0.0.1:8081"
    assert settings({"access_points": ["a:1", "b:2"]}).endpoint == "a:1;b:2"
    assert settings({"access_points": "a:1,b:2"}).endpoint == "a:1,b:2"
    with pytest.raises(SettingsError, match="access_points"):
        settings({"access_points": [1]})


def test_keys_of_the_url() -> None:
    assert settings(userid="ann", password="s").credentials == Credentials(access_key="ann", secret_key="s")
    assert settings(userid="ann", password=lambda: "s").credentials == Credentials(access_key="ann", secret_key="s")
    with pytest.raises(SettingsError, match="secret_key is empty"):
        settings(userid="ann")


def test_tls_by_url_by_celery_and_by_option() -> None:
    assert settings(secure=True).tls is True
    assert settings(ssl=True).tls is True
    assert settings({"tls": Tls(insecure=True)}, secure=True).tls == Tls(insecure=True)
    assert settings(ssl={"ca_certs": "ca.pem"}).tls == Tls(ca="ca.pem")
    assert settings({"tls": {"certificate": "c", "key": "k"}}).tls == Tls(certificate="c", key="k")
    with pytest.raises(SettingsError, match="'verify'"):
        settings(ssl={"verify": False})
    with pytest.raises(SettingsError, match="tls is 3"):
        settings({"tls": 3})


def test_seconds_become_ms() -> None:
    found = settings({"visibility_timeout": "60", "broadcast_retention": 120, "wait_time_seconds": 5})
    assert (found.visibility_ms, found.broadcast_retention_ms, found.poll_ms) == (60_000, 120_000, 5_000)


@pytest.mark.parametrize("value", [0, 43_201, "x", None, 1.5, True])
def test_a_number_outside_of_its_range_is_refused(value: object) -> None:
    with pytest.raises(SettingsError, match=r"visibility_timeout is .*whole number from 1 to 43200"):
        settings({"visibility_timeout": value})


def test_a_switch_is_a_bool() -> None:
    assert not settings({"native_delay": False}).native_delay
    with pytest.raises(SettingsError, match="native_delay is 'no'"):
        settings({"native_delay": "no"})


def test_an_unknown_option_is_refused_and_those_of_kombu_are_not() -> None:
    assert settings({"max_retries": 3, "confirm_publish": True}) == settings()
    with pytest.raises(SettingsError, match=r"'visibilty_timeout'.*its options are"):
        settings({"visibilty_timeout": 3})


def test_a_bad_prefix_is_refused() -> None:
    with pytest.raises(SettingsError, match="topic_prefix"):
        settings({"topic_prefix": 3})
    with pytest.raises(IllegalTopic):
        settings(virtual_host="a.b")
