"""The official Python SDK (`rocketmq-python-client`), unmodified, each client in a process of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.command_line import run_evenq
from evenq_proofs.nets import open_net
from evenq_proofs.peer import Peer, wait_for_all

import evenq
from evenq.testing import LocalCluster
from evenq.wire.stubs.evenq.v1 import assignment_pb2

PEER = Path(__file__).with_name("python_sdk_peer.py")
NAMES = [f"session-{number}" for number in range(6)]


def started(folder: Path, *arguments: str) -> Peer:
    log_path = folder / f"peer-{arguments[0]}-{len(list(folder.iterdir()))}.log"
    return Peer([sys.executable, str(PEER), *arguments], log_path=log_path)


def stop(peer: Peer) -> None:
    peer.write("stop")
    peer.wait_done()


@pytest.fixture
def peer(tmp_path: Path, cluster: LocalCluster, keep: Callable[[Peer], None]) -> Callable[..., Peer]:
    def start(what: str, *arguments: object) -> Peer:
        made = started(tmp_path, what, cluster.endpoint, *map(str, arguments))
        keep(made)
        return made

    return start


def test_a_producer_sends_and_a_simple_consumer_takes_what_its_tag_asks_for(peer: Callable[..., Peer]) -> None:
    producer = peer("produce", "compat-simple", 0, 60)
    producer.wait_done()
    receipts = [s["id"] for s in producer.said if "id" in s]
    assert len(receipts) == 60
    assert len(set(receipts)) == 60

    consumer = peer("simple", "compat-simple", "compat-even", "even", 30)
    consumer.wait_done()
    assert sorted(consumer.numbers()) == list(range(0, 60, 2))
    assert {s["tag"] for s in consumer.said if "got" in s} == {"even"}
    assert all(
        s["body"] == f"body-{s['got']}" and s["keys"] == [f"key-{s['got']}"] for s in consumer.said if "got" in s
    )
    assert all(s["attempt"] == 1 for s in consumer.said if "got" in s)


def test_a_simple_consumer_gets_a_message_again_after_its_changed_invisible_time(peer: Callable[..., Peer]) -> None:
    peer("produce", "compat-nack", 1, 1).wait_done()
    consumer = peer("nack", "compat-nack", "compat-nack-group")
    consumer.wait_done()
    first, second = (s for s in consumer.said if "got" in s)
    assert (first["got"], first["attempt"]) == (1, 1)
    assert (second["got"], second["attempt"]) == (1, 2)
    assert 0.9 <= second["after_s"] <= 25, (
        "long before its first invisible time ends; polls of the other broker come between"
    )


def test_a_delayed_message_comes_at_its_time_and_a_recalled_one_never(
    cluster: LocalCluster, peer: Callable[..., Peer]
) -> None:
    run_evenq("topic", "create", "compat-delay", "--type", "DELAY", endpoint=cluster.endpoint)
    client = peer("delay", "compat-delay", "compat-delay-group")
    client.wait_done()
    assert client.numbers("recalled") == [True]
    assert sorted(client.numbers()) == [0, 2]
    assert client.numbers("left") == [0]
    late = [s["after_due_s"] for s in client.said if "got" in s]
    assert all(0 <= seconds < 30 for seconds in late), late


def test_transactions_end_as_decided_and_orphans_as_another_producer_says(
    cluster: LocalCluster, peer: Callable[..., Peer]
) -> None:
    """Wire contract 8: 25. Of each three messages one is committed, one rolled back, one left open by a producer that
    ends; a producer that never sent anything is asked about those: it commits the odd ones.
    """
    run_evenq("topic", "create", "compat-transaction", "--type", "transaction", endpoint=cluster.endpoint)
    living = peer("checker", "compat-transaction")
    living.wait(lambda said: any("ready" in s for s in said))
    sender = peer("transact", "compat-transaction", 0, 12)
    sender.wait_done()
    assert len({s["transaction"] for s in sender.said if "transaction" in s}) == 12
    left_open = [2, 5, 8, 11]
    living.wait(lambda said: sorted(s["asked"] for s in said if "asked" in s) == left_open)  # 6 s after each was sent
    assert all(s["body"] == f"body-{s['asked']}" and s["attempt"] == 1 for s in living.said if "asked" in s)
    consumer = peer("simple", "compat-transaction", "compat-transaction-group", "paid", 6)
    consumer.wait_done()
    assert sorted(consumer.numbers()) == [0, 3, 5, 6, 9, 11]
    assert {s["tag"] for s in consumer.said if "got" in s} == {"paid"}
    stop(living)


def test_push_consumers_share_a_topic_two_members_then_three(peer: Callable[..., Peer]) -> None:
    members = [peer("push", "compat-push", "compat-push-group") for _ in range(2)]
    for member in members:
        member.wait(lambda said: any("ready" in s for s in said))
    peer("produce", "compat-push", 0, 300).wait_done()
    wait_for_all(members, set(range(300)))

    members.append(peer("push", "compat-push", "compat-push-group"))
    members[2].wait(lambda said: any("ready" in s for s in said))
    members[2].wait(lambda _: True)
    for batch in range(1, 6):  # the newcomer's first assignment scan comes within seconds of its start
        peer("produce", "compat-push", batch * 300, 300).wait_done()
        wait_for_all(members, set(range((batch + 1) * 300)))
        if members[2].numbers():
            break
    assert members[2].numbers(), "the third member never got anything"
    times = Counter(number for member in members for number in member.numbers())
    assert set(times.values()) == {1}, "nothing is delivered twice while no client fails"
    for member in members:
        stop(member)
    # an idle push consumer waits for its open poll before it says good-bye (wire contract 10): 5 s, and not 15
    assert all(s["shutdown_s"] < 14 for member in members for s in member.said if "done" in s)


def test_an_idle_push_consumer_stops_within_seconds(peer: Callable[..., Peer]) -> None:
    """Its poll has just begun, so it waits for the whole of it: 5 s, and not 15."""
    member = peer("push", "compat-idle", "compat-idle-group")
    member.wait(lambda said: any("ready" in s for s in said))
    time.sleep(2)
    stop(member)
    (seconds,) = [s["shutdown_s"] for s in member.said if "done" in s]
    print(f"an idle push consumer stopped within {seconds:.1f} s")
    assert seconds < 14


def test_push_consumers_of_a_group_with_a_strategy_own_queues_two_then_three_then_two(
    cluster: LocalCluster, peer: Callable[..., Peer]
) -> None:
    """Wire contract 6.3: STICKY, decided by the rebalancer; nothing is lost and every queue has an owner all the time."""
    name = "compat-sticky"
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic(name, queues=4)
        admin.create_group(name, strategy="STICKY", start_from="FIRST")

    def joined() -> Peer:
        member = peer("push", name, name)
        member.wait(lambda said: any("ready" in s for s in said))
        return member

    def batch(members: list[Peer]) -> None:
        """Messages to every queue; each comes to some member."""
        first = batches[0] * 80
        peer("produce", name, first, 80).wait_done()
        batches[0] += 1
        wait_for_all([*members, *gone], set(range(batches[0] * 80)))

    def shared(members: list[Peer], sizes: list[int]) -> None:
        """Until the rebalancer gave this number of the 8 queues to each, and each that had none before works."""
        deadline = time.monotonic() + 60
        while sorted(Counter(owners_of(cluster, name)).values()) != sizes:
            assert time.monotonic() < deadline, owners_of(cluster, name)
            batch(members)

    batches, gone = [0], list[Peer]()
    members = [joined(), joined()]
    shared(members, [4, 4])
    batch(members)
    before = owners_of(cluster, name)
    members.append(joined())
    shared(members, [2, 3, 3])
    after = owners_of(cluster, name)
    newcomer = next(iter(set(after) - set(before)))
    assert all(was == now or now == newcomer for was, now in zip(before, after, strict=True)), "only to the newcomer"
    while not members[2].numbers():
        batch(members)
    members[0].stop()
    gone.append(members.pop(0))
    shared(members, [4, 4])
    batch(members)
    times = Counter(number for member in [*members, *gone] for number in member.numbers())
    assert set(times) == set(range(batches[0] * 80)), "lost 0"
    assert set(times.values()) == {1}, "repeated 0"


def owners_of(cluster: LocalCluster, name: str) -> list[str]:
    """Of each queue, by the rebalancer."""
    request = assignment_pb2.ExplainRequest(group=name, topic=name).SerializeToString()

    async def ask() -> list[str]:
        async with open_net() as net:
            raw = await net.unary(cluster.endpoint, "/evenq.v1.Assignment/Explain", request, timeout_ms=60_000)
        response = assignment_pb2.ExplainResponse.FromString(raw)
        return [queue.owner for queue in response.queues]

    return asyncio.run(ask())


def test_a_failed_message_comes_again_with_its_attempt_counted(peer: Callable[..., Peer]) -> None:
    consumer = peer("push", "compat-retry", "compat-retry-group", "fail-first")
    consumer.wait(lambda said: any("ready" in s for s in said))
    peer("produce", "compat-retry", 7, 1).wait_done()
    consumer.wait(lambda said: any(s.get("got") == 7 for s in said))
    assert [s["attempt"] for s in consumer.said if s.get("failed") == 7] == [1]
    assert [s["attempt"] for s in consumer.said if s.get("got") == 7] == [2]
    stop(consumer)


def test_sql_expressions_select_for_simple_and_push_consumers(peer: Callable[..., Peer]) -> None:
    """Wire contract 5.4, and 8: a filter's rest is skipped for the group."""
    wanted = "SQL number BETWEEN 10 AND 29 AND TAGS = 'even'"
    push = peer("push", "compat-sql", "compat-sql-push", wanted)
    push.wait(lambda said: any("ready" in s for s in said))
    peer("produce", "compat-sql", 0, 60).wait_done()
    expected = set(range(10, 30, 2))
    wait_for_all([push], expected)
    simple = peer("simple", "compat-sql", "compat-sql-simple", wanted, len(expected))
    simple.wait_done()
    assert sorted(simple.numbers()) == sorted(expected)
    assert sorted(push.numbers()) == sorted(expected)
    stop(push)


