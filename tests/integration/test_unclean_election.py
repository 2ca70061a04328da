"""An unclean election with real processes: all copies that may lead are lost, an operator lets the third one lead (D12,
R20).
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.cluster_binaries import BUILD_SECONDS
from evenq_proofs.replicated_group import figure, folder_of, group, in_sync, leader_of, members_of, number_of
from evenq_proofs.waiting import until as within

import evenq
from evenq.cli.__main__ import main
from evenq.errors import Error, IllegalOffset
from evenq.testing import LocalCluster
from evenq.testing.node import Node

pytestmark = pytest.mark.timeout(BUILD_SECONDS + 400)

TOPIC, NAME = "flights", "broker-a"
LONG_S = 120.0
until = partial(within, seconds=LONG_S)


def address_of(node: Node) -> str:
    """Where the other copies reach it."""
    return members_of(node)[number_of(node)]


def send(cluster: LocalCluster, bodies: list[str]) -> None:
    with evenq.Producer(endpoint=cluster.endpoints, options=evenq.ProducerOptions(send_timeout_ms=60_000)) as producer:
        for body in bodies:
            producer.send(evenq.Message(topic=TOPIC, body=body.encode()))


def places(cluster: LocalCluster) -> dict[tuple[int, int], str]:
    """Queue id and offset of every message -> its body."""
    leader_of(cluster)
    with evenq.PullConsumer(group="lookers", endpoint=cluster.endpoints) as consumer:
        consumer.assign(consumer.queues_of(TOPIC))
        for queue in consumer.queues_of(TOPIC):
            consumer.seek_to_begin(queue)
        seen, quiet = {}, 0
        while quiet < 3:
            messages = consumer.poll(1_000, wait_ms=500)
            quiet = 0 if messages else quiet + 1
            seen.update({(one.queue.queue_id, int(one.queue_offset)): one.body.decode() for one in messages})
    return seen


def command(capsys: Any, text: str, *, code: int = 0) -> tuple[str, str]:
    """What `evenq` prints to both, as one line each."""
    capsys.readouterr()
    assert main(text.split()) == code, capsys.readouterr()
    out, err = capsys.readouterr()
    return " ".join(out.split()), " ".join(err.split())


def refusal(capsys: Any, endpoint: str, copy: int) -> str:
    capsys.readouterr()
    main(f"broker elect-unclean {NAME} --endpoint {endpoint} --copy {copy} --json".split())
    return str(json.loads(capsys.readouterr().out)["refusal"])


def not_refused(capsys: Any, endpoint: str, copy: int) -> None:
    """Until the record was quiet for long enough."""
    until(lambda: not refusal(capsys, endpoint, copy), lambda: refusal(capsys, endpoint, copy))


@pytest.mark.slow  # its rule is proven by the model
def test_what_only_the_lost_copies_had_is_lost_and_the_group_goes_on(tmp_path: Path, capsys: Any) -> None:
    with group(tmp_path) as cluster:
        send(cluster, [f"kept {number}" for number in range(60)])
        in_sync(cluster, 3)
        leader = leader_of(cluster)
        third, second = [node for node in cluster.brokers if node is not leader]
        chosen = number_of(third)
        said = refusal(capsys, address_of(third), chosen)
        assert f"has a leader, copy {number_of(leader)}" in said
        third.kill()
        send(cluster, [f"lost {number}" for number in range(25)])
        before = places(cluster)
        assert len(before) == 85
        with evenq.SimpleConsumer(
            group="readers", subscriptions={TOPIC: "*"}, endpoint=cluster.endpoints, start_from="FIRST"
        ) as consumer:
            for message in consumer.receive(64, wait_ms=5_000):
                consumer.ack(message)
        reader = evenq.PullConsumer(group="own", endpoint=cluster.endpoints, start_from="FIRST")
        reader.start()
        reader.assign(reader.queues_of(TOPIC))
        assert len(polled(reader)) == 85
        leader.kill()
        second.kill()
        shutil.rmtree(folder_of(leader))
        folder_of(second).rename(tmp_path / "set-aside")

        third.start()
        until(lambda: figure(third, "evenq_broker_replica_role", 'role="truncating"') == 1)
        endpoint = address_of(third)
        not_refused(capsys, endpoint, chosen)
        out, _ = command(capsys, f"broker elect-unclean {NAME} --endpoint {endpoint} --copy {chosen}")
        assert "Nothing was changed" in out
        assert "Records that only these copies have are lost" in out
        out, _ = command(
            capsys,
            f"broker elect-unclean {NAME} --endpoint {endpoint} --copy {chosen} --accept-data-loss --reason fire",
        )
        assert f"Copy {chosen} leads broker group {NAME}" in out
        assert "It accepts no messages until 2 copies are in sync" in out
        assert "set-min-in-sync broker-a 1" in out

        leader.restart(timeout_ms=60_000)  # with an empty disk
        in_sync(cluster, 2)
        assert leader_of(cluster) is third
        after = places(cluster)
        assert after == {place: body for place, body in before.items() if body.startswith("kept")}
        assert polled(reader) == [], "its offsets lie behind the end: it waits there, and begins at 0 nowhere"
        send(cluster, [f"new {number}" for number in range(10)])
        assert sorted(polled(reader)) == [f"new {number}" for number in range(10)]
        reader.close()

        (tmp_path / "set-aside").rename(folder_of(second))  # found again, and with more than the leader
        second.restart(timeout_ms=60_000)
        in_sync(cluster, 3)
        assert leader_of(cluster) is third
        text = second.log_text()
        assert "are discarded: a copy that lacked them was made leader of epoch" in text
        assert "with 25 messages of clients" in text
        assert [path.stat().st_size for path in (folder_of(second) / "lost").iterdir()] > [2_000]
        third.kill()
        leader_of(cluster)
        assert {body for body in places(cluster).values() if body.startswith("lost")} == set()
        assert sorted(places(cluster).values()) == sorted([*after.values(), *(f"new {number}" for number in range(10))])
        with evenq.SimpleConsumer(
            group="readers", subscriptions={TOPIC: "*"}, endpoint=cluster.endpoints, start_from="FIRST"
        ) as consumer:
            assert any(message.body.startswith(b"new") for message in received(consumer))
        third.restart(timeout_ms=60_000)
        out, _ = command(capsys, f"cluster show --endpoint {cluster.endpoints}")
        assert "acknowledged messages may be lost: unclean election at epoch" in out
        assert figure(leader_of(cluster), "evenq_broker_unclean_elections") == 1


def polled(consumer: evenq.PullConsumer) -> list[str]:
    """Until nothing came for three seconds."""
    bodies: list[str] = []
    quiet = 0
    while quiet < 3:
        try:
            more = consumer.poll(1_000, wait_ms=1_000)
        except IllegalOffset:  # of what it commits by itself: such offsets are no more
            continue
        quiet = 0 if more else quiet + 1
        bodies += [message.body.decode() for message in more]
    return bodies


def received(consumer: evenq.SimpleConsumer) -> list[evenq.ReceivedMessage]:
    messages: list[evenq.ReceivedMessage] = []
    quiet = 0
    while quiet < 3:
        more = consumer.receive(64, wait_ms=1_000)
        quiet = 0 if more else quiet + 1
        messages += more
    return messages


@pytest.mark.slow  # as above
def test_a_founder_that_was_lost_at_once_is_no_end_of_the_group(tmp_path: Path, capsys: Any) -> None:
    """The record names its disk alone, and nobody else may lead. Nothing was ever committed, so nothing is lost."""
    with group(tmp_path) as cluster:
        nodes = sorted(cluster.brokers, key=number_of)
        for node in nodes:
            node.kill()
            shutil.rmtree(folder_of(node))
        record = tmp_path / f"{NAME}.group"
        record.unlink()
        nodes[0].start()
        until(lambda: record.exists() and json.loads(record.read_text())["epoch"] > 0)
        nodes[0].kill()
        shutil.rmtree(folder_of(nodes[0]))

        nodes[1].start()
        endpoint = address_of(nodes[1])
        until(lambda: figure(nodes[1], "evenq_broker_replica_role", 'role="truncating"') == 1)
        not_refused(capsys, endpoint, 1)
        command(capsys, f"broker elect-unclean {NAME} --endpoint {endpoint} --copy 1 --accept-data-loss")
        until(lambda: figure(nodes[1], "evenq_broker_replica_role", 'role="starting"') == 1)
        command(capsys, f"broker set-min-in-sync {NAME} 1 --endpoint {endpoint}")
        assert leader_of(cluster) is nodes[1]
        send(cluster, ["first"])
        nodes[2].restart(timeout_ms=60_000)
        nodes[0].restart(timeout_ms=60_000)
        in_sync(cluster, 3)
        with evenq.Admin(endpoint=cluster.endpoints) as admin:
            admin.set_in_sync_min(NAME, 2)
        nodes[1].kill()
        assert list(places(cluster).values()) == ["first"]


@pytest.mark.slow  # as above
def test_a_copy_that_has_more_is_taken_and_one_that_may_lead_makes_it_needless(tmp_path: Path, capsys: Any) -> None:
    with group(tmp_path) as cluster:
        send(cluster, ["a"])
        in_sync(cluster, 3)
        leader = leader_of(cluster)
        others = [node for node in cluster.brokers if node is not leader]
        leader.kill()
        for node in others:
            node.kill()
        others[0].start()
        until(lambda: figure(others[0], "evenq_broker_replica_role", 'role="truncating"') == 1)
        said = refusal(capsys, address_of(others[0]), number_of(others[0]))
        assert "may lead" in said or "has a leader" in said
        _, err = command(
            capsys,
            f"broker elect-unclean {NAME} --endpoint {address_of(others[0])} --copy {number_of(others[0])} "
            "--accept-data-loss",
            code=4,
        )
        assert "Nothing was changed" in err
        with pytest.raises(Error), evenq.Admin(endpoint=address_of(others[0])) as admin:
            admin.elect_unclean(NAME, number_of(others[0]), accept_data_loss=False)
