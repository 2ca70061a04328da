"""The official Java SDK (`org.apache.rocketmq:rocketmq-client-java` 5.2.0), unmodified, in one process for all tests.

Maven builds the client into a cache folder at the first run (`EVENQ_JAVA_CACHE`, else below the user's cache). Without
Maven or a JDK of version 17 or newer the tests are skipped; not in CI (`CI` or `EVENQ_TEST_ALL` is set): there they
fail.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
from evenq_proofs import official_sdks
from evenq_proofs.official_sdks import BUILD_SECONDS
from evenq_proofs.peer import Peer

import evenq
from evenq.model.retry import RetryKind, RetryPolicy
from evenq.testing import LocalCluster
from evenq.testing.certificates import Authority, here
from evenq.testing.free_ports import FreePorts

HERE = Path(__file__).parent
RECORDS_MAX = 10_000
"""What the SDK may log about two outages of some seconds, twenty sends a second among them: seven records a send."""
QUICK_END = {"POLL_DEFAULT_MS": "500"}
"""A push consumer that ends waits for its poll."""
CLOSING = 10
"""Clients of each kind that close after a restart."""
AUTO_CREATE = {"AUTO_CREATE_TOPICS": "true", "AUTO_CREATE_GROUPS": "true", "DEFAULT_START_FROM": "FIRST"}
BROKER_SETTINGS = {"TRANSACTION_FIRST_CHECK_MS": "2000", "TRANSACTION_CHECK_INTERVAL_MS": "2000"}
pytestmark = pytest.mark.timeout(BUILD_SECONDS + 300)


@dataclass(frozen=True, slots=True)
class Client:
    """One client of the process, by its name."""

    name: str
    process: Peer

    def do(self, action: str, *, seconds: float = 60, **fields: object) -> dict[str, Any]:
        """Give one command and wait for its end. Fails if the client raised."""
        answer = self.attempt(action, seconds=seconds, **fields)
        assert "error" not in answer, (answer, self.process.log_path)
        return answer

    def attempt(self, action: str, *, seconds: float = 60, **fields: object) -> dict[str, Any]:
        """The same; what the client raised is the answer's `error`."""
        before = len(self.of("done"))
        self.process.write(json.dumps({"do": action, "client": self.name, **fields}))
        self.wait(lambda: len(self.of("done")) > before, seconds=seconds)
        return self.of("done")[before]

    def of(self, key: str) -> list[dict[str, Any]]:
        """All that it said and that has the key."""
        return [said for said in self.process.of(key) if said["client"] == self.name]

    def numbers(self, key: str = "got") -> list[int]:
        """The values of the key, in order."""
        return [said[key] for said in self.of(key)]

    def wait(self, ready: Callable[[], bool], *, seconds: float = 60) -> None:
        """Until what it said is enough. Raises AssertionError after `seconds`."""
        self.process.wait(lambda _: ready(), seconds=seconds)

    def wait_for(self, wanted: Iterable[int], *, key: str = "got", seconds: float = 60) -> None:
        """Until it named all of it. Raises AssertionError after `seconds`."""
        expected = set(wanted)
        self.wait(lambda: expected <= set(self.numbers(key)), seconds=seconds)

    def wait_past(self, number: int, *, seconds: float = 60) -> None:
        """Until it got this number or a later one. Raises AssertionError after `seconds`."""
        self.wait(lambda: any(got >= number for got in self.numbers()), seconds=seconds)


@pytest.fixture(scope="session")
def classpath(lacking: Callable[[str], NoReturn]) -> str:
    """The client, built from its pom, and the SDK."""
    try:
        return official_sdks.java_classpath()
    except official_sdks.NotInstalled as error:
        lacking(str(error))


@dataclass(frozen=True, slots=True)
class Java:
    """The process, and where its SDK logs."""

    process: Peer
    folder: Path

    def client(self, name: str, role: str, **fields: object) -> Client:
        """Make a client that is ready to work."""
        made = Client(name, self.process)
        made.do(role, **fields)
        return made

    def refused(self, name: str, role: str, **fields: object) -> str:
        """What a client raises that cannot start."""
        answer = Client(name, self.process).attempt(role, **fields)
        assert "error" in answer, "it started"
        return str(answer["error"])

    def records(self) -> int:
        """How many the SDK logged so far; the traces of errors are not counted."""
        return sum(len(re.findall(rb"(?m)^20", path.read_bytes())) for path in self.folder.rglob("*.log"))


