"""Brokers that are taken away, with and without what they hold: who says so, for how long, and by which exit code."""

from __future__ import annotations

import time
from typing import Any

import pytest
from evenq_proofs.command_line import evenq_json, evenq_process, run_evenq
from evenq_proofs.waiting import until

import evenq
from evenq.testing import LocalCluster

MESSAGES = 30


pytestmark = pytest.mark.cluster(
    own=True, brokers=3, nameserver_settings={"EXPIRY_MS": "2000", "HEARTBEAT_INTERVAL_MS": "300"}
)


def command(cluster: LocalCluster, *words: str, code: int | None = 0) -> Any:
    return evenq_json(*words, endpoint=cluster.endpoint, code=code)


def missing(cluster: LocalCluster) -> list[str]:
    return [one["broker"] for one in command(cluster, "broker", "list") if one["missing_since_ms"]]


def filled(cluster: LocalCluster) -> None:
    """A topic over all brokers that group `billing` has read to its end, and one that no member reads."""
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        for topic in ("orders", "audit"):
            admin.create_topic(topic, queues=1)
        admin.create_group("billing", start_from="FIRST")
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        for topic in ("orders", "audit"):
            for _ in range(MESSAGES):
                producer.send(evenq.Message(topic=topic, body=b"x"))
    words = ("consume", "orders", "--group", "billing", "--from", "first", "--max", MESSAGES)
    run_evenq(*words, endpoint=cluster.endpoint)


def verdicts(cluster: LocalCluster, *words: str, code: int) -> dict[str, Any]:
    answer = command(cluster, "broker", "check-scale-in", *words, code=code)
    assert answer["removable"] is (code == 0)
    return {one["broker"]: one for one in answer["brokers"]}


@pytest.mark.slow  # all brokers end and come back, and twenty commands
def test_a_broker_that_ends_undrained_is_named_until_it_is_back_or_forgotten(cluster: LocalCluster) -> None:
    filled(cluster)
    assert missing(cluster) == []
    cluster.brokers[2].stop()  # in order, and undrained: as a scale-in does it
    until(lambda: missing(cluster) == ["broker-c"])
    report = command(cluster, "group", "doctor", "billing", code=1)
    (lost,) = [one for one in report["findings"] if one["kind"] == "BROKER_MISSING"]
    assert (lost["severity"], lost["subject"]) == ("ERROR", "broker-c")
    assert lost["command"] == "evenq broker list"
    assert "`evenq broker forget broker-c`" in lost["fix"]
    shown = command(cluster, "group", "show", "billing", code=1)
    assert (shown["lag"], shown["lag_at_least"], shown["silent"]) == (None, 0, ["broker-c"])
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        assert admin.describe_group("billing").summary.silent == ("broker-c",)
        assert {one.silent for one in admin.list_groups()} == {("broker-c",)}

    for broker in (*cluster.brokers[:2], *cluster.nameservers):  # no broker is left that saw it, but in the journals
        broker.kill()
    for broker in (*cluster.nameservers, *cluster.brokers[:2]):
        broker.restart()
    until(lambda: missing(cluster) == ["broker-c"])
    assert verdicts(cluster, "broker-c", code=1)["broker-c"]["state"] == "missing"

    cluster.brokers[2].restart()
    until(lambda: missing(cluster) == [])
    assert command(cluster, "group", "show", "billing")["lag"] == 0
    assert "BROKER_MISSING" not in {
        one["kind"] for one in command(cluster, "group", "doctor", "billing", code=None)["findings"]
    }
    assert "is alive" in command(cluster, "broker", "forget", "broker-c", "--yes", code=4)
    cluster.brokers[2].kill()
    until(lambda: missing(cluster) == ["broker-c"])
    assert "--yes" in command(cluster, "broker", "forget", "broker-c", code=1)
    assert missing(cluster) == ["broker-c"]
    command(cluster, "broker", "forget", "broker-c", "--yes")
    assert missing(cluster) == []
    assert "is missing" in command(cluster, "broker", "forget", "broker-c", "--yes", code=3)


@pytest.mark.slow
def test_a_check_before_a_scale_in_says_what_would_be_missed(cluster: LocalCluster) -> None:
    filled(cluster)
    found = verdicts(cluster, "broker-c", "broker-z", code=1)
    assert (found["broker-c"]["state"], found["broker-c"]["draining"]) == ("live", False)
    assert "drain broker-c" in found["broker-c"]["why"]
    assert found["broker-z"]["state"] == "unknown"
    unread = found["broker-c"]["unread"]
    assert unread > 0, "no group ever read the topic audit"

    command(cluster, "broker", "drain", "broker-c", "--wait", "60", code=1)
    found = verdicts(cluster, "broker-c", code=1)
    assert (found["broker-c"]["lag"], found["broker-c"]["unread"]) == (0, unread)
    verdicts(cluster, "broker-c", "--yes", code=0)

    cluster.brokers[2].stop()
    until(lambda: missing(cluster) == ["broker-c"])
    (note,) = [
        one
        for one in command(cluster, "group", "doctor", "billing", code=1)["findings"]
        if one["kind"] == "BROKER_MISSING"
    ]
    assert note["severity"] == "NOTE"
    assert f"{unread} messages that no group ever read" in note["seen"]


