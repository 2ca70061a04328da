"""Every call of every service has a row in the table of calls, and the broker serves its own with that row."""

from __future__ import annotations

import random
from typing import Any

from evenq_broker.broker import Broker
from evenq_broker.settings import BrokerSettings
from evenq_proofs.loop_net import LoopNet

from evenq.runtime.clock import FakeClock
from evenq.serving.auth.calls import CALLS
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2 as admin_v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import (
    admin_pb2,
    assignment_pb2,
    backup_pb2,
    data_pb2,
    dead_letters_pb2,
    groups_pb2,
    peers_pb2,
    registry_pb2,
    replication_pb2,
    staging_pb2,
)

ACCESS = {method: call.access for method, call in CALLS.items()}

FILES: tuple[Any, ...] = (
    service_pb2,
    admin_v2,
    data_pb2,
    groups_pb2,
    admin_pb2,
    assignment_pb2,
    backup_pb2,
    peers_pb2,
    dead_letters_pb2,
    registry_pb2,
    replication_pb2,
    staging_pb2,
)
ALONE = {"/evenq.v1.Replication/Link", "/evenq.v1.Replication/FetchSnapshot", "/evenq.v1.Replication/FetchRecords"}
"""Served by `replication_rpcs` and `record_rpcs`, with or without a `Broker`, where brokers replicate."""

OF_OTHERS = {
    "/evenq.v1.Assignment/Report",  # the rebalancer serves it
    *(f"/evenq.v1.Registry/{name}" for name in ("Register", "Heartbeat", "Unregister", "GetRoutes", "WatchRoutes")),
}


def methods() -> set[str]:
    return {
        f"/{service.full_name}/{method.name}"
        for file in FILES
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def test_each_method_of_the_protos_has_a_row_and_no_row_is_left_over() -> None:
    assert set(ACCESS) == methods()


def test_the_broker_serves_each_other_one_once_with_the_row_of_the_table() -> None:
    clock = FakeClock()
    broker = Broker(BrokerSettings(), clock=clock, rng=random.Random(1), net=LoopNet(clock))
    served = broker.rpcs()
    assert sorted(rpc.method for rpc in served) == sorted(methods() - ALONE - OF_OTHERS)
    assert all(rpc.access == ACCESS[rpc.method] for rpc in served)
