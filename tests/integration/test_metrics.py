"""Real servers, scraped: every metric that a rule, the dashboard or a page asks for is there, on series of one cluster."""

from __future__ import annotations

import re
import shutil
import threading
import time
import urllib.request
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from evenq_broker.metrics.replication_metrics import replication_metrics
from evenq_proofs.command_line import evenq_json

import evenq
from evenq.model.retry import RetryKind, RetryPolicy
from evenq.testing import LocalCluster
from evenq.testing.node import Node

ROOT = Path(__file__).resolve().parents[2]
OPERATING = ROOT / "docs" / "operating"
NAME = re.compile(r"\b(?:evenq|rocketmq|process)_[a-z0-9_]+")
CLUSTER = "house"
MESSAGES = 6


def page(node: Node, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{node.metrics_port}{path}", timeout=60) as answer:
        return str(answer.read().decode())


def names(text: str) -> set[str]:
    """What a query may name, as the page itself tells it."""
    found: set[str] = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        endings = ("_bucket", "_count", "_sum") if kind == "histogram" else ("",)
        found |= {name + ending for ending in endings}
    return found


def series(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def value(text: str, name: str, **labels: str) -> float:
    wanted = [f'{label}="{text}"' for label, text in labels.items()]
    found = [line for line in series(text) if line.startswith(name + "{") and all(label in line for label in wanted)]
    assert found, f"no {name} with {labels}"
    return sum(float(line.rpartition(" ")[2]) for line in found)


pytestmark = pytest.mark.cluster(brokers=2, settings={"CLUSTER": CLUSTER})


class Listener:
    """Notes what came, and is done when it has seen this number of messages; or fails every one of them."""

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails
        self._seen: set[str] = set()
        self.all_seen = threading.Event()

    def __call__(self, messages: Sequence[evenq.ReceivedMessage]) -> None:
        self._seen.update(message.message_id for message in messages)
        if len(self._seen) == MESSAGES:
            self.all_seen.set()
        if self._fails:
            raise ValueError("it always does")


@pytest.fixture(scope="module")
def used(shared_cluster: LocalCluster) -> LocalCluster:
    """A group that fails every message, and one that works."""
    cluster = shared_cluster
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("orders", queues=2)
        an_hour = RetryPolicy(kind=RetryKind.CUSTOMIZED, delays_ms=(3_600_000,))  # whichever test looks, and when
        admin.create_group("failing", start_from="FIRST", retry=an_hour)
        admin.create_group("working", start_from="FIRST")
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        for number in range(MESSAGES):
            producer.send(evenq.Message(topic="orders", body=b"x" * 2_000 * (number + 1)))
    failing, working = Listener(fails=True), Listener(fails=False)
    endpoint, subscriptions = cluster.endpoint, {"orders": "*"}
    with (
        evenq.PushConsumer(group="failing", listener=failing, endpoint=endpoint, subscriptions=subscriptions),
        evenq.PushConsumer(group="working", listener=working, endpoint=endpoint, subscriptions=subscriptions),
    ):
        assert failing.all_seen.wait(60)
        assert working.all_seen.wait(60)
    return cluster


def pages(cluster: LocalCluster) -> dict[str, str]:
    return {node.name: page(node) for node in cluster.nodes}


def test_every_series_of_every_server_says_which_cluster_and_server_it_is_of(used: LocalCluster) -> None:
    kinds = {"nameserver-0": "nameserver", "rebalancer": "rebalancer"}
    for name, text in pages(used).items():
        kind = kinds.get(name, "broker")
        for line in series(text):
            assert f'cluster="{CLUSTER}"' in line, line
            assert f'node_type="{kind}"' in line, line
            assert 'node_id="' in line, line
        assert value(text, "evenq_build_info", version=version("evenq")) == 1


def test_rules_dashboards_and_pages_ask_only_for_what_the_servers_expose(used: LocalCluster) -> None:
    known = set().union(*map(names, pages(used).values())) | names(page(used.brokers[0], "/metrics/queues"))
    nothing = cast(
        "Any", SimpleNamespace(replica=SimpleNamespace(group=SimpleNamespace(leader_id=int)))
    )  # no broker here is a copy
    known |= {metric.name for metric in replication_metrics(nothing, nothing, nothing, nothing)}
    texts = {path.name: path.read_text() for path in (ROOT / "helm/evenq/alerts").glob("*.yaml")}
    texts |= {path.name: path.read_text() for path in (ROOT / "helm/evenq/dashboards").glob("*.json")}
    texts |= {path.name: path.read_text().replace("rocketmq_rpc_latency`", "`") for path in OPERATING.rglob("*.md")}
    assert len(texts) > 20
    unknown = {where: missing for where, text in texts.items() if (missing := set(NAME.findall(text)) - known)}
    assert unknown == {}
    for path in (ROOT / "helm/evenq/alerts").glob("*.yaml"):
        for rule in (rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]):
            assert (ROOT / rule["annotations"]["runbook"]).is_file()


def test_a_group_that_fails_every_message_looks_ill(used: LocalCluster) -> None:
    text = "\n".join(page(broker) for broker in used.brokers)
    assert value(text, "evenq_broker_given_back_total", consumer_group="failing", topic="orders") >= MESSAGES
    assert value(text, "evenq_broker_retries_waiting", consumer_group="failing") > 0
    assert value(text, "evenq_broker_retries_waiting", consumer_group="working") == 0
    assert value(text, "evenq_broker_given_back_total", consumer_group="working", topic="orders") == 0
    shown = evenq_json("group", "show", "failing", endpoint=used.endpoint)
    assert shown["given_back"] >= MESSAGES
    assert shown["waiting_for_retry"] > 0
    assert evenq_json("group", "show", "working", endpoint=used.endpoint)["waiting_for_retry"] == 0


def test_an_unread_message_ages_in_seconds_by_group_and_by_queue(used: LocalCluster) -> None:
    with evenq.Producer(endpoint=used.endpoint) as producer:
        producer.send(evenq.Message(topic="orders", body=b"unread"))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        text = "\n".join(page(broker) for broker in used.brokers)
        if value(text, "rocketmq_consumer_lag_latency", consumer_group="working", topic="orders") > 0:
            break
        time.sleep(0.2)
    else:
        pytest.fail("the unread message has no age")
    queues = "\n".join(page(broker, "/metrics/queues") for broker in used.brokers)
    assert value(queues, "evenq_queue_lag_messages", consumer_group="working", topic="orders") == 1
    assert value(queues, "evenq_queue_lag_seconds", consumer_group="working", topic="orders") > 0
    shown = evenq_json("group", "show", "working", endpoint=used.endpoint)
    assert sum(queue["lag"] for queue in shown["queues"] if queue["topic"] == "orders") == 1
    assert shown["oldest_unread_s"] >= 0


def test_sizes_ages_and_disk_are_told(used: LocalCluster) -> None:
    text = "\n".join(page(broker) for broker in used.brokers)
    assert value(text, "rocketmq_message_size_count", topic="orders") >= MESSAGES
    assert value(text, "rocketmq_message_size_bucket", topic="orders", le="4096") < MESSAGES, "some are larger"
    assert value(text, "rocketmq_message_size_sum", topic="orders") > 2_000 * sum(range(1, MESSAGES + 1))
    assert value(text, "evenq_broker_delivery_seconds_count", consumer_group="working", topic="orders") >= MESSAGES
    for broker in used.brokers:
        usage, text = shutil.disk_usage(used.folder), page(broker)
        assert value(text, "evenq_store_disk_free_bytes") == pytest.approx(usage.free, rel=0.2)
        assert value(text, "evenq_store_disk_used_bytes") > 0
        assert value(text, "evenq_store_disk_free_min_bytes") > 0
        assert value(text, "evenq_store_refuses_messages") == 0


def test_methods_that_were_never_called_have_no_series(used: LocalCluster) -> None:
    text = page(used.brokers[0])
    called = set(re.findall(r'rocketmq_rpc_latency_count{[^}]*request_code="(\w+)"', text))
    assert {"Publish", "Pull", "Register"} & called
    assert not {"ResetGroupOffset", "DeleteTopic", "RecallMessage", "EndTransaction"} & called
    for code in called:
        assert value(text, "rocketmq_rpc_latency_count", request_code=code) > 0
