"""The official Node.js SDK (`rocketmq-client-nodejs` 1.0.8), unmodified, each client in a process of its own.

`npm ci` puts it into a cache folder at the first run (`EVENQ_NODE_CACHE`, else below the user's cache). Without Node 18
or newer, or without npm, the tests are skipped; not in CI (`CI` or `EVENQ_TEST_ALL` is set): there they fail.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.command_line import run_evenq
from evenq_proofs.peer import Peer, wait_for_all

from evenq.testing import LocalCluster

FOLDER = Path(__file__).with_name("node")
FRONT = Path(__file__).with_name("throttling_front.py")
pytestmark = pytest.mark.timeout(900)  # npm may install the SDK first
BROKER_SETTINGS = {"TRANSACTION_FIRST_CHECK_MS": "2000", "TRANSACTION_CHECK_INTERVAL_MS": "2000"}


class NodePeer(Peer):
    """Takes commands, one after the other."""

    def __init__(self, folder: Path, modules: Path) -> None:
        environment = {**os.environ, "NODE_PATH": str(modules), "HOME": str(folder)}  # it logs below its home, too
        log_path = folder / f"node-{len(list(folder.glob('node-*.log')))}.log"
        super().__init__(["node", str(FOLDER / "peer.js")], log_path=log_path, environment=environment)

    def tell(self, action: str, **fields: object) -> None:
        """Give one command."""
        self.write(json.dumps({"do": action, **fields}))

    def do(self, action: str, *, seconds: float = 60, **fields: object) -> dict[str, Any]:
        """Give one command and wait for its end."""
        before = len(self.of("done"))
        self.tell(action, **fields)
        self.wait(lambda said: sum("done" in s for s in said) > before, seconds=seconds)
        answer = self.of("done")[before]
        assert "error" not in answer, (answer, self.log_path)
        return answer


@pytest.fixture
def peer(tmp_path: Path, modules: Path, cluster: LocalCluster, keep: Callable[[Peer], None]) -> Callable[..., NodePeer]:
    """Starts a client of a role, ready to work."""

    def start(role: str, **fields: object) -> NodePeer:
        made = NodePeer(tmp_path, modules)
        keep(made)
        made.do(role, **{"endpoint": cluster.endpoint, **fields})
        return made

    return start


def evenq(cluster: LocalCluster, *words: str, **variables: str) -> str:
    return run_evenq(*words, endpoint=cluster.endpoint, **variables)


def test_it_sends_and_takes_what_its_tag_asks_for(peer: Callable[..., NodePeer]) -> None:
    """Checklist 16, 19, 29, 30, 31: also what lies in queues that its queue-0 habit never names."""
    sender = peer("producer", topics=["node-simple"])
    sender.do("send", topic="node-simple", first=0, count=60)
    receipts = sender.of("sent")
    assert len({s["id"] for s in receipts}) == 60
    consumer = peer("simple", group="node-even", topic="node-simple", filter="even")
    consumer.do("take", count=30, empty=10)
    got = consumer.of("got")
    assert sorted(consumer.numbers()) == list(range(0, 60, 2))
    assert all((s["tag"], s["attempt"], s["corrupted"]) == ("even", 1, False) for s in got)
    assert all((s["body"], s["keys"]) == (f"body-{s['got']}", [f"key-{s['got']}"]) for s in got)
    assert {s["id"] for s in got} == {s["id"] for s in receipts if s["sent"] % 2 == 0}
    for one in (sender, consumer):
        one.do("stop")
        assert one.process.wait(60) == 0, "a clean shutdown lets the process end by itself"


def test_sql_expressions_select(peer: Callable[..., NodePeer]) -> None:
    peer("producer", topics=["node-sql"]).do("send", topic="node-sql", first=0, count=40)
    consumer = peer(
        "simple", group="node-sql", topic="node-sql", filter="SQL number BETWEEN 10 AND 19 AND TAGS = 'odd'"
    )
    consumer.do("take", count=5, empty=10)
    assert sorted(consumer.numbers()) == [11, 13, 15, 17, 19]


def test_a_body_of_almost_four_mebibytes_arrives(peer: Callable[..., NodePeer]) -> None:
    """Checklist 6: Node.js has gRPC's own limit of 4 MiB for what it receives."""
    size = int(3.9 * (1 << 20))
    peer("producer", topics=["node-large"]).do("send", topic="node-large", first=0, count=1, size=size)
    consumer = peer("simple", group="node-large", topic="node-large")
    consumer.do("take", count=1, empty=10)
    assert [(s["got"], s["size"], s["corrupted"]) for s in consumer.of("got")] == [(0, size, False)]


