"""Bounds of the settings, and that the values reach what they are for."""

from dataclasses import fields
from pathlib import Path

import pytest
from evenq_broker.loops.state.ledger import store_options
from evenq_broker.settings import BODY_BYTES_MAX, BrokerSettings, ReplicationSettings, StoreSettings

from evenq.errors import SettingsError
from evenq.serving.settings import load, settings_of
from evenq.store import StoreOptions

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


def test_the_stores_settings_are_its_options_with_its_defaults() -> None:
    """One declaration: two with different defaults made a broker and its tests behave differently on a full disk."""
    options = {field.name: field for field in fields(StoreOptions)}
    own = {"path", "message_index"}  # of the broker, not of the store
    assert StoreSettings.model_fields.keys() - options.keys() == own
    for name in StoreSettings.model_fields.keys() - own:
        assert StoreSettings.model_fields[name].default == options[name].default, name
    assert store_options(StoreSettings()) == StoreOptions()


def test_every_setting_of_the_store_reaches_it() -> None:
    told = StoreSettings(
        segment_bytes=1 << 20, flush="sync", flush_interval_ms=7, flush_bytes=8, cache_bytes=9, disk_free_min_bytes=10,
        disk_used_max_ratio=0.5, snapshot_log_bytes=1 << 11, snapshot_interval_ms=1_001, snapshot_records=1_002, retention_ms=12,
        retention_hour=13, disk_clean_ratio=0.6, disk_force_ratio=0.7, memory_bytes_max=1 << 21,
    )  # fmt: skip
    options, usual = store_options(told), StoreOptions()
    for name in told.model_fields_set:
        assert getattr(options, name) == getattr(told, name) != getattr(usual, name), name
    assert told.model_fields_set == StoreSettings.model_fields.keys() - {"path", "message_index"}


def test_defaults_are_those_of_the_wire_contract() -> None:
    settings = BrokerSettings()
    assert (settings.port, settings.default_queues, settings.default_group_max_attempts) == (8081, 4, 17)
    assert settings.body_bytes_max == BODY_BYTES_MAX == (4 << 20) - (64 << 10)
    assert settings.poll_default_ms <= 15_000


def test_flags_win_over_the_environment_and_folders_are_nested() -> None:
    told = load(
        BrokerSettings, "broker", ["--store.path=/x"], {"EVENQ_BROKER_STORE__PATH": "/y", "EVENQ_BROKER_PORT": "1"}
    )
    assert (told.store.path, told.port) == (Path("/x"), 1)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--broker-name=a b"], "broker name 'a b'"),
        (["--tls.key=k"], "belong together"),
        (["--tls.port=0"], "give both PEM files"),
        (["--port=-1"], "nothing would be served"),
        (["--listeners=out+tls=0.0.0.0:1"], "listeners has one with TLS, without"),
        (["--listeners=default=0.0.0.0:1"], "choose another name"),
        (["--store.flush=never"], "one of async, sync"),
        (["--default-start-from=MIDDLE"], "one of LAST, FIRST"),
        (["--lock-ttl-ms=1"], "unknown flag --lock-ttl-ms"),
    ],
)
def test_values_that_cannot_be_are_told(flags: list[str], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        load(BrokerSettings, "broker", flags, {})


def test_what_the_store_declares_is_not_said_again_by_the_settings() -> None:
    """Default and text are the store's; bounds may be narrower, never wider."""
    declared = {one.name: one for one in fields(StoreOptions)}
    shared = declared.keys() & StoreSettings.model_fields.keys()
    assert StoreSettings.model_fields.keys() - shared == {"path", "message_index"}
    for name in shared:
        one, setting = declared[name], StoreSettings.model_fields[name]
        assert setting.description == one.metadata["description"], name
        assert setting.default == one.default, name
        for rule in setting.metadata:
            if hasattr(rule, "ge"):
                assert rule.ge >= one.metadata["ge"], name
            if hasattr(rule, "le"):
                assert rule.le <= one.metadata.get("le", rule.le), name


def test_only_the_copy_that_founds_a_group_brings_its_data() -> None:
    ok = ReplicationSettings(members="0=db1:8083,1=db2:8083", from_one_copy=True, record="file:/r")
    assert ok.problem(has_folder=True) == ""
    other = ok.model_copy(update={"broker_id": 1})
    assert "the lowest of members: broker 0, not 1" in other.problem(has_folder=True)
