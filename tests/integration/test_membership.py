"""Members of groups as processes: twins with one client id, a member that stands still, members that die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from evenq_proofs.waiting import until

import evenq
from evenq.testing.local_cluster import LocalCluster

MEMBER = """
import sys, time, evenq
endpoint, topic, group, client_id, work_ms, ordered, assignment = sys.argv[1:]

def listen(messages):
    for message in messages:
        print("got", message.body.decode(), flush=True)
        time.sleep(int(work_ms) / 1000)

options = evenq.PushOptions(commit_interval_ms=200, consume_batch=1)
with evenq.PushConsumer(group=group, endpoint=endpoint, listener=listen, subscriptions={topic: "*"}, options=options,
                        start_from="FIRST", client_id=client_id, consume_threads=1, ordered=ordered == "yes",
                        assignment=assignment):
    print("ready", flush=True)
    sys.stdin.read()
"""


class Member:
    """A consumer in a process of its own, and what its listener got."""

    def __init__(
        self,
        cluster: LocalCluster,
        topic: str,
        client_id: str,
        *,
        work_ms: int = 0,
        ordered: bool = False,
        assignment: str = "client",
    ) -> None:
        result = (cluster.endpoint, topic, topic, client_id, str(work_ms), "yes" if ordered else "no", assignment)
        self.process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, *result], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.got: list[str] = []
        self.ready = False
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, _, body = line.strip().partition(" ")
            if word == "got":
                self.got.append(body)
            self.ready = True

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join(60)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


pytestmark = pytest.mark.cluster(brokers=2)


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[evenq.Admin]:
    with evenq.Admin(endpoint=cluster.endpoint) as found:
        yield found


def publish(cluster: LocalCluster, topic: str, numbers: range, *, key: str | None = None) -> None:
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        for number in numbers:
            producer.send_async(evenq.Message(topic=topic, body=b"%d" % number, message_group=key))
        producer.flush(30_000)


def owners(admin: evenq.Admin, group: str) -> list[str]:
    return [queue.owner for queue in admin.describe_group(group).queues]


def lag(admin: evenq.Admin, group: str) -> int:
    return sum(queue.max_offset - max(0, queue.committed) for queue in admin.describe_group(group).queues)


def test_two_consumers_with_one_client_id_share_the_queues_and_both_are_named(
    cluster: LocalCluster, admin: evenq.Admin
) -> None:
    """RG-3, decision 7: each queue once, nothing delivered twice."""
    admin.create_topic("twins", queues=4)
    counts: Counter[bytes] = Counter()
    lock = threading.Lock()

    def listen(messages: Sequence[evenq.ReceivedMessage]) -> None:
        with lock:
            counts.update(message.body for message in messages)

    def twin() -> evenq.PushConsumer:
        return evenq.PushConsumer(
            group="twins",
            endpoint=cluster.endpoint,
            listener=listen,
            subscriptions={"twins": "*"},
            start_from="FIRST",
            client_id="same",
        ).start()

    twins = [twin(), twin()]
    try:
        until(lambda: [len(one.queues) for one in twins] == [4, 4], what="8 queues are shared")
        publish(cluster, "twins", range(1_000))
        until(lambda: len(counts) == 1_000, what="all came")
        assert not set(twins[0].queues) & set(twins[1].queues)
        ids = [member.client_id for member in admin.describe_group("twins").members]
        assert len(set(ids)) == len(ids) == 2
        assert any(one.startswith("same~") for one in ids), "both, if each was the first at one broker"
    finally:
        for one in twins:
            one.close()
    assert set(counts.values()) == {1}
    assert lag(admin, "twins") == 0


@pytest.mark.parametrize(
    ("ordered", "assignment"),
    [(False, "client"), pytest.param(True, "client", marks=pytest.mark.slow), (False, "server")],
)
@pytest.mark.slow
def test_a_member_that_stood_still_delivers_nothing_that_others_were_given(
    cluster: LocalCluster, admin: evenq.Admin, *, ordered: bool, assignment: str
) -> None:
    """OC-18: SIGSTOP for longer than its session lasts, with messages in hand, then SIGCONT."""
    topic = f"still-{ordered}-{assignment}"
    admin.create_topic(topic, queues=1)
    admin.create_group(topic, strategy="STICKY" if assignment == "server" else "")
    members = [Member(cluster, topic, "one", work_ms=20, ordered=ordered, assignment=assignment)]
    try:
        until(lambda: members[0].ready)
        publish(cluster, topic, range(400))
        until(lambda: len(members[0].got) > 20, what="the first works")
        members[0].signal(signal.SIGSTOP)
        members.append(Member(cluster, topic, "two", ordered=ordered, assignment=assignment))
        until(
            lambda: set(owners(admin, topic)) == {"two"}, what="its queues were given to the second after its session"
        )
        until(lambda: lag(admin, topic) == 0, what="the second finished everything")
        before = list(members[0].got)  # it stands still, and what it had printed is long read
        members[0].signal(signal.SIGCONT)
        publish(cluster, topic, range(400, 440))
        until(lambda: len({*members[0].got, *members[1].got}) == 440, what="all came")
        until(lambda: lag(admin, topic) == 0)
        until(lambda: len(admin.describe_group(topic).members) == 2, what="the first is back")
        publish(cluster, topic, range(440, 480))
        until(lambda: len({*members[0].got, *members[1].got}) == 480, what="all came")
        again = Counter(members[0].got[len(before) + 1 :])  # one may have been in its listener's hands
        given = Counter(members[1].got)
        assert not again & given, "what the second was given did not come again at the first"
        assert max(given.values()) == 1
        assert max(Counter(members[0].got).values()) == 1
    finally:
        for member in members:
            member.close()


def test_a_killed_members_queues_are_granted_within_the_grace(cluster: LocalCluster, admin: evenq.Admin) -> None:
    """RG-10: on channel close and a grace of 1 s, not after a silence."""
    admin.create_topic("killed", queues=2)
    admin.create_group("killed")
    members = [Member(cluster, "killed", name) for name in ("one", "two")]
    try:
        publish(cluster, "killed", range(8))
        until(lambda: set(owners(admin, "killed")) == {"one", "two"}, what="both share")
        members[0].signal(signal.SIGKILL)
        until(lambda: set(owners(admin, "killed")) == {"two"}, what="the second has all, long before two minutes")
    finally:
        for member in members:
            member.close()