def test_a_message_comes_again_after_its_changed_invisible_time(peer: Callable[..., NodePeer]) -> None:
    """Checklist 40."""
    peer("producer", topics=["node-nack"]).do("send", topic="node-nack", first=7, count=1)
    consumer = peer("simple", group="node-nack", topic="node-nack")
    consumer.do("nack", invisible_ms=1_000)
    first, second = consumer.of("got")
    assert [(s["got"], s["attempt"]) for s in (first, second)] == [(7, 1), (7, 2)]
    assert 900 <= second["at_ms"] - first["at_ms"] <= 8_000, "polls of the other broker may come between, 2 s each"


def test_a_delayed_message_comes_at_its_time_and_a_recalled_one_never(
    cluster: LocalCluster, peer: Callable[..., NodePeer]
) -> None:
    """Checklist 26, at the access point."""
    evenq(cluster, "topic", "create", "node-delay", "--type", "DELAY")
    sender = peer("producer", topics=["node-delay"])
    sender.do("send", topic="node-delay", first=0, count=3, delay_ms=3_000)
    assert sender.do("recall", topic="node-delay", number=1)["same"]
    consumer = peer("simple", group="node-delay", topic="node-delay")
    consumer.do("take", count=3, empty=4)
    assert sorted(consumer.numbers()) == [0, 2]
    due_ms = {s["sent"]: s["due_ms"] for s in sender.of("sent")}
    # the SDK sends whole seconds of a delivery time's milliseconds, and a poll may stand at the other broker
    assert all(-1_000 <= s["at_ms"] - due_ms[s["got"]] < 6_000 for s in consumer.of("got"))


def test_fifo_groups_arrive_in_order_with_both_consumers(cluster: LocalCluster, peer: Callable[..., NodePeer]) -> None:
    """Checklist 21."""
    evenq(cluster, "topic", "create", "node-fifo", "--type", "FIFO")
    sender = peer("producer", topics=["node-fifo"])
    for group, role in (("node-fifo-simple", "simple"), ("node-fifo-push", "push")):
        evenq(cluster, "group", "create", group, "--ordered", "--from", "FIRST")
        if role == "simple":
            sender.do("send", topic="node-fifo", first=0, count=40, message_groups=4)
            consumer = peer("simple", group=group, topic="node-fifo")
            consumer.do("take", count=40, empty=10)
        else:
            consumer = peer("push", group=group, topic="node-fifo", fail="never")
            wait_for_all([consumer], set(range(40)))
        for message_group in range(4):
            numbers = [s["got"] for s in consumer.of("got") if s["group"] == f"group-{message_group}"]
            assert numbers == list(range(message_group, 40, 4)), (role, numbers)


def test_priorities_come_highest_first(cluster: LocalCluster, peer: Callable[..., NodePeer]) -> None:
    evenq(cluster, "topic", "create", "node-priority", "--type", "PRIORITY", "--queues", "4")
    peer("producer", topics=["node-priority"]).do("send", topic="node-priority", first=0, count=12, priorities=3)
    consumer = peer("simple", group="node-priority", topic="node-priority")
    consumer.do("take", count=12, empty=10)
    assert sorted(consumer.numbers()) == list(range(12))
    for broker in cluster.brokers:
        priorities = [s["priority"] for s in consumer.of("got") if s["from"] == broker.address]
        assert priorities == sorted(priorities, reverse=True)


def test_transactions_end_as_decided_and_orphans_as_another_producer_says(
    cluster: LocalCluster, peer: Callable[..., NodePeer]
) -> None:
    """Checklist 24, 25."""
    evenq(cluster, "topic", "create", "node-transaction", "--type", "TRANSACTION")
    living = peer("producer", topics=["node-transaction"], decide=True)
    sender = peer("producer", topics=["node-transaction"], decide=True)
    sender.do("transact", topic="node-transaction", first=0, count=12)
    assert len({s["transaction"] for s in sender.of("transaction")}) == 12
    sender.process.kill()
    left_open = {2, 5, 8, 11}
    living.wait(lambda said: {s["asked"] for s in said if "asked" in s} >= left_open)
    assert all(s["body"] == f"body-{s['asked']}" for s in living.of("asked"))
    consumer = peer("simple", group="node-transaction", topic="node-transaction")
    consumer.do("take", count=6, empty=8)
    assert sorted(consumer.numbers()) == [0, 3, 5, 6, 9, 11]