def test_a_wrong_sql_expression_is_told_with_its_place(tmp_path: Path, peer: Callable[..., Peer]) -> None:
    peer("produce", "compat-sql-wrong", 0, 1).wait_done()  # readers make no topic
    consumer = peer("simple", "compat-sql-wrong", "compat-sql-wrong", "SQL number LIKE '1%'", 1)
    consumer.process.wait(60)
    logs = "".join(log.read_text(errors="replace") for log in tmp_path.glob("peer-simple-*.log"))
    assert "column 8: LIKE is not known" in logs


def create(cluster: LocalCluster, name: str, kind: str) -> None:
    command = ["topic", "create", name, "--type", kind, "--endpoint", cluster.endpoint]
    subprocess.run([sys.executable, "-m", "evenq.cli", *command], check=True, capture_output=True)


def in_order(got: list[Any], count: int) -> None:
    for name in NAMES:
        assert [number for at, number in got if at == name] == list(range(count)), name


def test_the_highest_priority_comes_first(cluster: LocalCluster, peer: Callable[..., Peer]) -> None:
    create(cluster, "compat-priority", "priority")
    client = peer("prioritized", "compat-priority", "compat-priority-group", "0,3,9,5,3,70,1")
    client.wait_done()
    got = client.numbers()
    assert sorted(got) == [0, 1, 3, 3, 5, 9, 70]


