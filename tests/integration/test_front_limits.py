"""The bounds of the front as settings of real servers: each keeps the one it was given, and tells that it was reached."""

import urllib.request

import grpc
import pytest

from evenq.testing.local_cluster import LocalCluster
from evenq.testing.node import Node

CHECK = "/grpc.health.v1.Health/Check"
BOUND = {"FRONT_LIMITS__HEADER_LIST_BYTES_MAX": "4096"}


pytestmark = pytest.mark.cluster(front="http2", settings={"FRONT_LIMITS__HEADER_LIST_BYTES_MAX": "4096"})


def asked(node: Node, header: str) -> None:
    with grpc.insecure_channel(node.address) as channel:
        channel.unary_unary(CHECK)(b"", timeout=60, metadata=[("x-long", header)])


@pytest.mark.parametrize("program", ["nameserver", "rebalancer", "broker"])
@pytest.mark.slow
def test_a_server_keeps_the_bound_of_its_settings_and_counts_it(cluster: LocalCluster, program: str) -> None:
    node = next(node for node in cluster.nodes if node.name.startswith(program))
    asked(node, "x" * 2_000)
    with pytest.raises(grpc.RpcError, match="more than 4096") as caught:
        asked(node, "x" * 5_000)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    with urllib.request.urlopen(f"http://127.0.0.1:{node.metrics_port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    line = next(line for line in text.splitlines() if line.startswith("evenq_front_limits_total{"))
    assert 'limit="header_list_bytes_max"' in line
    assert line.endswith(" 1.0")