@pytest.fixture(scope="module")
def java(classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java]:
    """One process for the module."""
    folder = tmp_path_factory.mktemp("java")
    process = Peer(official_sdks.java_peer(classpath, folder), log_path=folder / "stderr.txt")
    yield Java(process, folder)
    process.end()


@pytest.fixture
def start(java: Java, cluster: LocalCluster) -> Callable[..., Client]:
    """Makes a client of a role for the module's cluster."""

    def made(name: str, role: str, **fields: object) -> Client:
        return java.client(name, role, **{"endpoint": cluster.endpoint, **fields})

    return made


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[evenq.Admin]:
    with evenq.Admin(endpoint=cluster.endpoint) as made:
        yield made


def test_it_sends_and_takes_what_its_tag_asks_for(start: Callable[..., Client]) -> None:
    """Checklist 15, 19, 29, 30, 31."""
    sender = start("simple-sender", "producer", topic="java-simple")
    sender.do("send", topic="java-simple", first=0, count=60)
    receipts = sender.of("sent")
    assert len({s["id"] for s in receipts}) == 60
    consumer = start("simple-even", "simple", group="java-even", topic="java-simple", filter="even")
    assert consumer.do("take", count=31, empty=2)["count"] == 30, "acknowledged ones do not come again"
    got = consumer.of("got")
    assert sorted(consumer.numbers()) == list(range(0, 60, 2))
    assert all((s["tag"], s["attempt"]) == ("even", 1) for s in got)
    assert all((s["body"], s["keys"]) == (f"body-{s['got']}", [f"key-{s['got']}"]) for s in got)
    assert {s["id"] for s in got} == {s["id"] for s in receipts if s["sent"] % 2 == 0}
    chosen = start(
        "simple-sql",
        "simple",
        group="java-sql",
        topic="java-simple",
        filter="SQL number BETWEEN 10 AND 19 AND TAGS = 'odd'",
    )
    chosen.do("take", count=5, empty=10)
    assert sorted(chosen.numbers()) == [11, 13, 15, 17, 19]


def test_a_message_comes_again_after_its_changed_invisible_time(start: Callable[..., Client]) -> None:
    """The SDK received it for 30 s, and says then: 1 s."""
    start("nack-sender", "producer", topic="java-nack").do("send", topic="java-nack", first=7, count=1)
    consumer = start("nack", "simple", group="java-nack", topic="java-nack")
    consumer.do("nack", invisible_ms=1_000)
    first, second = consumer.of("got")
    assert [(s["got"], s["attempt"]) for s in (first, second)] == [(7, 1), (7, 2)]
    assert 900 <= second["at_ms"] - first["at_ms"] <= 8_000
    assert consumer.do("take", count=1, empty=2)["count"] == 0, "it is acknowledged"


def test_a_delayed_message_comes_at_its_time_and_a_recalled_one_never(
    admin: evenq.Admin, start: Callable[..., Client]
) -> None:
    """Checklist 26, at the access point."""
    admin.create_topic("java-delay", message_type="DELAY")
    sender = start("delay-sender", "producer", topic="java-delay")
    sender.do("send", topic="java-delay", first=0, count=3, delay_ms=3_000)
    receipts = {s["sent"]: s for s in sender.of("sent")}
    assert sender.do("recall", topic="java-delay", number=1)["id"] == receipts[1]["id"]
    consumer = start("delay", "simple", group="java-delay", topic="java-delay")
    consumer.do("take", count=2, empty=10)
    consumer.do("take", count=1, empty=2)
    assert sorted(consumer.numbers()) == [0, 2]
    assert all(0 <= s["at_ms"] - receipts[s["got"]]["due_ms"] < 5_000 for s in consumer.of("got"))


