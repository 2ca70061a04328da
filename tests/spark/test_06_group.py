"""Spark jobs and consumers share a group: each message once over graceful changes, but for a batch that the stop of its
job cut off, which Spark runs again; and a member that is killed repeats no more than what it had in hand.

`make spark-group` is the full size: EVENQ_TEST_SECONDS of joins and leaves, one each second, under EVENQ_TEST_RATE
messages/s; its figures are printed. Here, beside all other tests, the same with less. Jobs are stopped in turn between
two batches, at any moment and by SIGTERM; whether a stop cut off a batch says the commit log of the checkpoint.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import evenq
from evenq.testing.history import EntryKind, Op, read_history
from evenq.testing.local_cluster import LocalCluster
from tests.spark.group_crew import WAIT_S, Consumer, Ended, OfficialSdk, Reader, SparkJob
from tests.spark.members import members
from tests.spark.waiting import within

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "live"))
from evenq_live.sending import Stream

SECONDS = int(os.environ.get("EVENQ_TEST_SECONDS", "10"))
RATE = int(os.environ.get("EVENQ_TEST_RATE", "50"))
TOPIC, GROUP = "shared", "mixed"
QUEUES = 8
FULL_SECONDS = 60
HAND_OVER_MS = 10_000
pytestmark = pytest.mark.timeout(1_800)


@pytest.fixture
def start(spark: Any, topic: Any, tmp_path: Path) -> Any:
    queries: list[Any] = []

    def start(name: str, trigger: str = "", **options: Any) -> Any:
        given = {"group": topic.name, "startingOffsets": "earliest", "assignment": "shared"} | options
        frame = spark.readStream.format("evenq").schema("brokerName string, queueId int, queueOffset long")
        frame = frame.option("endpoints", topic.endpoints).option("subscribe", topic.name).options(**given).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / name / "checkpoint"))
        writer = writer.trigger(processingTime=trigger) if trigger else writer
        queries.append(writer.option("path", str(tmp_path / name / "rows")).start())
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


def read(spark: Any, folder: Path) -> list[tuple[str, int, int]]:
    rows = spark.read.schema("brokerName string, queueId int, queueOffset long").parquet(str(folder / "rows"))
    return sorted((row.brokerName, row.queueId, row.queueOffset) for row in rows.collect())


def test_two_queries_divide_the_queues_and_one_goes_on_with_all_of_them(
    spark: Any, cluster: LocalCluster, topic: Any, start: Any, tmp_path: Path
) -> None:
    topic.send_each(10)
    one = start("one")
    assert within(WAIT_S, lambda: topic.progress(topic.name) == [10] * 4), one.exception()
    two = start("two")
    assert within(WAIT_S, lambda: len(members(cluster, topic.name)) == 2), two.exception()
    assert within(WAIT_S, lambda: bool(two.lastProgress))

    def both_read() -> bool:
        topic.send_each(1)
        return any(progress.numInputRows for progress in two.recentProgress)

    assert within(WAIT_S, both_read), (one.exception(), two.exception())
    ends = topic.ends()
    assert within(WAIT_S, lambda: topic.progress(topic.name) == ends)
    two.stop()
    assert within(5, lambda: len(members(cluster, topic.name)) == 1)
    topic.send_each(5)
    ends = topic.ends()
    assert within(WAIT_S, lambda: topic.progress(topic.name) == ends), one.exception()
    assert sorted(read(spark, tmp_path / "one") + read(spark, tmp_path / "two")) == topic.every(ends)


@pytest.mark.parametrize("assignment", ["shared", "exclusive"])
def test_a_stop_between_two_triggers_leaves_nothing_unreported(
    spark: Any, cluster: LocalCluster, topic: Any, start: Any, tmp_path: Path, assignment: str
) -> None:
    """The first trigger of a shared query is too early for a share. The second one reads what is there, or the queues that
    were assigned by then; the next one is far away.
    """
    topic.send_each(10)
    checkpoint = str(tmp_path / "one" / "checkpoint")
    trigger = "20 seconds" if assignment == "shared" else "1 hour"
    query = start("one", trigger, assignment=assignment, checkpointLocation=checkpoint)

    def done() -> bool:
        assert query.isActive, query.exception()
        return sum(progress.numInputRows for progress in query.recentProgress) == 40

    assert within(WAIT_S, done)
    query.stop()
    assert within(60, lambda: not members(cluster, topic.name))
    assert topic.progress(topic.name) == [10] * 4
    assert read(spark, tmp_path / "one") == topic.every([10] * 4)


def test_a_batch_that_a_stop_cuts_off_is_not_reported_and_read_again(
    spark: Any, cluster: LocalCluster, topic: Any, tmp_path: Path
) -> None:
    topic.send_each(10)
    checkpoint = str(tmp_path / "checkpoint")
    frame = spark.readStream.format("evenq").schema("queueOffset long").option("endpoints", topic.endpoints)
    frame = frame.option("subscribe", topic.name).option("group", topic.name).option("assignment", "shared")
    frame = frame.option("startingOffsets", "earliest").option("checkpointLocation", checkpoint).load()

    def slow(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            time.sleep(600)
            yield batch

    slowly = frame.mapInArrow(slow, "queueOffset long").writeStream.format("noop")
    query = slowly.option("checkpointLocation", checkpoint).start()
    offsets = Path(checkpoint) / "offsets"
    assert within(WAIT_S, lambda: offsets.is_dir() and any(one.name == "0" for one in offsets.iterdir()))
    query.stop()
    assert within(60, lambda: not members(cluster, topic.name))
    assert topic.progress(topic.name) == [0] * 4
    done = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert done.awaitTermination(WAIT_S)
    assert topic.progress(topic.name) == [10] * 4, "the end of a run reports everything"


@pytest.fixture
def crew(tmp_path: Path, spark_environment: None) -> Iterator[tuple[LocalCluster, list[Reader]]]:
    with LocalCluster(
        brokers=2, folder=tmp_path / "cluster", broker_settings={"AUTO_CREATE_TOPICS": "false"}
    ) as cluster:
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic(TOPIC, queues=4)
            admin.create_group(GROUP, strategy="STICKY", start_from="FIRST")
        endpoints = ",".join(broker.address for broker in cluster.brokers)
        options = {
            "endpoints": endpoints, "subscribe": TOPIC, "group": GROUP, "assignment": "shared",
            "startingOffsets": "earliest",
        }  # fmt: skip
        readers: list[Reader] = [
            SparkJob("spark-a", options | {"queryName": "spark-a"}, folder=tmp_path),
            Consumer("consumer", cluster.endpoint, TOPIC, GROUP, folder=tmp_path),
            SparkJob("spark-b", options | {"queryName": "spark-b"}, folder=tmp_path),
            OfficialSdk("official", cluster.endpoint, TOPIC, GROUP, folder=tmp_path),
        ]
        try:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(Reader.prepare, readers[::2]))
            yield cluster, readers
        finally:
            for reader in readers:
                reader.end()


def counts(readers: list[Reader]) -> Counter[int]:
    return Counter(number for reader in readers for chunk in reader.chunks() for number, _ in chunk)


def until_all_read(readers: list[Reader], sent: int) -> None:
    def missing() -> int:
        return sent - sum(number < sent for number in counts(readers))

    assert within(WAIT_S, lambda: not missing()), f"{missing()} of {sent} messages were not read"


def shown(cluster: LocalCluster) -> dict[str, Any]:
    """`evenq group show`, as programs get it."""
    environment = os.environ | {"EVENQ_ENDPOINT": cluster.endpoint}
    command = [str(Path(sys.executable).with_name("evenq")), "group", "show", GROUP, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    page: dict[str, Any] = json.loads(done.stdout)
    return page


def lag_by_member(cluster: LocalCluster) -> dict[str, int]:
    """As `evenq group show` has it: by member, of the queues that it owns; "" for those of members that own none, which
    receive what no other member has.
    """
    page = shown(cluster)
    queues = [queue for queue in page["queues"] if queue["topic"] == TOPIC]
    assert len(queues) == QUEUES, page
    lags = dict.fromkeys([member["client_id"] for member in page["members"]], 0)
    for queue in queues:
        lags[queue["owner"]] = lags.get(queue["owner"], 0) + queue["lag"]
    return lags


def all_are_shown(cluster: LocalCluster, count: int) -> bool:
    """Every member, and each of those that own queues with one at least."""
    page, known = shown(cluster), members(cluster, GROUP)
    owners = {queue["owner"] for queue in page["queues"] if queue["topic"] == TOPIC}
    return (
        len(known) == count
        and {member["client_id"] for member in page["members"]} == known.keys()
        and owners - {""} == {name for name, member in known.items() if member.protocol == "evenq"}
    )


def sent_ms(history: Path) -> dict[int, int]:
    """When each message was sent, by its number."""
    return {
        int(event.body): event.at_ms
        for event in read_history(history)
        if event.kind == EntryKind.INVOKE and event.op == Op.SEND
    }


def waits_ms(readers: list[Reader], sent: dict[int, int], below: int) -> list[int]:
    """From each message's send to its first read, ascending."""
    first: dict[int, int] = {}
    for reader in readers:
        for number, at_ms in (one for chunk in reader.chunks() for one in chunk):
            first[number] = min(at_ms, first.get(number, at_ms))
    return sorted(max(0, at_ms - sent[number]) for number, at_ms in first.items() if number < below)


