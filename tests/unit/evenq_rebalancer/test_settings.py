"""Every setting reaches what it is for."""

from __future__ import annotations

import pytest
from evenq_rebalancer.core.assignment_engine import EngineLimits
from evenq_rebalancer.settings import RebalancerSettings

from evenq.errors import SettingsError
from evenq.serving.program.settings import load


def test_limits_follow_the_settings() -> None:
    names = [name for name in EngineLimits.__dataclass_fields__ if name != "machine_rooms"]
    settings = RebalancerSettings(**{name: number for number, name in enumerate(names, 1)}, machine_rooms=" r1, r2 ,,")
    limits = settings.limits()
    assert [getattr(limits, name) for name in names] == list(range(1, len(names) + 1))
    assert limits.machine_rooms == ("r1", "r2")


def test_the_defaults_are_those_of_the_core() -> None:
    assert RebalancerSettings().limits() == EngineLimits()
    assert RebalancerSettings().port == 8083


def test_unknown_and_out_of_bounds_settings_are_refused() -> None:
    assert (
        load(RebalancerSettings, "rebalancer", ["--grace-ms", "5"], {"EVENQ_REBALANCER_DEBOUNCE_MS": "7"}).debounce_ms
        == 7
    )
    with pytest.raises(SettingsError, match="--grace-ms"):
        load(RebalancerSettings, "rebalancer", ["--grace-mss", "5"], {})
    with pytest.raises(SettingsError, match="600000"):
        load(RebalancerSettings, "rebalancer", ["--grace-ms", "600001"], {})
