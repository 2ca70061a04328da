"""Settings of a broker group that only together make sense."""

from pathlib import Path
from typing import Any

import pytest
from evenq_broker.replica.composition import replica_config
from evenq_broker.replication_settings import ReplicationSettings
from evenq_broker.settings import BrokerSettings, StoreSettings

GROUP: dict[str, Any] = {"members": "0=db1:8083, 1=db2:8084", "record": "file:/r"}


def test_one_copy_needs_no_other_setting() -> None:
    assert ReplicationSettings().problem(has_folder=False) == ""
    assert ReplicationSettings().addresses == {}


def test_members_are_addresses_by_broker_id() -> None:
    settings = ReplicationSettings(**GROUP)
    assert settings.addresses == {0: "db1:8083", 1: "db2:8084"}
    assert settings.problem(has_folder=True) == ""


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ("db1:8083", "write id=host:port"),
        ("x=db1:8083", "write id=host:port"),
        ("0=db1", "write id=host:port"),
        ("0=a:1,0=b:1", "names broker 0 twice"),
    ],
)
def test_members_that_are_not_addresses_are_refused(members: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        _ = ReplicationSettings(members=members).addresses


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"broker_id": 2}, "broker_id = 2 is not among"),
        ({"min_in_sync": 3}, "min_in_sync = 3 is more than the 2 brokers"),
        ({"record": "r"}, "must name the place of the group record"),
        ({"record": "file:/"}, "replication.record = 'file:/' names no file"),
        ({"etcd_password": "/p"}, "etcd_password is set without replication.etcd_user"),
        ({"members": "0=:8083,1=db2:8083"}, "replication.members, broker 0: address ':8083': it must be host:port"),
        ({"members": "0=db 1:8083"}, "broker 0: address 'db 1:8083': it must be host:port"),
        ({"members": "0=db1:0"}, "broker 0: address 'db1:0': it must be host:port"),
        ({"members": "0=db1:65536"}, "broker 0: address 'db1:65536': it must be host:port"),
        ({"members": "0=db1:1,1=db2:1,2=db1:1"}, "gives brokers 0 and 2 the address db1:1; each needs its own"),
        ({"members": "0=db1:1,1000000000=db2:1"}, "names broker 1000000000; ids are from 0 to 999999999"),
        ({"members": ",".join(f"{one}=db{one}:1" for one in range(10))}, "names 10 brokers; a group has 9 at most"),
        ({"renew_ms": 6_000}, "suspect_ms = 6000 must be more than replication.renew_ms = 6000"),
    ],
)
def test_settings_that_contradict_each_other_are_named(change: dict[str, Any], problem: str) -> None:
    assert problem in ReplicationSettings(**{**GROUP, **change}).problem(has_folder=True)


def test_copies_need_a_data_folder() -> None:
    assert "set store.path" in ReplicationSettings(**GROUP).problem(has_folder=False)


def test_only_the_copy_that_founds_a_group_brings_its_data() -> None:
    ok = ReplicationSettings(**GROUP, from_one_copy=True)
    assert ok.problem(has_folder=True) == ""
    other = ok.model_copy(update={"broker_id": 1})
    assert other.problem(has_folder=True) == "", "it says there what the first copy may be"
    for settings, adopts in ((ok, True), (other, False)):
        of_broker = BrokerSettings(replication=settings, store=StoreSettings(path=Path("/d")))
        config = replica_config(of_broker, restored_epoch=0)
        assert (config.adopts, config.founds) == (adopts, adopts)


@pytest.mark.parametrize(
    "fields", [{"record": "file:/r"}, {"broker_id": 1}, {"from_one_copy": True}, {"forward_clients": True}]
)
def test_a_broker_whose_members_were_forgotten_is_not_alone_in_silence(fields: dict[str, Any]) -> None:
    (name,) = fields
    problem = ReplicationSettings(**fields).problem(has_folder=True)
    assert f"replication.{name} is set and replication.members is empty" in problem


def test_copies_on_one_host_cannot_lead_clients_to_each_other() -> None:
    """Their ports differ, and a connection leads to the same port of the leader's host: to the copy itself."""
    apart = ReplicationSettings(**GROUP, forward_clients=True)
    assert apart.problem(has_folder=True) == ""
    for members in ("0=Host:1,1=b:1,2=host:2", "0=[::1]:1,1=[::1]:2,2=b:3"):
        problem = apart.model_copy(update={"members": members}).problem(has_folder=True)
        assert "replication.members has several copies at host" in problem
        assert "give each a host (an address) of its own" in problem
        together = ReplicationSettings(**GROUP).model_copy(update={"members": members})
        assert together.problem(has_folder=True) == ""


def test_the_port_for_copies_is_no_other_port_of_the_broker() -> None:
    settings, ports = ReplicationSettings(**GROUP), {"port": 8081, "tls.port": -1, "metrics_port": 8083}
    assert "port 8083 is set for the other copies (replication.members) and for metrics_port" in settings.port_problem(
        host="0.0.0.0", ports=ports
    )
    assert settings.model_copy(update={"port": 8090}).port_problem(host="0.0.0.0", ports=ports) == ""
    assert settings.model_copy(update={"host": "10.0.0.1"}).port_problem(host="0.0.0.0", ports=ports) == ""
    assert ReplicationSettings().port_problem(host="0.0.0.0", ports={"port": 0}) == ""