@pytest.mark.slow
def test_a_broker_that_was_drained_and_is_empty_is_not_missed(cluster: LocalCluster) -> None:
    filled(cluster)
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.delete_topic("audit")
    command(cluster, "broker", "drain", "broker-c", "--wait", "60")
    verdicts(cluster, "broker-c", code=0)
    cluster.brokers[2].stop()
    until(lambda: len(command(cluster, "broker", "list")) == 2)
    time.sleep(1)
    assert missing(cluster) == []
    assert "BROKER_MISSING" not in {
        one["kind"] for one in command(cluster, "group", "doctor", "billing", code=None)["findings"]
    }


def test_fewer_queues_are_a_plan_that_says_what_no_group_has_read() -> None:
    with LocalCluster(brokers=1) as cluster, evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("audit", queues=4)
        with evenq.Producer(endpoint=cluster.endpoint) as producer:
            sent = [producer.send(evenq.Message(topic="audit", body=b"x")) for _ in range(40)]
        unread = sum(result.queue.queue_id > 0 for result in sent)
        for words, code in (((), 1), (("--dry-run",), 0)):
            (plan,) = command(cluster, "topic", "scale", "audit", "--queues", "1", *words, code=code)["brokers"]
            assert (plan["unread"], plan["stored"], plan["write_queues"]) == (unread, unread, 4)
        assert len(admin.describe_topic("audit").queues) == 4, "nothing was changed"
        (view,) = admin.scale_topic("audit", queues=1)
        assert (view.done, view.unread, view.read_queues) == (False, unread, 4), "a program does not hide them, either"
        with evenq.PullConsumer(
            group="late", endpoint=cluster.endpoint, subscriptions={"audit": "*"}, start_from="FIRST"
        ) as consumer:
            seen = 0
            deadline = time.monotonic() + 60
            while seen < 40 and time.monotonic() < deadline:
                seen += len(consumer.poll(500))
            assert seen == 40, "a group that comes in the middle reads all"
            consumer.commit()
        command(cluster, "topic", "scale", "audit", "--queues", "1", "--yes")
        assert admin.describe_topic("audit").queues[-1].permission in {"NONE", "READ_WRITE"}


@pytest.mark.slow  # a broker ends, and a dozen commands
def test_each_command_names_a_missing_broker_and_exits_with_1(cluster: LocalCluster) -> None:
    filled(cluster)
    cluster.brokers[2].stop()
    until(lambda: missing(cluster) == ["broker-c"])

    def undone(*words: str) -> str:
        done = evenq_process(*words, endpoint=cluster.endpoint)
        assert done.returncode == 1, (words, done.stdout, done.stderr)
        assert "broker-c" in done.stdout + done.stderr
        return done.stdout

    assert "broker-a" in undone("offset", "reset", "billing", "--topic", "orders", "--to", "earliest", "--yes")
    undone("offset", "skip", "billing", "--topic", "orders")
    undone("message", "find", "orders")
    assert undone("message", "tail", "orders")
    undone("topic", "show", "orders")
    undone("topic", "list")
    assert "broker-a" in undone("topic", "create", "later", "--queues", "1")
    undone("topic", "scale", "orders", "--queues", "2")
    undone("topic", "permit", "orders", "read-write")
    undone("dlq", "list")
    undone("dlq", "replay", "billing", "--yes")
    undone("client", "list")
    undone("group", "list")
    undone("offset", "show", "billing")
    undone("topic", "delete", "later", "--yes")
    undone("topic", "delete", "audit", "--yes")
    undone("group", "delete", "billing", "--yes")
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        assert [one.group for one in admin.list_groups()] == [], "what could be done was done"
        cluster.brokers[2].restart()
        until(lambda: missing(cluster) == [])
        until(lambda: "audit" not in {one.topic for one in admin.list_topics()})


@pytest.mark.slow  # seven starts of brokers
def test_a_deletion_reaches_a_broker_that_was_away_while_all_others_restarted(cluster: LocalCluster) -> None:
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        for topic in ("gone", "again"):
            admin.create_topic(topic, queues=1)
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        for topic in ("gone", "again"):
            for _ in range(MESSAGES):
                producer.send(evenq.Message(topic=topic, body=b"before"))
    cluster.brokers[2].stop()
    until(lambda: missing(cluster) == ["broker-c"])
    for topic in ("gone", "again"):
        assert "they delete it when they are back" in command(cluster, "topic", "delete", topic, "--yes", code=1)
    command(cluster, "topic", "create", "again", "--queues", "2", code=1)
    bodies = {f"after-{number}".encode() for number in range(MESSAGES)}
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        for body in sorted(bodies):
            producer.send(evenq.Message(topic="again", body=body))
    for broker in cluster.brokers[:2]:
        broker.kill()
    for broker in cluster.brokers[:2]:
        broker.restart()
    [away] = until(lambda: [one for one in command(cluster, "broker", "list") if one["missing_since_ms"]])
    assert (away["broker"], away["changes_waiting"]) == ("broker-c", 3)
    cluster.brokers[2].restart()
    until(lambda: missing(cluster) == [])

    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        until(lambda: "gone" not in {one.topic for one in admin.list_topics()})
        three = {"broker-a", "broker-b", "broker-c"}
        until(lambda: {one.queue.broker_name for one in admin.describe_topic("again").queues} == three)
        until(lambda: len(admin.describe_topic("again").queues) == 6)
        queues = admin.describe_topic("again").queues
        assert sum(one.max_offset - one.min_offset for one in queues) == MESSAGES, "and none of the topic before"
    got: set[bytes] = set()
    with evenq.PushConsumer(
        group="readers",
        endpoint=cluster.endpoint,
        listener=lambda messages: got.update(message.body for message in messages),
        subscriptions={"again": "*"},
        start_from="FIRST",
    ):
        until(lambda: len(got) == MESSAGES)
    assert got == bodies
