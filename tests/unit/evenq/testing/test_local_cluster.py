"""What a cluster is made of; real processes are in tests/integration."""

import pytest

from evenq.errors import BadRequest, ConnectionFailed
from evenq.testing import FakeClock, LocalCluster
from evenq.testing.free_ports import FreePorts


def test_a_cluster_names_its_servers_and_gives_each_its_own_ports(tmp_path):
    cluster = LocalCluster(brokers=3, nameservers=2, folder=tmp_path)
    ports = [port for node in cluster.nodes for port in (node.port, node.metrics_port)]
    assert len(set(ports)) == len(ports) == 12
    assert [broker.name for broker in cluster.brokers] == ["broker-a", "broker-b", "broker-c"]
    assert cluster.endpoint == cluster.brokers[0].address
    assert cluster.endpoints.count(";") == 2
    cluster.kill()


def test_a_broker_can_be_given_its_port(tmp_path):
    with FreePorts() as ports:
        port = ports.take()
    cluster = LocalCluster(brokers=2, broker_ports=[port], folder=tmp_path)
    assert cluster.endpoint == f"127.0.0.1:{port}"
    cluster.kill()


@pytest.mark.parametrize(("sizes", "text"), [({"brokers": 0}, "brokers=0"), ({"nameservers": -1}, "nameservers=-1")])
def test_sizes_out_of_range_are_refused(sizes, text, tmp_path):
    with pytest.raises(BadRequest, match=text):
        LocalCluster(folder=tmp_path, **sizes)


def test_a_cluster_that_cannot_start_ends_what_it_started(tmp_path):
    settings = {"NO_SUCH_SETTING": "1"}
    cluster = LocalCluster(nameservers=0, rebalancer=False, folder=tmp_path, broker_settings=settings)
    with pytest.raises(ConnectionFailed, match="broker-a ended"):
        cluster.start()
    assert not any(node.alive for node in cluster.nodes)


def test_names_of_the_package_are_imported_at_first_use():
    import evenq.testing

    assert FakeClock().now_ms() > 0
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = evenq.testing.nothing
