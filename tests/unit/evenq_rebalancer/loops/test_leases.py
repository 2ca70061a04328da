"""From the setting to the lease."""

from __future__ import annotations

import pytest
from evenq_rebalancer.loops.file_lease import FileLease
from evenq_rebalancer.loops.kubernetes_lease import KubernetesLease
from evenq_rebalancer.loops.leases import lease_of
from evenq_rebalancer.settings import RebalancerSettings
from pydantic import ValidationError

from evenq.errors import SettingsError


def test_each_form_of_the_setting_gives_its_lease() -> None:
    assert lease_of(RebalancerSettings()) is None
    assert isinstance(lease_of(RebalancerSettings(lease="file:/tmp/x")), FileLease)
    assert isinstance(lease_of(RebalancerSettings(lease="kubernetes:evenq-rebalancer")), KubernetesLease)


def test_one_that_others_could_not_reach_is_refused() -> None:
    with pytest.raises(SettingsError, match="advertise"):
        lease_of(RebalancerSettings(lease="file:/tmp/x", host="0.0.0.0"))
    assert lease_of(RebalancerSettings(lease="file:/tmp/x", host="0.0.0.0", advertise="10.0.0.5:8083"))


@pytest.mark.parametrize("lease", ["", "file:", "kubernetes:", "kubernetes:A_b", "etcd:x"])
def test_other_forms_are_refused(lease: str) -> None:
    with pytest.raises(ValidationError, match="lease"):
        RebalancerSettings(lease=lease)


def test_times_that_would_let_two_lead_are_refused() -> None:
    with pytest.raises(ValidationError, match="does not hold"):
        RebalancerSettings(lease_ms=1_000, lease_renew_ms=1_000)