def test_message_groups_arrive_in_order_with_both_consumers(admin: evenq.Admin, start: Callable[..., Client]) -> None:
    """Checklist 21."""
    admin.create_topic("java-fifo", message_type="FIFO")
    for group in ("java-fifo-simple", "java-fifo-push"):
        admin.create_group(group, ordered=True, start_from="FIRST")
    sender = start("fifo-sender", "producer", topic="java-fifo")
    sender.do("send", topic="java-fifo", first=0, count=40, message_groups=4)
    simple = start("fifo-simple", "simple", group="java-fifo-simple", topic="java-fifo")
    simple.do("take", count=40, empty=5)
    push = start("fifo-push", "push", group="java-fifo-push", topic="java-fifo", fail="never")
    push.wait_for(range(40))
    for consumer in (simple, push):
        for group in range(4):
            numbers = [s["got"] for s in consumer.of("got") if s["group"] == f"group-{group}"]
            assert numbers == list(range(group, 40, 4)), (consumer.name, numbers)


def test_priorities_come_highest_first(cluster: LocalCluster, admin: evenq.Admin, start: Callable[..., Client]) -> None:
    """At one broker, because each has an order of its own."""
    admin.create_topic("java-priority", message_type="PRIORITY", brokers={"broker-a": 4})
    sender = start("priority-sender", "producer", topic="java-priority")
    sender.do("send", topic="java-priority", first=0, count=12, priorities=3)
    consumer = start("priority", "simple", group="java-priority", topic="java-priority")
    consumer.do("take", count=12, empty=5)
    assert sorted(consumer.numbers()) == list(range(12))
    assert [s["priority"] for s in consumer.of("got")] == [2] * 4 + [1] * 4 + [0] * 4


def test_transactions_end_as_decided_and_orphans_as_another_producer_says(
    admin: evenq.Admin, start: Callable[..., Client]
) -> None:
    """Checklist 24, 25: of each three one is committed, one rolled back, and one left open by a producer that ends."""
    topic = "java-transaction"
    admin.create_topic(topic, message_type="TRANSACTION")
    living = start("transaction-living", "producer", topic=topic, decide=True)
    sender = start("transaction-sender", "producer", topic=topic, decide=True)
    sender.do("transact", topic=topic, first=0, count=12)
    sender.do("close")
    living.wait_for({2, 5, 8, 11}, key="asked")
    assert not sender.of("asked")
    assert all(s["body"] == f"body-{s['asked']}" for s in living.of("asked"))
    consumer = start("transaction", "simple", group=topic, topic=topic)
    consumer.do("take", count=6, empty=60)  # the last decisions are calls that may still be under way
    consumer.do("take", count=1, empty=2)
    assert sorted(consumer.numbers()) == [0, 3, 5, 6, 9, 11]


def test_push_consumers_share_a_topic_and_an_idle_one_stops_within_seconds(start: Callable[..., Client]) -> None:
    """Checklist 32, 49: nothing is delivered twice, and the SDK's end is not longer than its polls, 5 s each."""
    members = [start(f"push-{n}", "push", group="java-push", topic="java-push", fail="never") for n in range(2)]
    start("push-sender", "producer", topic="java-push").do("send", topic="java-push", first=0, count=200)
    members[0].wait(lambda: {n for member in members for n in member.numbers()} >= set(range(200)))
    times = Counter(number for member in members for number in member.numbers())
    assert set(times.values()) == {1}
    shutdown_ms = members[0].do("close")["shutdown_ms"]
    print(f"an idle push consumer stopped within {shutdown_ms} ms")
    assert shutdown_ms < 9_000


def test_a_failed_message_comes_again_and_what_always_fails_is_a_dead_letter(
    admin: evenq.Admin, start: Callable[..., Client]
) -> None:
    """Checklist 41."""
    policy = RetryPolicy(kind=RetryKind.CUSTOMIZED, delays_ms=(1_000,))
    for name in ("java-retry", "java-dead"):
        admin.create_group(name, start_from="FIRST", max_attempts=2, retry=policy)
    retrying = start("retry", "push", group="java-retry", topic="java-retry", fail="first")
    failing = start("dead", "push", group="java-dead", topic="java-retry", fail="always")
    sender = start("retry-sender", "producer", topic="java-retry")
    sender.do("send", topic="java-retry", first=7, count=1)
    retrying.wait_for({7})
    (failed,), (got,) = retrying.of("failed"), retrying.of("got")
    assert (failed["attempt"], got["attempt"]) == (1, 2)
    assert 900 <= got["at_ms"] - failed["at_ms"] < 9_000
    pause, tries = threading.Event(), 200
    while tries and not admin.list_dead_letters("java-dead").letters:
        pause.wait(0.05)
        tries -= 1
    letters = start("letters", "simple", group="java-letters", topic="%DLQ%java-dead")
    letters.do("take", count=1, empty=5)
    assert [(s["got"], s["body"]) for s in letters.of("got")] == [(7, "body-7")]
    assert [s["attempt"] for s in failing.of("failed")] == [1, 2]