def come_and_go(readers: list[Reader]) -> None:
    """One joins or leaves each second; two are there at least."""
    begun, turn = time.monotonic(), 0
    while (passed := time.monotonic() - begun) < SECONDS:
        for _ in readers:
            turn += 1
            reader = readers[turn % len(readers)]
            others = [other for other in readers if other is not reader and other.joined and not other.busy]
            if len(others) >= 2 and reader.toggle():
                break
        time.sleep(max(0.0, 1.0 - (time.monotonic() - begun - passed)))
    for reader in readers:
        reader.settle(joined=True)


def tell(line: str) -> None:
    """At once: what was seen stays to be seen when a later part fails."""
    print("\n" + line, end="", flush=True)


def repeated(readers: list[Reader]) -> set[int]:
    return {number for number, times in counts(readers).items() if times > 1}


def cut_off(readers: list[Reader]) -> set[int]:
    return set[int]().union(*(reader.cut_off() for reader in readers))


def who_read(readers: list[Reader], numbers: list[int]) -> str:
    """Each read of these messages, with its moment; and what the members reported that is not a read."""
    reads = [
        f"{number} by {reader.name} at {at_ms} ms, {place + 1} of {len(reader.chunks())} chunks of {len(chunk)}"
        for reader in readers for place, chunk in enumerate(reader.chunks()) for number, at_ms in chunk if number in numbers
    ]  # fmt: skip
    return "\n".join(
        [
            "repeated:",
            *sorted(reads),
            *(f"{reader.name}: {reported}" for reader in readers for reported in reader.troubles),
        ]
    )


