"""Bounds of the settings, and that the values reach what they are for."""

from pathlib import Path

import pytest
from evenq_broker.settings import BODY_BYTES_MAX, BrokerSettings

from evenq.errors import SettingsError
from evenq.serving.program.settings import load, settings_of

BELOW_AND_ABOVE = [
    (setting.name, text)
    for setting in settings_of(BrokerSettings)
    for rule in setting.field.metadata
    for text in ([str(rule.ge - 1)] if hasattr(rule, "ge") else [str(rule.le + 1)] if hasattr(rule, "le") else [])
]


@pytest.mark.parametrize(("name", "text"), BELOW_AND_ABOVE)
def test_a_number_out_of_its_bounds_is_told_with_name_value_and_bound(name: str, text: str) -> None:
    variable = f"EVENQ_BROKER_{name.replace('.', '__').upper()}"
    with pytest.raises(SettingsError) as caught:
        load(BrokerSettings, "broker", [], {variable: text})
    assert f"{variable} = '{text}'" in str(caught.value)
    assert "allowed: " in str(caught.value)


def test_every_setting_tells_its_meaning() -> None:
    assert [setting.name for setting in settings_of(BrokerSettings) if not setting.field.description] == []
    assert len(BELOW_AND_ABOVE) > 40


def test_defaults_are_those_of_the_wire_contract() -> None:
    settings = BrokerSettings()
    assert (settings.port, settings.default_queues, settings.default_group_max_attempts) == (8081, 8, 17)
    assert settings.body_bytes_max == BODY_BYTES_MAX == 4 << 20
    assert settings.poll_default_ms <= 15_000


def test_flags_win_over_the_environment_and_folders_are_nested() -> None:
    result = load(
        BrokerSettings, "broker", ["--store.path=/x"], {"EVENQ_BROKER_STORE__PATH": "/y", "EVENQ_BROKER_PORT": "1"}
    )
    assert (result.store.path, result.port) == (Path("/x"), 1)


@pytest.mark.parametrize(
    ("flags", "given"),
    [
        (["--broker-name=a b"], "broker name 'a b'"),
        (["--tls.key=k"], "belong together"),
        (["--tls.port=0"], "give both PEM files"),
        (["--port=-1"], "no client could connect"),
        (["--listeners=out+tls=0.0.0.0:1"], "listeners has one with TLS, but"),
        (["--listeners=default=0.0.0.0:1"], "choose another name"),
        (["--store.flush=never"], "one of async, sync"),
        (["--default-start-from=MIDDLE"], "one of LAST, FIRST"),
        (["--lock-ttl-ms=1"], "unknown flag --lock-ttl-ms"),
    ],
)
def test_values_that_cannot_be_are_told(flags: list[str], given: str) -> None:
    with pytest.raises(SettingsError, match=given):
        load(BrokerSettings, "broker", flags, {})
