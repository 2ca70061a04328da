"""`evenq broker list | show` and `evenq cluster show`."""

import json

from evenq.wire.stubs.evenq.v1 import admin_pb2


def summary(answer, name, *, answered=True, draining=False):
    one = answer.brokers.add(answered=answered, draining=draining, topics=2)
    one.broker.name, one.broker.version = name, "1.2"
    one.broker.listeners.add(host="h", port=8081)


def test_brokers_by_name_with_their_first_address(run):
    response = admin_pb2.ListBrokersResponse()
    summary(response, "b", answered=False)
    summary(response, "a", draining=True)
    _, out, _, _ = run("broker list --json", ListBrokers=response)
    assert [(one["broker"], one["address"], one["answers"], one["draining"]) for one in json.loads(out)] == [
        ("a", "h:8081", True, True),
        ("b", "h:8081", False, False),
    ]
    response.missing.add(name="c", gone_ms=5)
    _, out, _, _ = run("broker list --json", ListBrokers=response)
    assert [(one["broker"], one["missing_since_ms"]) for one in json.loads(out)] == [("a", 0), ("b", 0), ("c", 5)]
    _, out, _, _ = run("broker show a --json", ListBrokers=response)
    assert json.loads(out)["version"] == "1.2"
    code, _, err, _ = run("broker show c", ListBrokers=response)
    assert (code, "the cluster has a, b" in err) == (3, True)


def test_the_cluster_at_a_glance(run):
    response = admin_pb2.DescribeClusterResponse(cluster="c", nameservers=["n:1"], rebalancer="r:1", topics=3)
    summary(response, "a")
    response.missing.add(name="b", gone_ms=5)
    _, out, _, _ = run("cluster show --json", DescribeCluster=response)
    output = json.loads(out)
    assert (output["cluster"], output["rebalancer_answers"], output["brokers"][0]["broker"]) == ("c", False, "a")
    assert output["brokers"][1]["missing_since_ms"] == 5
