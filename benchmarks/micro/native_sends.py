"""CPU of reading plain SendMessage and Publish requests and of packing their messages: in Python, and compiled.

    python benchmarks/micro/native_sends.py [--rounds 15] [--messages 3200] [--only packing]

Both do the same work in one process, in turns. Measured is the CPU of the thread, which other work on the machine
changes less than elapsed time; the ratio of neighbouring rounds is steadier than both figures. Without a digest: the
same with bodies of one byte. The last two columns compare each reader with itself under `body_digest=md5`. The second
table is about the step that follows: the store packs the messages of a call into the group for its log.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median, quantiles
from typing import Any

from evenq_broker.core.sending.native_sends import NativeSends
from evenq_broker.core.sending.plain_sends import PlainSends
from evenq_broker.core.sending.validation import MessageLimits
from rounds import settle_collector

from evenq.runtime.accelerator import accelerator
from evenq.store import Append
from evenq.store.log.native_packer import packer_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2

LIMITS = MessageLimits(
    body_bytes_max=4 << 20,
    properties_max=128,
    properties_bytes_max=16 << 10,
    delay_max_ms=1_000,
    store_host="10.0.0.1:8081",
)
NOW_S = 1_700_000_000
GROUP_BYTES = 256 << 10
QUEUES = 8
Read = Callable[[bytes], object]


def message(rng: random.Random, body_bytes: int, *, unlike: bool) -> definition_pb2.Message:
    """A message as of an SDK. `unlike`: with a key and a property of its own."""
    one = definition_pb2.Message(topic=definition_pb2.Resource(name="orders"), body=rng.randbytes(body_bytes))
    system = one.system_properties
    system.message_id, system.tag = f"01{rng.randrange(1 << 60):032X}", "A"
    system.body_encoding, system.message_type = definition_pb2.IDENTITY, definition_pb2.NORMAL
    system.born_host, system.born_timestamp.seconds = "localhost", NOW_S
    system.born_timestamp.nanos = rng.randrange(1, 10**9)
    if unlike:
        system.keys.append(f"order-{rng.randrange(1 << 30)}")
        one.user_properties["order"] = str(rng.randrange(1 << 30))
    return one


def send(messages: list[definition_pb2.Message]) -> bytes:
    return service_pb2.SendMessageRequest(messages=messages).SerializeToString()


def block(messages: list[definition_pb2.Message]) -> bytes:
    for one in messages:
        one.ClearField("topic")
    queue = common_pb2.Queue(topic="orders", queue_id=1)
    return data_pb2.PublishRequest(queue=queue, messages=messages).SerializeToString()


def cpu_us(read: Read, requests: list[bytes], messages: int) -> float:
    """CPU of one message."""
    start = time.thread_time_ns()
    for request in requests:
        assert read(request) is not None, "the request is plain"
    return (time.thread_time_ns() - start) / messages / 1_000


def ratio(found: list[float]) -> str:
    """Median and quartiles."""
    low, _, high = quantiles(found, n=4)
    return f"{median(found):.2f}, {low:.2f} to {high:.2f}"


def packing_us(native: Any, calls: list[list[Append]], messages: int) -> float:
    """CPU of packing one message; the groups are dropped as if they were written."""
    packer = packer_of(native, {}, segment_bytes=1 << 30, end=0)
    start = time.thread_time_ns()
    for entries in calls:
        if packer.pack(entries, NOW_S * 1_000, 0).bytes > GROUP_BYTES:
            packer.take()
    return (time.thread_time_ns() - start) / messages / 1_000


def packing(native: Any, messages: int, rounds: int) -> None:
    """Prints the table of the packers."""
    print("| call | Python, us a message | compiled | ratio: median, quartiles |")
    print("| --- | --- | --- | --- |")
    for name, count, body_bytes, queues in (
        ("1 message, 1 KiB", 1, 1_024, QUEUES),
        ("32 messages, 1 KiB, to 8 queues in turn", 32, 1_024, QUEUES),
        ("32 messages, 1 KiB, to one queue", 32, 1_024, 1),
        ("32 messages, 1 byte, to 8 queues in turn", 32, 1, QUEUES),
        ("256 messages, 1 KiB, to one queue", 256, 1_024, 1),
    ):
        rng = random.Random(1)
        every = max(1, messages // count)
        calls = [
            [
                Append(1, at % queues, 7, NOW_S, rng.randbytes(30 + body_bytes), rng.randbytes(150))
                for at in range(count)
            ]
            for _ in range(every)
        ]
        found = [[packing_us(module, calls, every * count) for module in (None, native)] for _ in range(rounds)]
        python, compiled = (median(column) for column in zip(*found, strict=True))
        print(f"| {name} | {python:.2f} | {compiled:.2f} | {ratio([of[0] / of[1] for of in found])} |", flush=True)


def reading(native: Any, messages: int, rounds: int) -> None:
    """Prints the table of the readers."""
    readers = [
        one
        for limits in (LIMITS, replace(LIMITS, only_md5=lambda: True))
        for one in (PlainSends(limits), NativeSends(native, limits))
    ]
    print("| request | Python, us a message | compiled | ratio: median, quartiles | MD5 to CRC32: Python | compiled |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, count, body_bytes, unlike in (
        ("SendMessage of 1, 1 KiB", 1, 1_024, False),
        ("SendMessage of 1, 1 byte", 1, 1, False),
        ("SendMessage of 1, 1 KiB, key and property", 1, 1_024, True),
        ("SendMessage of 32, 1 KiB", 32, 1_024, False),
        ("SendMessage of 32, 1 byte", 32, 1, False),
        ("SendMessage of 32, 1 KiB, unlike", 32, 1_024, True),
        ("Publish of 256, 1 KiB", 256, 1_024, False),
        ("Publish of 256, 1 byte", 256, 1, False),
    ):
        rng = random.Random(1)
        pack = block if name.startswith("Publish") else send
        calls = max(1, messages // count)
        requests = [pack([message(rng, body_bytes, unlike=unlike) for _ in range(count)]) for _ in range(calls)]
        reads: list[Read] = [one.read_block if pack is block else one.read for one in readers]
        found = [[cpu_us(read, requests, calls * count) for read in reads] for _ in range(rounds)]
        python, compiled = (median(column) for column in list(zip(*found, strict=True))[:2])
        ratios = [ratio([of[one] / of[other] for of in found]) for one, other in ((0, 1), (2, 0), (3, 1))]
        print(f"| {name} | {python:.2f} | {compiled:.2f} | {' | '.join(ratios)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--messages", type=int, default=3_200, help="in a round of each")
    parser.add_argument("--only", choices=("reading", "packing"))
    options = parser.parse_args()
    native = accelerator()
    if native.module is None:
        raise SystemExit(f"evenq_native is {native.state}; build it with `make native`")
    settle_collector()
    if options.only != "packing":
        reading(native.module, options.messages, options.rounds)
    if options.only != "reading":
        packing(native.module, options.messages, options.rounds)


if __name__ == "__main__":
    main()
