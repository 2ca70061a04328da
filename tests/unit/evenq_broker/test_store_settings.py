"""The store's settings are its options: one declaration, and every value reaches the store."""

from dataclasses import fields

from evenq_broker.loops.state.ledger import store_options
from evenq_broker.store_settings import StoreSettings

from evenq.store import StoreOptions


def test_the_stores_settings_are_its_options_with_its_defaults() -> None:
    """One declaration: two with different defaults made a broker and its tests behave differently on a full disk."""
    options = {field.name: field for field in fields(StoreOptions)}
    own = {"path", "message_index"}  # of the broker, not of the store
    assert StoreSettings.model_fields.keys() - options.keys() == own
    for name in StoreSettings.model_fields.keys() - own:
        assert StoreSettings.model_fields[name].default == options[name].default, name
    assert store_options(StoreSettings()) == StoreOptions()


def test_every_setting_of_the_store_reaches_it() -> None:
    result = StoreSettings(
        segment_bytes=1 << 20, flush="sync", flush_interval_ms=7, flush_bytes=8, cache_bytes=9, disk_free_min_bytes=10,
        disk_used_max_ratio=0.5, snapshot_log_bytes=1 << 11, snapshot_interval_ms=1_001, snapshot_records=1_002, retention_ms=12,
        retention_hour=13, disk_clean_ratio=0.6, disk_force_ratio=0.7, memory_bytes_max=1 << 21, table_wait_ms=14,
    )  # fmt: skip
    options, usual = store_options(result), StoreOptions()
    for name in result.model_fields_set:
        assert getattr(options, name) == getattr(result, name) != getattr(usual, name), name
    assert result.model_fields_set == StoreSettings.model_fields.keys() - {"path", "message_index"}


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