def test_a_message_that_is_refused_twice_for_haste_is_sent_by_the_third_try(
    cluster: LocalCluster, start: Callable[..., Client]
) -> None:
    """Checklist 23: the message is stored once."""
    command = [sys.executable, str(HERE / "throttling_front.py"), cluster.endpoint, "2"]
    front = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert front.stdout is not None
        endpoint = front.stdout.readline().strip()
        sender = start("haste-sender", "producer", endpoint=endpoint, topic="java-haste")
        sender.do("send", topic="java-haste", first=0, count=3)
        sender.do("close")
        consumer = start("haste", "simple", group="java-haste", topic="java-haste")
        consumer.do("take", count=4, empty=2)
        assert sorted(consumer.numbers()) == [0, 1, 2]
    finally:
        front.kill()
        front.communicate()


def test_clients_go_on_after_restarts_of_the_only_broker_and_lose_nothing(tmp_path: Path, java: Java) -> None:
    """Checklist 11, 12: it stops in order, then by kill -9, while one sends and two groups take. A third reads all."""
    settings = {**QUICK_END, "DEFAULT_START_FROM": "FIRST", "DRAIN_MS": "3000"}
    with LocalCluster(brokers=1, folder=tmp_path / "cluster", broker_settings=settings) as cluster:
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic("steady", queues=2)
            for group in ("steady-simple", "steady-push", "steady-late"):
                admin.create_group(group, start_from="FIRST")
        at = {"endpoint": cluster.endpoint, "topic": "steady"}
        sender = java.client("steady-sender", "producer", **at)
        simple = java.client("steady-simple", "simple", group="steady-simple", **at)
        push = java.client("steady-push", "push", group="steady-push", fail="never", **at)

        def ten_more() -> None:
            """Sends succeed, and both groups get messages sent from now on."""
            sent = len(sender.of("sent"))
            sender.wait(lambda: len(sender.of("sent")) >= sent + 10, seconds=60)
            newest = sender.numbers("sent")[-1]
            for consumer in (simple, push):
                consumer.wait_past(newest, seconds=60)

        sender.do("stream", topic="steady")
        simple.do("drain")
        ten_more()
        before, broker, waits = java.records(), cluster.brokers[0], []
        for end in (broker.stop, broker.kill):
            end()
            broker.restart()
            up = time.monotonic()
            ten_more()
            waits.append(round(time.monotonic() - up, 1))
        sender.do("rest")
        sent = set(sender.numbers("sent"))
        for consumer in (simple, push):
            consumer.wait_for(sent)
        simple.do("rest")
        late = java.client("steady-late", "simple", group="steady-late", **at)
        late.do("take", count=len(sent), empty=3)
        assert sent <= set(late.numbers()), "what was acknowledged is kept, no matter which client had it"
        records = java.records() - before
        print(f"again within (s) {waits}; sent {len(sent)}, refused {len(sender.of('refused'))}; logged {records}")
        assert records < RECORDS_MAX
        for one in (sender, simple, push, late):
            one.do("close")


def test_clients_that_close_while_their_stream_is_opened_again_are_closed_soon(tmp_path: Path, java: Java) -> None:
    """One second after a stream broke the SDK opens it again, also when the client was closed in between, and then
    waits for the stream's end without limit. These close at ten moments of that second; the goodbyes of the first ones
    may not reach the broker.
    """
    settings = {**QUICK_END, "DEFAULT_START_FROM": "FIRST", "CLIENT_LOST_MS": "3000", "CLIENT_GRACE_MS": "1000"}
    with LocalCluster(brokers=1, folder=tmp_path / "cluster", broker_settings=settings) as cluster:
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic("closing", queues=1)
            admin.create_group("closing")
        at = {"endpoint": cluster.endpoint, "topic": "closing"}
        senders = [java.client(f"closing-sender-{number}", "producer", **at) for number in range(CLOSING)]
        takers = [java.client(f"closing-{number}", "simple", group="closing", **at) for number in range(CLOSING)]
        broker = cluster.brokers[0]
        broker.kill()
        broker.restart()
        pause = threading.Event()
        for pair in zip(senders, takers, strict=True):
            for client in pair:
                client.do("close", seconds=10)
            pause.wait(1 / CLOSING)
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            tries = 200
            while tries and (members := admin.describe_group("closing").members):
                pause.wait(0.05)
                tries -= 1
            assert not members, "nobody who was closed is a member"