def judge_changes(readers: list[Reader], below: int, *, in_hand: AbstractSet[int] = frozenset()) -> None:
    """Of the messages below, nothing was repeated but what stops cut off, and what killed members had `in_hand`."""
    jobs = [reader for reader in readers if isinstance(reader, SparkJob)]
    stops = Counter(ended for job in jobs for ended in job.stops)
    cut, twice = cut_off(readers), {number for number in repeated(readers) - in_hand if number < below}
    tell(f"{sum(reader.changes for reader in readers)} joins and leaves in {SECONDS} s, {below:,} messages: "
         f"{len(twice - cut)} repeats; stops of jobs: "
         + ", ".join(f"{count} {ended}" for ended, count in stops.items())
         + f"; {sum(len(job.cut) for job in jobs)} cut off a batch, {len(twice & cut)} of the {len(cut)} messages in "
         "those were repeated")  # fmt: skip
    assert not twice - cut, who_read(readers, sorted(twice - cut)[:20])
    assert SECONDS < FULL_SECONDS or stops.keys() == set(Ended), f"a minute has all kinds of stops, not only {stops}"


@pytest.mark.slow
def test_jobs_and_consumers_come_and_go_and_are_killed(crew: tuple[LocalCluster, list[Reader]], tmp_path: Path) -> None:
    cluster, readers = crew
    history = tmp_path / "sender.history.jsonl"
    killed = dict[str, Callable[[], set[int]]]()
    with Stream(cluster.endpoint, TOPIC, rate=RATE, history=history) as stream:
        for reader in readers:
            reader.toggle()
        for reader in readers:
            reader.settle(joined=True)
        come_and_go(readers)
        assert within(60, lambda: all_are_shown(cluster, len(readers))), shown(cluster)
        lags = ", ".join(f"{name or 'of receivers'} {lag}" for name, lag in lag_by_member(cluster).items())
        tell(f"lag by `evenq group show`: {lags}")
        mark = stream.sent
        until_all_read(readers, mark)
        judge_changes(readers, mark)
        for victim in (readers[0], readers[1], readers[3]):
            before = stream.sent
            victim.kill()
            killed[victim.name] = victim.last_batch()
            until_all_read(readers, before)
            victim.settle(joined=True)
    until_all_read(readers, stream.sent)
    for reader in readers:
        reader.settle(joined=False)
    found, repeats = counts(readers), repeated(readers)
    batch_ms = max(reader.batch_ms for reader in readers)
    waits = waits_ms(readers, sent_ms(history), mark)
    in_hand = {name: last() for name, last in killed.items()}
    tell(f"{stream.sent:,} sent at {RATE}/s, read {len(found):,}; by "
         + ", ".join(f"{reader.name} {sum(map(len, reader.chunks())):,}" for reader in readers))  # fmt: skip
    tell(f"from sent to read: p50 {waits[len(waits) // 2]}, p99 {waits[len(waits) * 99 // 100]}, longest "
         f"{waits[-1]} ms; longest batch of Spark {batch_ms} ms")  # fmt: skip
    for name, last in in_hand.items():
        tell(f"kill -9 of {name}: {len(repeats & last)} repeats, its last batch had {len(last)}")
    assert sorted(found) == list(range(stream.sent))
    of_the_dead = set[int]().union(*in_hand.values())
    judge_changes(readers, mark, in_hand=of_the_dead)
    others = sorted(repeats - cut_off(readers) - of_the_dead)
    assert not others, f"{len(others)} came again that no dead member had in hand\n{who_read(readers, others[:20])}"
    assert waits[-1] <= HAND_OVER_MS + 2 * batch_ms
