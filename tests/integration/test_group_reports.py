"""`evenq group explain`, `simulate` and `doctor` over two brokers and a rebalancer in processes of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from evenq_proofs.command_line import evenq_process
from evenq_proofs.waiting import until

from evenq import Admin, Message, Producer, PushConsumer
from evenq.client.options import PushOptions
from evenq.testing.local_cluster import LocalCluster

DEADLINE_S = 60
Shell = Callable[..., Any]


pytestmark = pytest.mark.cluster(brokers=2)


def shell_of(endpoint: str) -> Shell:
    def run(*words: str, code: int | None = 0) -> Any:
        done = evenq_process(*words, endpoint=endpoint)
        assert code in {done.returncode, None}, done.stdout + done.stderr
        return json.loads(done.stdout) if "--json" in words else done.stdout + done.stderr

    return run


@pytest.fixture
def evenq(cluster: LocalCluster) -> Shell:
    return shell_of(cluster.endpoint)


def join(stack: ExitStack, endpoint: str, group: str, topic: str, client_id: str, wanted: str = "*") -> None:
    consumer = PushConsumer(
        group=group,
        endpoint=endpoint,
        client_id=client_id,
        subscriptions={topic: wanted},
        listener=lambda _: None,
        assignment="server",
        options=PushOptions(zone="north"),
    )
    consumer.start()
    stack.callback(consumer.close)


def owned(evenq: Shell, group: str, count: int) -> Callable[[], bool]:
    def look() -> bool:
        rows = [row for row in evenq("group", "show", group, "--json")["queues"] if row["owner"]]
        return len(rows) == count

    return look


def kinds(report: dict[str, Any]) -> list[str]:
    return [one["kind"] for one in report["findings"]]


@pytest.mark.slow
def test_a_healthy_group_has_no_finding_and_exactly_what_is_wrong_is_found(cluster: LocalCluster, evenq: Shell) -> None:
    evenq("topic", "create", "orders", "--queues", "2")
    evenq("group", "create", "billing", "--strategy", "STICKY", "--from", "first")
    with ExitStack() as stack:
        for number in (1, 2, 3, 4):
            join(stack, cluster.endpoint, "billing", "orders", f"m{number}")
        until(owned(evenq, "billing", 4))
        with Producer(endpoint=cluster.endpoint) as producer:
            for number in range(20):
                producer.send(Message(topic="orders", body=b"%d" % number))
        healthy = evenq("group", "doctor", "billing", "--json")
        assert (healthy["healthy"], healthy["findings"]) == (True, [])
        assert (healthy["members"], healthy["queues"], healthy["silent"]) == (4, 4, [])
        assert healthy["brokers"] == ["broker-a", "broker-b"]
        assert healthy["decides"] == "the rebalancer decides by STICKY"

        join(stack, cluster.endpoint, "billing", "orders", "m5")  # a member more than queues
        until(lambda: evenq("group", "explain", "billing", "--json")["idle"])
        explained = evenq("group", "explain", "billing", "--json")
        assert {row["owner"] for row in explained["queues"]} == {"m1", "m2", "m3", "m4"}
        assert {row["owner_zone"] for row in explained["queues"]} == {"north"}
        assert {row["state"] for row in explained["queues"]} == {"OWNED"}
        assert explained["problems"] == []
        [idle] = explained["idle"]
        assert idle["client_id"] == "m5"
        assert idle["why"].startswith("5 members share 4 queues")
        idle_only = evenq("group", "doctor", "billing", "--json", code=1)
        assert kinds(idle_only) == ["IDLE_MEMBERS"]

        simulated = evenq("group", "simulate", "billing", "--members", "2", "--rows", "--json")
        [row] = simulated["topics"]
        assert (row["moves"], row["unowned"], row["spread_then"]) == (2, 0, "2")
        assert {move["to"] for move in simulated["moves"]} == {"m1", "m2"}

        join(stack, cluster.endpoint, "billing", "orders", "m6", "vip")  # two filters in one group
        until(lambda: len(evenq("group", "show", "billing", "--json")["members"]) == 6)
        with Admin(endpoint=cluster.endpoint) as admin:
            found = admin.diagnose_group("billing")
        assert [one.kind for one in found.findings] == ["DIFFERENT_SUBSCRIPTIONS", "IDLE_MEMBERS"]
        assert "'vip'" in found.findings[0].seen
        output = evenq("group", "doctor", "billing", code=1)
        assert "evenq group show billing" in output


@pytest.mark.slow  # ten commands; its shrinking is tested in test_resizing.py, too
def test_a_topic_that_shrinks_is_written_and_read_in_different_numbers(cluster: LocalCluster, evenq: Shell) -> None:
    evenq("topic", "create", "bills", "--queues", "2")
    evenq("group", "create", "reader", "--from", "first")
    evenq("consume", "bills", "--group", "reader", "--idle", "1", "--from", "first")
    with Producer(endpoint=cluster.endpoint) as producer:
        for number in range(40):
            producer.send(Message(topic="bills", body=b"%d" % number))
    evenq("topic", "scale", "bills", "--queues", "1", "--no-wait", "--yes", code=None)
    report = evenq("group", "doctor", "reader", "--json", code=1)
    assert kinds(report) == ["NOBODY_READS", "UNEQUAL_QUEUES", "UNEQUAL_QUEUES"]
    assert {one["command"] for one in report["findings"][1:]} == {
        f"evenq topic scale bills --queues 1 --broker {name}" for name in ("broker-a", "broker-b")
    }


@pytest.mark.slow  # waits for a broker that never answers, again and again
def test_a_broker_that_does_not_answer_is_named_and_its_group_is_not_called_healthy() -> None:
    with LocalCluster(brokers=2, rebalancer=False, broker_settings={"PEER_TIMEOUT_MS": "2000"}) as alone:
        evenq = shell_of(alone.endpoint)
        evenq("topic", "create", "orders", "--queues", "1")
        evenq("group", "create", "billing")
        assert evenq("group", "doctor", "billing", "--json")["decides"].startswith("no rebalancer")
        explained = evenq("group", "explain", "billing", "--json")
        assert explained["decides"] == "no rebalancer: members and brokers compute it"
        alone.brokers[1].pause()
        report = evenq("group", "doctor", "billing", "--json", code=1)
        assert (kinds(report), report["silent"]) == (["BROKER_SILENT"], ["broker-b"])
        shown = evenq("group", "show", "billing", code=1)
        assert "No answer from broker-b" in shown
        evenq("group", "doctor", "nobody", code=3)
        evenq("group", "simulate", "billing", "--members", "2", code=4)


@pytest.mark.slow
def test_the_default_group_is_explained_by_who_really_has_what(cluster: LocalCluster, evenq: Shell) -> None:
    """The story of docs/start.md: a group without a strategy, whose members divide the queues by themselves."""
    evenq("topic", "create", "rides", "--queues", "4")
    with ExitStack() as stack:
        for name in ("ann", "ben"):
            consumer = PushConsumer(
                group="dispatch",
                endpoint=cluster.endpoint,
                client_id=name,
                subscriptions={"rides": "*"},
                listener=lambda _: None,
            )
            consumer.start()
            stack.callback(consumer.close)

        def settled() -> bool:
            rows = evenq("group", "explain", "dispatch", "--topic", "rides", "--json")["queues"]
            return sorted(row["owner"] for row in rows) == ["ann"] * 4 + ["ben"] * 4

        until(settled)
        explained = evenq("group", "explain", "dispatch", "--json")
        assert explained["decides"] == "its members: the group has no strategy"
        assert explained["strategy"] == "AVG"
        rows = [row for row in explained["queues"] if row["topic"] == "rides"]
        assert {row["why"] for row in rows} == {"2 members divide 8 queues by AVG: the group has no strategy"}
        assert explained["idle"] == []
        locks = {
            (row["topic"], row["broker"], row["queue"]): row["owner"]
            for row in evenq("group", "show", "dispatch", "--json")["queues"]
        }
        assert {(row["topic"], row["broker"], row["queue"]): row["owner"] for row in rows}.items() <= locks.items()
        simulated = evenq("group", "simulate", "dispatch", "--topic", "rides", "--members", "4", "--json")
        [row] = simulated["topics"]
        assert (row["queues"], row["spread_now"], row["spread_then"]) == (8, "4", "2")
        assert (simulated["strategy"], row["moves"]) == ("AVG", 6)
        report = evenq("group", "doctor", "dispatch", "--json")
        assert report["decides"] == "its members divide the queues by AVG: the group has no strategy"
        with Admin(endpoint=cluster.endpoint) as admin:
            view = admin.explain_group("dispatch", topic="rides")
        assert {one.owner for one in view.queues} == {"ann", "ben"}
