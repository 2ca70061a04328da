"""Members of our SDK in one process, whose sync clients share one event loop, while the copies of a broker group fail in
every way: no group stalls, and everything is read in the end.

Simple consumers with long polls and without, push and pull consumers, on a FIFO topic and a normal one with two senders
each. EVENQ_TEST_ROUNDS faults in turn (`make verify-replicated MINUTES=10`). For a group that stalls, the test prints the
stacks of all threads, the states of all tasks, and the leader's view of the group.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from evenq_proofs.replicated_group import FAULTS, group, in_sync, play_fault

import evenq
from evenq.errors import Error

ROUNDS: Final = int(os.environ.get("EVENQ_TEST_ROUNDS", "3"))
SEED: Final = int(os.environ.get("EVENQ_TEST_SEED", "1"))
TOPICS: Final = {"fifo": ("FIFO", 8), "normal": ("NORMAL", 64)}
"""Type and number of queues. A poll waits at each queue, and all of them watch the leader: many of them meet."""
SENDERS: Final = 2
LANES: Final = 4
"""Message groups of each sender."""
PACE_S: Final = 0.1
INVISIBLE_MS: Final = 10_000
STALL_S_MAX: Final = 60.0
"""Far more than two elections and the invisible time of lost answers take on a busy machine."""
DRAIN_S: Final = 120.0
DESCRIBE_S: Final = 20.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 120 * ROUNDS), pytest.mark.slow]


class Load:
    """What was sent and what each group got."""

    def __init__(self) -> None:
        self.over, self.stopping = threading.Event(), threading.Event()
        self.sent: dict[str, dict[str, float]] = {topic: {} for topic in TOPICS}
        """By topic: body and when its send was answered."""
        self.got: dict[str, set[str]] = {}
        self.stalls: list[str] = []
        self._moved: dict[str, float] = {}
        self._topics: dict[str, str] = {}

    def reads(self, name: str, topic: str) -> None:
        """Register a group that reads the topic."""
        self._topics[name], self.got[name], self._moved[name] = topic, set(), time.monotonic()

    def arrived(self, name: str, messages: Sequence[evenq.ReceivedMessage]) -> None:
        """A member of the group received these."""
        if messages:
            self.got[name].update(message.body.decode() for message in messages)
            self._moved[name] = time.monotonic()

    def unread(self, name: str, *, older_s: float = 0.0) -> set[str]:
        """Acknowledged messages that no member of the group got."""
        until, sent = time.monotonic() - older_s, self.sent[self._topics[name]]
        return {body for body, at in list(sent.items()) if at <= until} - self.got[name]

    @property
    def all_unread(self) -> dict[str, int]:
        """Groups that lack messages, and how many."""
        return {name: count for name in self.got if (count := len(self.unread(name)))}

    def watch(self, dump: Callable[[str], None]) -> None:
        """Note each group that gets nothing for `STALL_S_MAX` although it has messages to read."""
        while not self.over.wait(1):
            for name, moved in self._moved.items():
                stalled_s = time.monotonic() - moved
                if stalled_s > STALL_S_MAX and (left := self.unread(name, older_s=STALL_S_MAX)):
                    self.stalls.append(f"{name} got nothing for {stalled_s:.0f} s, and {len(left)} messages are there")
                    self._moved[name] = time.monotonic()
                    dump(name)


def test_no_group_stalls_while_leaders_and_copies_come_and_go(tmp_path: Path) -> None:
    load, rng = Load(), random.Random(SEED)
    with group(tmp_path, REPLICATION__SUSPECT_MS="3000") as cluster, ExitStack() as stack:
        in_sync(cluster, 3)
        admin = stack.enter_context(evenq.Admin(endpoint=cluster.endpoints))
        for topic, (kind, queues) in TOPICS.items():
            admin.create_topic(topic, queues=queues, message_type=kind)
        threads = [
            *(threading.Thread(target=send, args=(load, cluster.endpoints, topic, number), daemon=True) for topic in TOPICS for number in range(SENDERS)),
            *members(load, cluster.endpoints, admin, stack),
            threading.Thread(target=load.watch, args=(lambda name: dump(admin, name),), daemon=True),
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        for number in range(ROUNDS):
            in_sync(cluster, 3)
            play_fault(cluster, FAULTS[number % len(FAULTS)], rng)
            load.over.wait(rng.choice((0, 2, 5)))
        load.stopping.set()
        end = time.monotonic() + DRAIN_S
        while load.all_unread and time.monotonic() < end:
            load.over.wait(0.2)
        left = load.all_unread
        for name in left:
            dump(admin, name)
        load.over.set()
        for thread in threads:
            thread.join(30)
        print(f"\n{sum(map(len, load.sent.values()))} sent, {len(load.got)} groups, {ROUNDS} faults")
        assert (left, load.stalls) == ({}, [])
        assert all(load.sent.values())
        assert not any(thread.is_alive() for thread in threads)


def members(load: Load, endpoints: str, admin: evenq.Admin, stack: ExitStack) -> list[threading.Thread]:
    """One group of each kind for each topic; the push consumers run, the others are threads to be started."""
    threads = []
    for topic in TOPICS:
        for kind in ("simple", "short", "push", "pull"):
            name = f"{kind}-{topic}"
            admin.create_group(name, ordered=topic == "fifo", start_from="FIRST", max_attempts=1_000)
            load.reads(name, topic)
            if kind == "push":

                def listen(messages: Sequence[evenq.ReceivedMessage], name: str = name) -> None:
                    load.arrived(name, messages)

                stack.enter_context(
                    evenq.PushConsumer(group=name, endpoint=endpoints, subscriptions={topic: "*"}, listener=listen)
                )
                continue
            work = poll if kind == "pull" else receive
            threads.append(threading.Thread(target=work, args=(load, endpoints, topic, name), daemon=True))
    return threads


def send(load: Load, endpoints: str, topic: str, number: int) -> None:
    """One message after the other. A failed send is not repeated."""
    count = 0
    with evenq.Producer(endpoint=endpoints) as producer:
        while not load.stopping.wait(PACE_S):
            body, lane = f"{number}-{count}", f"{number}-{count % LANES}" if topic == "fifo" else ""
            try:
                producer.send(evenq.Message(topic=topic, body=body.encode(), message_group=lane or None))
                load.sent[topic][body] = time.monotonic()
            except Error:
                time.sleep(PACE_S)
            count += 1


def receive(load: Load, endpoints: str, topic: str, name: str) -> None:
    """A simple consumer, with long polls or without."""
    wait_ms = 15_000 if name.startswith("simple") else 0
    with evenq.SimpleConsumer(group=name, endpoint=endpoints, subscriptions={topic: "*"}) as consumer:
        while not load.over.is_set():
            try:
                messages = consumer.receive(invisible_ms=INVISIBLE_MS, wait_ms=wait_ms)
                load.arrived(name, messages)
                consumer.ack(*messages)
            except Error:
                time.sleep(PACE_S)
            if not wait_ms:
                time.sleep(0.02)


def poll(load: Load, endpoints: str, topic: str, name: str) -> None:
    """A pull consumer that commits by itself."""
    with evenq.PullConsumer(group=name, endpoint=endpoints, subscriptions={topic: "*"}) as consumer:
        while not load.over.is_set():
            try:
                load.arrived(name, consumer.poll(wait_ms=2_000))
            except Error:
                time.sleep(PACE_S)


def dump(admin: evenq.Admin, name: str) -> None:
    """Print where everything waits. The stacks come first, because a loop that does not turn answers no call."""
    print(f"\n{name} stalls", file=sys.__stderr__, flush=True)
    faulthandler.dump_traceback(2, all_threads=True)
    for task in [one for one in gc.get_objects() if isinstance(one, asyncio.Task)]:
        print(task, file=sys.__stderr__)
    asking = threading.Thread(target=describe, args=(admin, name), daemon=True)
    asking.start()
    asking.join(DESCRIBE_S)


def describe(admin: evenq.Admin, name: str) -> None:
    """Print the group as its leader sees it."""
    try:
        print(admin.describe_group(name), admin.diagnose_group(name), file=sys.__stderr__, flush=True)
    except Error as error:
        print(f"no broker describes it: {error}", file=sys.__stderr__, flush=True)