def test_push_consumers_share_a_topic_and_leave_cleanly(peer: Callable[..., NodePeer]) -> None:
    """Checklist 32, 49: nothing is delivered twice, and the SDK's end is not longer than its polls."""
    members = [peer("push", group="node-push", topic="node-push", fail="never") for _ in range(2)]
    sender = peer("producer", topics=["node-push"])
    sender.do("send", topic="node-push", first=0, count=300)
    wait_for_all(members, set(range(300)))
    times = Counter(number for member in members for number in member.numbers())
    assert set(times.values()) == {1}
    for member in members:
        member.tell("stop")
    for member in members:
        member.wait(lambda said: any(s.get("done") == "stop" for s in said))
        # an idle push consumer waits for its open poll before it says good-bye (wire contract 10)
        assert member.of("shutdown_ms")[0]["shutdown_ms"] < 14_000
        assert member.process.wait(60) == 0, "no error after its shutdown"


def test_an_idle_push_consumer_stops_within_seconds(peer: Callable[..., NodePeer]) -> None:
    """Its poll has just begun, so it waits for the whole of it: 5 s, and not 15."""
    member = peer("push", group="node-idle", topic="node-idle", fail="never")
    threading.Event().wait(2)
    shutdown_ms = member.do("stop")["shutdown_ms"]
    print(f"an idle push consumer stopped within {shutdown_ms} ms")
    assert shutdown_ms < 14_000


def test_a_failed_message_comes_again_after_the_groups_pause(peer: Callable[..., NodePeer]) -> None:
    """Checklist 43: 10 s, and not 10 ms, with the SDK that takes milliseconds for seconds."""
    consumer = peer("push", group="node-retry", topic="node-retry", fail="first")
    peer("producer", topics=["node-retry"]).do("send", topic="node-retry", first=7, count=1)
    consumer.wait(lambda said: any(s.get("got") == 7 for s in said))
    (failed,), (got,) = consumer.of("failed"), consumer.of("got")
    assert (failed["attempt"], got["attempt"]) == (1, 2)
    assert 9_000 <= got["at_ms"] - failed["at_ms"] <= 60_000


def test_what_always_fails_ends_among_the_dead_letters(cluster: LocalCluster, peer: Callable[..., NodePeer]) -> None:
    """Checklist 41, standard; 42, FIFO, where the SDK tries again by itself and then asks to forward."""
    options = ("--max-attempts", "2", "--from", "FIRST", "--retry-delays", "1s")
    evenq(cluster, "group", "create", "node-dead", *options)
    evenq(cluster, "topic", "create", "node-dead-fifo", "--type", "FIFO")
    evenq(cluster, "group", "create", "node-dead-fifo", "--ordered", *options)
    standard = peer("push", group="node-dead", topic="node-dead", fail="always")
    fifo = peer("push", group="node-dead-fifo", topic="node-dead-fifo", fail="always")
    sender = peer("producer", topics=["node-dead", "node-dead-fifo"])
    sender.do("send", topic="node-dead", first=1, count=1)
    sender.do("send", topic="node-dead-fifo", first=2, count=1, message_groups=1)
    pause = threading.Event()
    for consumer, group, number in ((standard, "node-dead", 1), (fifo, "node-dead-fifo", 2)):
        consumer.wait(lambda said: sum("failed" in s for s in said) >= 2)
        letters: list[dict[str, Any]] = []
        for _ in range(600):
            letters = json.loads(evenq(cluster, "dlq", "list", group, "--json"))["letters"]
            if letters:
                break
            pause.wait(0.1)
        assert [letter["message_id"] for letter in letters] == [
            s["id"] for s in sender.of("sent") if s["sent"] == number
        ]
        assert consumer.numbers("failed") == [number, number]


def test_clients_go_on_by_themselves_after_kill_9_of_their_access_point(
    cluster: LocalCluster, peer: Callable[..., NodePeer]
) -> None:
    """Checklist 11, 12: within 35 s, also with what asks telemetry: the check of an orphan."""
    topic = "node-restart"
    evenq(cluster, "topic", "create", topic, "--type", "TRANSACTION")
    consumer = peer("push", group=topic, topic=topic, fail="never")
    living = peer("producer", topics=[topic], decide=True)
    living.do("transact", topic=topic, first=0, count=3)
    wait_for_all([consumer], {0})
    cluster.brokers[0].kill()
    cluster.brokers[0].restart()
    dying = peer("producer", topics=[topic], decide=True)
    dying.do("transact", topic=topic, first=3, count=6)
    dying.process.kill()
    living.wait(lambda said: {s["asked"] for s in said if "asked" in s} >= {5, 8}, seconds=60)
    wait_for_all([consumer], {0, 3, 5, 6}, seconds=60)
    living.do("transact", topic=topic, first=9, count=1)
    wait_for_all([consumer], {9}, seconds=60)


