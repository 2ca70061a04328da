"""Consumers that read a table up to the start of the log, and then the log: each offset once, while that start moves."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from evenq_proofs.waiting import until

import evenq
from evenq.client.topic_source import TopicSource
from evenq.errors import NotFound
from evenq.tables.exporting import ExportPlan, TopicExport
from evenq.tables.folder import table_target
from evenq.tables.layout import TableSettings
from evenq.testing import LocalCluster

SHORT = {"STORE__RETENTION_MS": "1000", "STORE__RETENTION_HOUR": "-1", "STORE__SEGMENT_BYTES": str(1 << 16)}
pytestmark = [pytest.mark.timeout(300), pytest.mark.cluster(rebalancer=False, broker_settings=SHORT)]
TOPIC = "history"


class History:
    """A topic whose log begins later and later, because what is exported is deleted."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        self.endpoint, self.folder = endpoint, folder
        self.sent: list[bytes] = []
        with evenq.Admin(endpoint=endpoint) as admin:
            admin.create_topic(TOPIC, queues=2)

    def send(self, count: int) -> None:
        first = len(self.sent)
        numbers = range(first, first + count)
        with evenq.Producer(endpoint=self.endpoint) as producer:
            for number in numbers:  # one by one, so that both queues get some
                producer.send_async(
                    evenq.Message(
                        topic=TOPIC, body=b"%06d" % number + b"." * 1_000, tag=f"t{number % 2}", keys=(f"k{number}",),
                        properties={"n": str(number)},
                    )
                )  # fmt: skip
            producer.flush()
        self.sent += [b"%06d" % number for number in numbers]

    def export(self) -> None:
        async def turn() -> None:
            async with TopicSource(endpoint=self.endpoint) as source:
                plan = ExportPlan(topic=TOPIC, settings=TableSettings(rows_per_file=100), settle_ms=1, tail=True)
                target = table_target(str(self.folder))
                done = await TopicExport(source, target, plan, clock_ms=lambda: time.time_ns() // 1_000_000).turn()
                assert not done.failures

        asyncio.run(turn())

    def lows(self) -> dict[int, int]:
        with evenq.Admin(endpoint=self.endpoint) as admin:
            return {one.queue.queue_id: one.min_offset for one in admin.describe_topic(TOPIC).queues}

    def move_the_start(self, above: int) -> dict[int, int]:
        """Sends, exports and waits until the log of both queues begins behind an offset."""

        def moved() -> bool:
            self.send(100)
            self.export()
            return min(self.lows().values()) > above

        until(moved, "retention", seconds=200)
        return self.lows()


def must_be_each_once(messages: Iterable[evenq.ReceivedMessage], sent: list[bytes]) -> None:
    offsets: dict[int, list[int]] = {}
    bodies = []
    for message in messages:
        offsets.setdefault(message.queue.queue_id, []).append(message.queue_offset)
        bodies.append(message.body[:6])
        number = int(message.body[:6])
        assert (message.tag, message.keys, message.properties) == (
            f"t{number % 2}",
            (f"k{number}",),
            {"n": str(number)},
        )
        assert message.message_id
        assert 0 <= message.store_ms - message.born_ms < 60_000
    for read in offsets.values():
        assert read == list(range(len(read))), "an offset is lost, repeated, or out of order"
    assert sorted(bodies) == sorted(sent)


def test_table_and_log_are_one_queue_for_consumers(cluster: LocalCluster, tmp_path: Path) -> None:
    history = History(cluster.endpoint, tmp_path)
    history.send(400)
    history.export()
    lows = history.move_the_start(100)
    options = evenq.PullOptions(tables=tmp_path, pull_batch=40, pull_threshold_queue=40)

    def consumer(group: str, **more: object) -> evenq.PullConsumer:
        arguments = {"subscriptions": {TOPIC: "*"}, "start_from": "FIRST", "options": options, **more}
        return evenq.PullConsumer(group=group, endpoint=cluster.endpoint, **arguments)  # type: ignore[arg-type]

    def read(one: evenq.PullConsumer, count: int) -> list[evenq.ReceivedMessage]:
        found: list[evenq.ReceivedMessage] = []
        until(lambda: len(found) >= count or found.extend(one.poll(20, wait_ms=1_000)), "messages", seconds=120)
        return found

    with consumer("reads-all") as one:
        found = read(one, 60)
        queues = one.queues
    with consumer("reads-all") as one:  # restarted in the table
        committed = {queue.queue_id: one.committed(queue) for queue in queues}
        assert sum(committed.values()) == len(found)
        assert all(0 <= offset < lows[number] for number, offset in committed.items())
        found += read(one, 60)
        later = history.move_the_start(max(lows.values()))  # while the consumer reads the table
        assert min(later.values()) > max(lows.values())
        found += read(one, len(history.sent) - len(found))
        assert one.poll(wait_ms=0) == []
    must_be_each_once(found, history.sent)

    pushed: list[evenq.ReceivedMessage] = []
    lock = threading.Lock()

    def listen(messages: list[evenq.ReceivedMessage]) -> None:
        with lock:
            pushed.extend(messages)

    with evenq.PushConsumer(
        group="pushed", endpoint=cluster.endpoint, subscriptions={TOPIC: "*"}, listener=listen, start_from="FIRST",
        ordered=True, options=evenq.PushOptions(tables=str(tmp_path)),
    ):  # fmt: skip
        until(lambda: len(pushed) >= len(history.sent), "all messages at the listener", seconds=120)
    must_be_each_once(pushed, history.sent)

    queue = queues[0]
    with consumer("chosen", subscriptions=None) as one:  # a group moves into the table by a commit of a reader
        one.assign([queue], "t1")
        assert one.position(queue) == 0
        assert {message.tag for message in read(one, 10)} == {"t1"}
        one.seek_to_begin(queue)
        assert one.position(queue) == 0
        [second] = [message for message in found if (message.queue, message.queue_offset) == (queue, 2)]
        assert one.offset_at(queue, second.store_ms) <= 2
        one.commit({queue: 7})
        assert one.committed(queue) == 7
    with consumer("without", options=evenq.PullOptions(), subscriptions=None) as one:
        one.assign([queue])
        assert one.position(queue) == history.lows()[queue.queue_id], "without a table, the log is all"
    with consumer("mistaken", options=evenq.PullOptions(tables=tmp_path / "other")) as one:
        with pytest.raises(NotFound, match="evenq table export history"):
            read(one, 1)
        assert one.queues == [], "nothing is skipped"