def test_47_lite_simple_consumers_get_their_lite_topics_of_all_brokers_in_order(
    cluster: LocalCluster, peer: Callable[..., Peer]
) -> None:
    """Checklist 47. The consumer tells its access point what it wants, and asks the first broker of the route only."""
    create(cluster, "compat-lite", "lite")
    producer = peer("lite-produce", "compat-lite", ",".join(NAMES), 4)
    producer.wait_done()
    peer("lite-produce", "compat-lite", "somebody-elses", 3).wait_done()
    consumer = peer("lite-simple", "compat-lite", "compat-lite-group", ",".join(NAMES), 24)
    consumer.wait_done()
    got = consumer.numbers()
    assert len(got) == 24
    in_order(got, 4)
    assert {said["attempt"] for said in consumer.said if "got" in said} == {1}
    assert {said["topic"] for said in consumer.said if "got" in said} == {"compat-lite"}
    assert "max length 64" in str(consumer.numbers("refused")[0])


def test_47_lite_push_consumers_get_what_comes_in_order_and_failures_again(
    cluster: LocalCluster, peer: Callable[..., Peer]
) -> None:
    create(cluster, "compat-lite-push", "lite")
    consumer = peer("lite-push", "compat-lite-push", "compat-lite-push-group", ",".join(NAMES))
    consumer.wait(lambda said: any("ready" in s for s in said))
    peer("lite-produce", "compat-lite-push", ",".join(NAMES), 4).wait_done()
    consumer.wait(lambda said: sum("got" in s for s in said) == 24)
    in_order(consumer.numbers(), 4)
    stop(consumer)


