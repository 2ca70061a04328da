"""Bounds of the settings, and the one rule between two of them."""

import pytest
from evenq_nameserver.settings import NameserverSettings

from evenq.errors import SettingsError
from evenq.serving.program.settings import load, settings_of


def test_one_lost_heartbeat_never_drops_a_living_broker() -> None:
    assert NameserverSettings(heartbeat_interval_ms=100, expiry_ms=200).expiry_ms == 200
    with pytest.raises(SettingsError, match="less than twice heartbeat_interval_ms 100"):
        load(NameserverSettings, "nameserver", ["--heartbeat-interval-ms=100", "--expiry-ms=199"], {})


def test_defaults_drop_a_silent_broker_after_three_lost_beats() -> None:
    settings = NameserverSettings()
    assert settings.expiry_ms // settings.heartbeat_interval_ms == 3
    assert settings.port == 9876


@pytest.mark.parametrize("name", ["brokers_max", "topics_max", "watchers_max", "watcher_behind_max", "expiry_ms"])
def test_a_limit_of_nothing_is_refused_with_its_bounds(name: str) -> None:
    setting = next(setting for setting in settings_of(NameserverSettings) if setting.name == name)
    with pytest.raises(SettingsError) as caught:
        load(NameserverSettings, "nameserver", [f"{setting.flag}=0"], {})
    assert f"{setting.flag} = '0'" in str(caught.value)
    assert setting.bounds in str(caught.value)