def test_a_message_that_is_refused_twice_for_haste_is_sent_by_the_third_try(
    cluster: LocalCluster, peer: Callable[..., NodePeer]
) -> None:
    """Checklist 23: Node.js waits between its tries as the settings say, and the message is stored once."""
    command = [sys.executable, str(FRONT), cluster.endpoint, "2"]
    front = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert front.stdout is not None
        sender = peer("producer", endpoint=front.stdout.readline().strip(), topics=["node-haste"])
        sender.do("send", topic="node-haste", first=0, count=3)
        consumer = peer("simple", group="node-haste", topic="node-haste")
        consumer.do("take", count=4, empty=3)
        assert sorted(consumer.numbers()) == [0, 1, 2]
    finally:
        front.kill()
        front.communicate()


def test_4_with_its_keys_the_sdk_sends_and_receives_and_without_it_raises(
    tmp_path: Path, modules: Path, signed: LocalCluster, keep: Callable[[Peer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster that takes signed calls only; the signature of this SDK is in upper case, its dates in UTC."""
    monkeypatch.setenv("PEER_ACCESS_KEY", "node")

    def peer(secret: str) -> NodePeer:
        monkeypatch.setenv("PEER_SECRET_KEY", secret)
        made = NodePeer(tmp_path, modules)
        keep(made)
        return made

    producer = peer("secret-of-node")
    producer.do("producer", endpoint=signed.endpoint, topics=["signed"])
    producer.do("send", topic="signed", first=0, count=20)
    consumer = peer("secret-of-node")
    consumer.do("simple", endpoint=signed.endpoint, group="signed-simple", topic="signed")
    consumer.do("take", count=20, empty=10)
    assert sorted(consumer.numbers()) == list(range(20))
    pushed = peer("secret-of-node")
    pushed.do("push", endpoint=signed.endpoint, group="signed-push", topic="signed", fail="never")
    wait_for_all([pushed], set(range(20)))

    without = peer("secret-of-node")
    without.do("simple", endpoint=signed.endpoint, group="other-group", topic="signed")
    without.tell("take", count=1, empty=1)
    without.wait(lambda said: len([one for one in said if "done" in one]) > 1)
    assert "may not consume group other-group" in without.of("done")[1]["error"]

    stranger = peer("wrong-secret")
    stranger.tell("producer", endpoint=signed.endpoint, topics=["signed"])
    stranger.wait(lambda said: any("done" in one for one in said))
    answer = stranger.of("done")[0]
    assert "Failed to fetch topic routes" in answer["error"]  # the SDK keeps the code for its log
    lines = [json.loads(line) for line in signed.brokers[0].log_text().splitlines() if '"event": "call refused' in line]
    assert {(line["user"], line["code"]) for line in lines} == {("node", 40100), ("node", 40300)}


def test_a_namespace_is_a_wall_and_its_clients_notice_nothing_of_it(
    tmp_path: Path, modules: Path, signed: LocalCluster, keep: Callable[[Peer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This SDK tells its namespace with a message only; everywhere else it stands in the header alone (contract 2.4)."""
    keys = {"EVENQ_ACCESS_KEY": "root", "EVENQ_SECRET_KEY": "secret-of-root"}
    for topic in ("orders", "shop%orders"):
        evenq(signed, "topic", "create", topic, **keys)
    for name, value in {"ACCESS_KEY": "tenant", "SECRET_KEY": "secret-of-tenant", "NAMESPACE": "shop"}.items():
        monkeypatch.setenv(f"PEER_{name}", value)

    def peer() -> NodePeer:
        made = NodePeer(tmp_path, modules)
        keep(made)
        return made

    producer = peer()
    producer.do("producer", endpoint=signed.endpoint, topics=["orders"])
    producer.do("send", topic="orders", first=0, count=20)
    consumer = peer()
    consumer.do("simple", endpoint=signed.endpoint, group="billing", topic="orders")
    consumer.do("take", count=20, empty=10)
    assert sorted(consumer.numbers()) == list(range(20))
    pushed = peer()
    pushed.do("push", endpoint=signed.endpoint, group="shipping", topic="orders", fail="never")
    wait_for_all([pushed], set(range(20)))
    listed = json.loads(evenq(signed, "topic", "list", "--json", **keys))
    stored = {one["topic"]: one["messages"] for one in listed}
    assert (stored["orders"], stored["shop%orders"]) == (0, 20)