def test_tls_and_plain_text_side_by_side_and_a_client_of_the_other_kind_does_not_start(
    tmp_path: Path, java: Java
) -> None:
    """Checklist 1: a client that receives an address of the other kind gets no further than its access point."""
    pair = Authority(tmp_path / "tls").sign("server", hosts=here())
    with FreePorts() as ports:
        secure = ports.take()
        tls = {"TLS__PORT": str(secure), "TLS__CERTIFICATE": str(pair.certificate), "TLS__KEY": str(pair.key)}
        settings = {**tls, **QUICK_END, **AUTO_CREATE}
        with LocalCluster(rebalancer=False, folder=tmp_path / "cluster", broker_settings=settings) as both:
            doors = {True: f"127.0.0.1:{secure}", False: both.endpoint}
            clients = []
            for on, endpoint in doors.items():
                sender = java.client(f"tls-sender-{on}", "producer", tls=on, endpoint=endpoint, topic="tls")
                sender.do("send", topic="tls", first=10 * on, count=10)
                clients.append(sender)
            for on, endpoint in doors.items():
                at = {"tls": on, "endpoint": endpoint, "topic": "tls"}
                simple = java.client(f"tls-simple-{on}", "simple", group=f"tls-simple-{on}", **at)
                simple.do("take", count=20, empty=5)
                assert sorted(simple.numbers()) == list(range(20))
                push = java.client(f"tls-push-{on}", "push", group=f"tls-push-{on}", fail="never", **at)
                push.wait_for(range(20))
                clients += [simple, push]
            wrong = java.refused("tls-at-plain", "producer", tls=True, endpoint=doors[False], topic="tls")
            assert "ssl" in wrong.lower()
            wrong = java.refused("plain-at-tls", "producer", tls=False, endpoint=doors[True], topic="tls")
            assert "UNAVAILABLE" in wrong
            for client in clients:
                client.do("close")


def test_4_with_its_keys_the_sdk_sends_and_receives_and_else_its_error_says_why(
    java: Java, signed: LocalCluster
) -> None:
    """A cluster that takes signed calls only; the signature of this SDK is in upper case, its dates in local time."""
    at = {"endpoint": signed.endpoint, "topic": "signed", "access_key": "java"}
    right = {**at, "secret_key": "secret-of-java"}
    java.client("signed-sender", "producer", **right).do("send", topic="signed", first=0, count=20)
    simple = java.client("signed-simple", "simple", group="signed-java-simple", **right)
    simple.do("take", count=20, empty=5)
    assert sorted(simple.numbers()) == list(range(20))
    java.client("signed-push", "push", group="signed-java-push", fail="never", **right).wait_for(range(20))
    wrong = java.refused("signed-wrong", "producer", **at, secret_key="wrong-secret")
    assert "UnauthorizedException" in wrong
    assert "response-code=40100] the signature is not right: unknown access key, or another secret key" in wrong
    unsigned = java.refused("signed-not", "producer", endpoint=signed.endpoint, topic="signed")
    assert "response-code=40100] the call is not signed" in unsigned
    forbidden = java.refused("signed-elsewhere", "producer", **{**right, "topic": "forbidden"})
    assert "response-code=40300] user java may not publish, consume or describe topic forbidden" in forbidden


def test_a_group_without_a_grant_is_an_error_of_receive_that_says_why(java: Java, signed: LocalCluster) -> None:
    """The SDK waits for its settings when it starts, and gives up without a word about rights if none come."""
    at = {"endpoint": signed.endpoint, "topic": "signed", "access_key": "java", "secret_key": "secret-of-java"}
    simple = java.client("stranger-simple", "simple", group="other-group", **at)
    refused = simple.attempt("take", count=1, empty=1)
    assert "response-code=40300] user java may not consume group other-group" in str(refused.get("error"))
    assert not simple.of("got")
    simple.do("close")