def test_a_lite_push_consumer_that_fails_gets_the_message_again_before_the_next(
    cluster: LocalCluster, peer: Callable[..., Peer]
) -> None:
    create(cluster, "compat-lite-fail", "lite")
    consumer = peer("lite-push", "compat-lite-fail", "compat-lite-fail-group", "a", "fail-first")
    consumer.wait(lambda said: any("ready" in s for s in said))
    peer("lite-produce", "compat-lite-fail", "a", 1).wait_done()
    consumer.wait(lambda said: any("got" in s for s in said))
    assert [(s["got"], s["attempt"]) for s in consumer.said if "got" in s] == [(["a", 0], 2)]
    stop(consumer)


def test_a_push_consumer_goes_on_by_itself_after_kill_9_of_its_access_point(
    cluster: LocalCluster, peer: Callable[..., Peer]
) -> None:
    """Checklist 11."""
    consumer = peer("push", "compat-restart", "compat-restart")
    consumer.wait(lambda said: any("ready" in s for s in said))
    peer("produce", "compat-restart", 0, 20).wait_done()
    wait_for_all([consumer], set(range(20)))
    cluster.brokers[0].kill()
    cluster.brokers[0].restart()
    peer("produce", "compat-restart", 20, 20).wait_done()
    wait_for_all([consumer], set(range(40)), seconds=60)


def test_a_message_that_is_refused_for_haste_is_an_error_at_once_and_not_stored(
    tmp_path: Path, cluster: LocalCluster, peer: Callable[..., Peer]
) -> None:
    """Checklist 23: this SDK does not try again after TOO_MANY_REQUESTS; its caller hears of it."""
    command = [sys.executable, str(PEER.with_name("throttling_front.py")), cluster.endpoint, "1"]
    front = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert front.stdout is not None
        sender = started(tmp_path, "produce", front.stdout.readline().strip(), "compat-haste", "1", "1")
        assert sender.process.wait(60) != 0
        sender.end()
        logs = "".join(log.read_text(errors="replace") for log in tmp_path.glob("peer-produce-*.log"))
        assert "too fast" in logs
    finally:
        front.kill()
        front.communicate()
    peer("produce", "compat-haste", 2, 1).wait_done()
    consumer = peer("simple", "compat-haste", "compat-haste", "*", 1)
    consumer.wait_done()
    assert consumer.numbers() == [2]


@pytest.fixture
def signing_peer(
    tmp_path: Path, signed: LocalCluster, keep: Callable[[Peer], None], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Peer]:
    def start(secret: str, what: str, *arguments: object) -> Peer:
        monkeypatch.setenv("PEER_ACCESS_KEY", "python")
        monkeypatch.setenv("PEER_SECRET_KEY", secret)
        made = started(tmp_path, what, signed.endpoint, *map(str, arguments))
        keep(made)
        return made

    return start


