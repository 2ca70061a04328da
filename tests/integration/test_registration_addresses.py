"""Without signatures a nameserver takes brokers from addresses that its operator allows; real processes."""

from __future__ import annotations

import threading

import pytest

from evenq.runtime.clock import SystemClock
from evenq.testing import LocalCluster

REFUSED = ": brokers may not call this nameserver from 127.0.0.1: register_from allows"


@pytest.mark.slow  # a broker without topics that no nameserver takes is ready after 30 s
def test_a_broker_from_elsewhere_is_refused_and_its_log_says_what_to_change() -> None:
    with LocalCluster(
        brokers=1, rebalancer=False, nameserver_settings={"REGISTER_FROM": "192.0.2.0/24,198.51.100.7"}
    ) as cluster:
        clock, pause = SystemClock(), threading.Event()
        deadline_ms = clock.monotonic_ms() + 20_000
        while REFUSED not in cluster.brokers[0].log_text():
            assert clock.monotonic_ms() < deadline_ms, cluster.brokers[0].log_text()
            pause.wait(0.1)
        nameserver = cluster.nameservers[0].log_text()
        assert "register_from allows 192.0.2.0/24,198.51.100.7; add the address or network to it" in nameserver
        assert "broker registered" not in nameserver


def test_a_broker_of_the_same_machine_is_taken_by_default() -> None:
    with LocalCluster(brokers=1, rebalancer=False) as cluster:
        assert "broker registered" in cluster.nameservers[0].log_text()
