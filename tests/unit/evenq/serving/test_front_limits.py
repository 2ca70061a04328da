"""The front's bounds as settings: ranges, the rules between them, and what the front is given."""

from dataclasses import fields

import pytest

from evenq.errors import SettingsError
from evenq.serving.front_limits import FrontLimits
from evenq.serving.http2.limits import Http2Limits
from evenq.serving.program.settings import ServerSettings, load, settings_of


def loaded(*argv: str, **environ: str) -> FrontLimits:
    return load(ServerSettings, "nameserver", argv, environ).front_limits


def test_defaults_are_those_of_the_front() -> None:
    assert FrontLimits().limits() == Http2Limits()


def test_ten_thousand_clients_behind_one_address_have_a_connection_and_two_calls_each() -> None:
    """As many as a broker of 1 GiB takes, through a load balancer."""
    limits = Http2Limits()
    assert limits.connections_per_address_max > 10_000
    assert limits.calls_per_address_max > 2 * 10_000


def test_every_setting_is_a_bound_of_the_front_with_a_range_and_a_meaning() -> None:
    assert FrontLimits.model_fields.keys() <= {one.name for one in fields(Http2Limits)}
    for setting in settings_of(FrontLimits):
        assert " .. " in setting.bounds, setting.name
        assert setting.field.description, setting.name


def test_flags_and_variables_name_them_as_other_nested_settings() -> None:
    found = loaded("--front-limits.idle-ms=5000", EVENQ_NAMESERVER_FRONT_LIMITS__HEADER_LIST_BYTES_MAX="8192")
    limits = found.limits()
    assert (limits.idle_ms, limits.header_list_bytes_max, limits.header_block_bytes_max) == (5_000, 8_192, 32_768)


@pytest.mark.parametrize("name", FrontLimits.model_fields)
def test_a_value_out_of_its_range_is_refused_with_the_range(name: str) -> None:
    setting = next(one for one in settings_of(ServerSettings) if one.name == f"front_limits.{name}")
    low, high = map(int, setting.bounds.split(" .. "))
    for value in (low - 1, high + 1):
        with pytest.raises(SettingsError) as caught:
            loaded(f"{setting.flag}={value}")
        assert f"{setting.flag} = '{value}'" in caught.value.message
        assert f"allowed: {setting.bounds}" in caught.value.message


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"stream-window-bytes": 1 << 25}, "stream_window_bytes = 33554432 is above front_limits.connection_window_bytes = "),
        ({"connection-window-bytes": 1 << 27}, "connection_window_bytes = 134217728 is above front_limits.connection_req"),
        ({"connection-request-bytes-max": 1 << 30}, "is above front_limits.request_bytes_max = 536870912"),
        ({"stream-unread-bytes": 1 << 25}, "is above front_limits.connection_unread_bytes = 16777216"),
        ({"connection-unread-bytes": 1 << 28}, "is above front_limits.connection_unread_bytes_max = 134217728"),
        ({"unread-bytes": 1 << 26}, "connection_unread_bytes_max = 134217728 is above front_limits.unread_bytes = 67108864"),
        ({"streams-per-connection-max": 10_000}, "is above front_limits.resets_burst = 8192: a client that cancels all"),
        ({"stall-ms": 1_000}, "pressed_stall_ms = 5000 is above front_limits.stall_ms = 1000"),
    ],
)  # fmt: skip
def test_two_that_make_no_sense_together_are_refused_with_both(flags: dict[str, int], sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        loaded(*(f"--front-limits.{name}={value}" for name, value in flags.items()))
    assert sentence in caught.value.message
    assert caught.value.message.endswith("; lower the first or raise the second")