def test_4_with_its_keys_the_sdk_sends_and_receives_and_pushes(signing_peer: Callable[..., Peer]) -> None:
    right = "secret-of-python"
    signing_peer(right, "produce", "signed", 0, 30).wait_done()
    simple = signing_peer(right, "simple", "signed", "signed-simple", "*", 30)
    simple.wait_done()
    assert sorted(simple.numbers()) == list(range(30))
    pushed = signing_peer(right, "push", "signed", "signed-push")
    pushed.wait(lambda said: {s["got"] for s in said if "got" in s} == set(range(30)))
    stop(pushed)


@pytest.mark.parametrize(
    ("secret", "topic", "code"),
    [("wrong-secret", "signed", 40100), ("", "signed", 40100), ("secret-of-python", "forbidden", 40300)],
)
def test_4_with_a_wrong_secret_or_another_topic_the_sdk_raises(
    signing_peer: Callable[..., Peer], signed: LocalCluster, tmp_path: Path, secret: str, topic: str, code: int
) -> None:
    producer = signing_peer(secret, "produce", topic, 0, 1)
    assert producer.process.wait(60) != 0
    assert not producer.numbers("sent")
    text = next(tmp_path.glob("peer-produce-*.log")).read_text()
    assert f"failed to fetch topic:{topic} route" in text  # the SDK keeps the status of a route for its log
    lines = [json.loads(line) for line in signed.brokers[0].log_text().splitlines() if '"event": "call refused' in line]
    assert ("python", code) in {(line["user"], line["code"]) for line in lines}


def test_4_a_group_that_is_not_granted_is_an_error_of_receive(
    signing_peer: Callable[..., Peer], tmp_path: Path
) -> None:
    consumer = signing_peer("secret-of-python", "simple", "signed", "other-group", "*", 1)
    assert consumer.process.wait(60) != 0
    assert "may not consume group other-group" in next(tmp_path.glob("peer-simple-*.log")).read_text()


def test_a_namespace_is_a_wall_and_its_clients_notice_nothing_of_it(
    tmp_path: Path, signed: LocalCluster, keep: Callable[[Peer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK writes `orders`, the brokers know `shop%orders`; a user whose grants name that namespace alone may send,
    take, change, transact and be asked. A topic `orders` beside it gets nothing.
    """
    keys = evenq.Credentials(access_key="root", secret_key="secret-of-root")
    with evenq.Admin(endpoint=signed.endpoint, credentials=keys) as admin:
        for topic in ("orders", "shop%orders"):
            admin.create_topic(topic)
        admin.create_topic("shop%payments", message_type="TRANSACTION")
    for name, value in {"ACCESS_KEY": "tenant", "SECRET_KEY": "secret-of-tenant", "NAMESPACE": "shop"}.items():
        monkeypatch.setenv(f"PEER_{name}", value)

    def start(*arguments: object) -> Peer:
        made = started(tmp_path, str(arguments[0]), signed.endpoint, *map(str, arguments[1:]))
        keep(made)
        return made

    start("produce", "orders", 0, 20).wait_done()
    taken = start("simple", "orders", "billing", "*", 20)
    taken.wait_done()
    assert sorted(taken.numbers()) == list(range(20))
    start("produce", "orders", 20, 20).wait_done()
    pushed = start("push", "orders", "shipping")
    wait_for_all([pushed], set(range(40)))
    stop(pushed)
    living = start("checker", "payments")
    living.wait(lambda said: any("ready" in s for s in said))
    start("transact", "payments", 0, 6).wait_done()
    paid = start("simple", "payments", "paying", "*", 3)
    paid.wait_done()
    assert sorted(paid.numbers()) == [0, 3, 5], "2 is rolled back and 5 committed by the producer that was asked"
    stop(living)
    with evenq.SimpleConsumer(
        group="reader",
        subscriptions={"orders": "*", "shop%orders": "*"},
        endpoint=signed.endpoint,
        credentials=keys,
    ) as consumer:
        seen: Counter[str] = Counter()
        deadline = time.monotonic() + 60
        while sum(seen.values()) < 40 and time.monotonic() < deadline:
            for message in consumer.receive(32, wait_ms=1_000):
                seen[message.topic] += 1
                consumer.ack(message)
        assert seen == {"shop%orders": 40}
