"""Requests of SendMessage and Publish, as usual and broken in every way, and what holds the readers of them against each
other: the full path, the reader in Python, and the compiled one of `evenq_native` if it is installed.

    python tests/unit/evenq_broker/core/sending/plain_requests.py --count 1000000 --seed 1

`judge` and `judge_block` fail if `core.sending.plain_sends` takes a request that the full path refuses, or stores
something else for it. `compare` fails if the compiled reader answers anything else than that in Python, also to input
that nobody but an attacker sends. Nothing here is left to protobuf but the full path itself: fields are encoded by hand,
so they can be wrong. The same seed gives the same requests.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from zlib import crc32

from evenq_broker.core.sending.native_sends import NativeModule, NativeSends
from evenq_broker.core.sending.plain_sends import PlainSend, PlainSends
from evenq_broker.core.sending.validation import MessageLimits, checked, checked_in_block
from google.protobuf.message import DecodeError

from evenq.errors import Error
from evenq.model import MessageType, TopicConfig
from evenq.runtime.accelerator import accelerator
from evenq.store import Append, TimerAppend
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2

LIMITS = MessageLimits(
    body_bytes_max=300, properties_max=3, properties_bytes_max=120, delay_max_ms=1_000, store_host="10.0.0.1:8081"
)
TOPIC = TopicConfig(name="t", topic_id=7, write_queues=8, read_queues=8, message_type=MessageType.NORMAL)
BROKER = "a"
NOW_MS = 1_700_000_000_000
TEXTS = (b"a", b"", b" ", b"\t", b"|", b"a|b", b"order-1", "é".encode(), b"\xff", b"\xc3", b"x" * 130, b"\x00", "\u2003".encode(), b"\x1c", b"\xed\xa0\x80", b"KEYS")  # fmt: skip


WIDE_LIMITS = MessageLimits(
    body_bytes_max=4 << 20, properties_max=128, properties_bytes_max=16 << 10, delay_max_ms=1_000
)
"""Those of a broker with default settings that does not know its address."""
MD5_LIMITS = replace(LIMITS, only_md5=lambda: True)
ATTACKS_EACH = 16
"""Attacked requests that are made of one: to make one costs more than both readers."""
BAD_LENGTHS = (b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x7f", b"\x80\x00", b"\x80\x80\x80\x01", b"\x80\x80\x80\x00")  # fmt: skip
BAD_TEXTS = (b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xe2\x80\xae", "\u00a0".encode(), "\U000e0001".encode(), "\ufeff".encode())  # fmt: skip


def varint(value: int, *, longer: bool = False) -> bytes:
    """`longer`: with a byte that is not needed."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    if longer:
        out += bytes((value | 0x80, 0))
    else:
        out.append(value)
    return bytes(out)


class Requests:
    """An endless row of requests."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.usual = True
        """Is the last request one that must be read from its bytes?"""

    def _rarely(self, one_in: int = 40) -> bool:
        # What is done then makes the request unusual, or may.
        hit = self.rng.randrange(one_in) == 0
        if hit:
            self.usual = False
        return hit

    def field(self, number: int, payload: bytes) -> bytes:
        """One of a length, now and then with a wrong length, wire type or number."""
        kind = 2
        size = len(payload)
        if self._rarely(400):
            kind = self.rng.randrange(8)
        if self._rarely(400):
            number = self.rng.choice((number, number + 1, 15, 16, 1_000, 0))
        if self._rarely(400):
            size = max(0, size + self.rng.choice((-1, 1, 127, 1 << 20)))
        return varint(number << 3 | kind) + varint(size, longer=self._rarely(400)) + payload

    def number(self, number: int, value: int) -> bytes:
        """A field of a number."""
        if self._rarely(200):
            value = self.rng.choice((0, 1, 2, 3, 6, 127, 128, 1 << 31, (1 << 64) - 1, 1 << 40))
        return varint(number << 3) + varint(value, longer=self._rarely(400))

    def text(self, usual: bytes) -> bytes:
        """That text, or a strange one."""
        return self.rng.choice(TEXTS) if self._rarely() else usual

    def moment(self) -> bytes:
        """A `Timestamp`."""
        rng = self.rng
        seconds = NOW_MS // 1_000 + rng.randrange(1_000)
        if self._rarely():
            seconds = rng.choice((0, 1, 1 << 27, (1 << 28) - 1, 1 << 28, 1 << 34, 1 << 35, (1 << 64) - 1, 1 << 62))
        fields = [self.number(1, seconds)] if seconds else []
        if rng.randrange(8):
            nanos = rng.choice((1, 999_999_999, 127, 128, 1 << 14, rng.randrange(1, 10**9), 5_000_000))
            if self._rarely():
                nanos = rng.choice((0, 10**9, (1 << 31) - 1, 1 << 31, (1 << 64) - 5, 1 << 34))
            fields.append(self.number(2, nanos))
        return b"".join(self.disturbed(fields))

    def disturbed(self, fields: list[bytes]) -> list[bytes]:
        """In another order, repeated, left out, or with an unknown one; mostly as they are."""
        rng = self.rng
        if self._rarely(150):
            rng.shuffle(fields)
        if fields and self._rarely(150):
            fields.insert(rng.randrange(len(fields) + 1), rng.choice(fields))
        if fields and self._rarely(150):
            fields.pop(rng.randrange(len(fields)))
        if self._rarely(150):
            fields.insert(rng.randrange(len(fields) + 1), rng.choice((b"\xa8\x06\x01", b"\xaa\x06\x01x", b"\x2d1234")))
        return fields

    def system(self) -> bytes:
        """`SystemProperties`."""
        rng = self.rng
        fields: list[bytes] = []
        if rng.randrange(2):
            fields.append(self.field(1, self.text(rng.choice((b"A", b"TagB", "ä".encode())))))
        fields += [self.field(2, self.text(b"key%d" % one)) for one in range(rng.choice((0, 0, 1, 2, 3)))]
        if self._rarely(300):
            fields += [self.field(2, b"k")] * rng.choice((127, 128, 129))
        fields.append(self.field(3, self.text(b"01%032X" % rng.randrange(1 << 60))))
        if self._rarely(100):
            digest = rng.choice((b"\x08\x02\x12\x01x", b"\x08\x02", b"", b"\x08\x01\x12\x02ab"))
            fields.append(self.field(4, digest))
        if rng.randrange(3):
            fields.append(self.number(5, 1))
        if rng.randrange(3):
            fields.append(self.number(6, 1))
        if not self._rarely(80):
            fields.append(self.field(7, self.moment()))
        if rng.randrange(4):
            fields.append(self.field(8, self.text(rng.choice((b"localhost", b"10.1.2.3", b"node-h1")))))
        for number, one_in in ((9, 200), (10, 200), (11, 100), (12, 200)):
            if self._rarely(one_in):
                fields.append(self.field(number, rng.choice((b"", b"\x08\x01", b"x", self.moment()))))
        if rng.randrange(2):
            fields.append(self.number(13, rng.choice((1, 2, 7, 8, 127, 128, 60_000))))
        for number in (14, 16, 22):
            if self._rarely(150):
                fields.append(self.number(number, rng.choice((1, 5, 1 << 20))))
        for number in (15, 17, 19, 20, 21):
            if self._rarely(150):
                fields.append(self.field(number, rng.choice((b"", b"g", b"\x08\x01", b"x" * 64))))
        if not rng.randrange(6):
            fields.append(self.field(18, self.text(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")))
        return b"".join(self.disturbed(fields))

    def entry(self, number: int) -> bytes:
        """One of the user properties."""
        key, value = self.text(b"k%d" % number), self.text(self.rng.choice((b"v", b"", "ü".encode())))
        return b"".join(self.disturbed([self.field(1, key), self.field(2, value)]))

    def message(self, topic: bytes = b"t") -> bytes:
        """One message. Without a topic, if that is empty."""
        rng = self.rng
        if self._rarely(200):
            topic = rng.choice((b"u", b"", b"t\xff", b"ns%t", b"t"))
        fields: list[bytes] = []
        if topic or not rng.randrange(40):
            self.usual = self.usual and bool(topic)
            resource = [self.field(2, topic)]
            if self._rarely(200):
                resource.insert(0, self.field(1, rng.choice((b"", b"ns"))))
            fields.append(self.field(1, b"".join(self.disturbed(resource))))
        fields += [self.field(2, self.entry(one)) for one in range(rng.choice((0, 0, 1, 2, 3)))]
        if self._rarely(100):
            fields.append(self.field(2, self.entry(0)))
            fields.append(self.field(2, self.entry(3)))
        fields.append(self.field(3, self.system()))
        size = rng.choice((1, 10, 127, 128, 300))
        if self._rarely(100):
            size = rng.choice((0, 301, 20_000))
        fields.append(self.field(4, rng.randbytes(size)))
        return b"".join(self.disturbed(fields))

    def alike(self, topic: bytes = b"t") -> list[bytes]:
        """Messages of one producer: they differ in id, time and body, and rarely in more."""
        rng, first = self.rng, self.message(topic)
        try:
            message = definition_pb2.Message.FromString(first)
        except DecodeError:
            return [first]
        found, system = [first], message.system_properties
        for _ in range(rng.choice((1, 2, 6))):
            system.message_id = f"01{rng.randrange(1 << 60):032X}"
            if system.HasField("born_timestamp"):
                system.born_timestamp.nanos = rng.choice((0, 5_000_000, rng.randrange(10**9)))
            message.body = rng.randbytes(rng.choice((1, 10, 127, 128, 300)))
            if self._rarely(40):
                system.message_id = rng.choice((" " * 34, "ä" * 17, ""))
            if self._rarely(100):
                system.born_timestamp.nanos = rng.choice((-1, (1 << 31) - 1))
            if self._rarely(60):
                message.body = b"x" * rng.choice((0, 301))
            if not rng.randrange(40):
                system.queue_id = rng.randrange(1, 8)
            found.append(message.SerializeToString())
            if self._rarely(20):
                found[-1] = self.damaged(found[-1])
            elif self._rarely(20):
                found[-1] = self.spoilt(message)
        return found

    def spoilt(self, message: definition_pb2.Message) -> bytes:
        """Encoded, and changed where messages that are alike differ: in the body's length or a fraction of a second."""
        rng, body, encoded = self.rng, message.body, message.SerializeToString()
        if body and rng.randrange(2):
            begin = encoded[: len(encoded) - len(b"\x22" + varint(len(body)) + body)]
            return begin + rng.choice((b"\x22" + varint(len(body), longer=True) + body, b"\x22\x00"))
        nanos = b"\x10" + varint(max(0, message.system_properties.born_timestamp.nanos))
        other = bytes(rng.choice((0x00, 0x01, 0x7F, 0x80, 0xFF)) for _ in nanos[1:])
        if rng.randrange(2):  # a number, maybe one that is too large
            other = bytes(rng.choice((0x80, 0xFF)) for _ in nanos[2:]) + rng.choice(
                (b"\x01", b"\x07", b"\x08", b"\x7f")
            )
        return encoded.replace(nanos, nanos[:1] + other, 1)

    def request(self) -> bytes:
        """The next one. `usual` says afterwards whether it must be read from its bytes."""
        self.usual = True
        return self._maybe_damaged([self.field(1, message) for message in self.messages(b"t")])

    def block(self) -> bytes:
        """The next PublishRequest, likewise."""
        rng = self.rng
        self.usual = True
        topic = rng.choice((b"t", b"t", b"x" * 125))
        inside = rng.choice((topic, b""))
        messages = self.messages(inside)
        if self._rarely(60):
            messages.insert(rng.randrange(len(messages) + 1), self.message(rng.choice((topic, b"", b"u"))))
        fields = [self.field(1, self.queue(topic)), *(self.field(2, message) for message in messages)]
        if self._rarely(100):
            fields.append(fields.pop(0))
        return self._maybe_damaged(fields)

    def messages(self, topic: bytes) -> list[bytes]:
        """Those of one request."""
        rng = self.rng
        if rng.randrange(4):
            return [self.message(topic) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
        return self.alike(topic)

    def queue(self, topic: bytes) -> bytes:
        """What a block is for."""
        rng = self.rng
        broker, queue_id = rng.choice((b"", BROKER.encode())), rng.choice((0, 1, 7, 8, 127, 128, 60_000, (1 << 64) - 1))
        if self._rarely(60):
            topic = rng.choice((b"", b"u", b"t\xff", b"x" * 126, b"a b", b"ns%t"))
        if self._rarely(60):
            broker = rng.choice((b"b", b"\xff", b" ", b"x" * 130))
        fields = [self.field(1, topic)]
        if broker:
            fields.append(self.field(2, broker))
        if queue_id:
            fields.append(self.number(3, queue_id))
        return b"".join(self.disturbed(fields))

    def _maybe_damaged(self, fields: list[bytes]) -> bytes:
        data = b"".join(self.disturbed(fields))
        return self.damaged(data) if self._rarely(8) else data

    def damaged(self, data: bytes) -> bytes:
        """Cut off, or with bytes changed, added or taken away."""
        rng = self.rng
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(len(data) + 1)
            what = rng.randrange(5)
            if what == 0:
                data = data[:at]
            elif what == 1:
                data = data[:at] + rng.randbytes(rng.choice((1, 1, 2, 9))) + data[at:]
            elif what == 2:
                data = data[:at] + data[at + rng.choice((1, 1, 2, 9)) :]
            elif what == 3:
                data = data[:at] + rng.choice((b"\x80", b"\x00", b"\x0a", b"\xff", b"\x7f", b"\x12")) + data[at + 1 :]
            else:
                data = data[:at] + data[max(0, at - rng.randrange(1, 40)) :]
        return data

    def attacked(self, data: bytes) -> bytes:
        """Requests of an attacker: huge lengths, other wire types, text that is not UTF-8, pieces in wrong places."""
        rng = self.rng
        if not rng.randrange(50):
            return rng.randbytes(rng.randrange(80))
        for _ in range(rng.choice((1, 1, 2, 3, 8))):
            at = rng.randrange(len(data) + 1)
            match rng.randrange(7):
                case 0:
                    data = data[:at] + rng.choice(BAD_LENGTHS) + data[at + rng.choice((0, 1, 2)) :]
                case 1:
                    text = rng.choice(BAD_TEXTS)
                    data = data[:at] + text + data[at + rng.choice((0, len(text))) :]
                case 2:  # another wire type, or another number
                    data = (
                        data[:at] + bytes(byte ^ 1 << rng.randrange(8) for byte in data[at : at + 1]) + data[at + 1 :]
                    )
                case 3:
                    data = data[:at]
                case 4:  # a piece of itself
                    start = rng.randrange(len(data) + 1)
                    data = data[:at] + data[start : start + rng.choice((1, 2, 5, 40))] + data[at:]
                case 5:
                    data = data[:at] + data[at + rng.choice((1, 2, 3, 40)) :]
                case _:  # lengths that are off by little
                    data = (
                        data[:at]
                        + bytes((byte + rng.choice((1, 255))) & 255 for byte in data[at : at + 1])
                        + data[at + 1 :]
                    )
        return data


class Differs(AssertionError):
    """The two readers disagree."""


def judge(request: bytes, reader: PlainSends, *, usual: bool) -> bool:
    """Raises Differs. True if the request was read from its bytes."""
    plain = reader.read(request)
    return _judged(request, plain, _compare_send, usual=usual)


def judge_block(request: bytes, reader: PlainSends, *, usual: bool) -> bool:
    """The same of a PublishRequest; `reader`: of `BROKER`."""
    plain = reader.read_block(request)
    return _judged(request, plain, _compare_block, usual=usual)


def _judged(request: bytes, plain: Any, compare: Callable[[bytes, Any], None], *, usual: bool) -> bool:
    if plain is None:
        if usual:
            raise Differs(f"as usual, and not read from its bytes: {request.hex()}")
        return False
    try:
        compare(request, plain)
    except Differs as error:
        raise Differs(f"{error}: {request.hex()}") from error
    except (Error, ValueError, DecodeError) as error:
        raise Differs(f"the full path says {error!r}: {request.hex()}") from error
    return True


Check = Callable[[definition_pb2.Message], Append | TimerAppend]


def _compare_send(request: bytes, plain: PlainSend) -> None:
    messages = service_pb2.SendMessageRequest.FromString(request).messages
    for message in messages:
        _same("topic", plain.topic, message.topic.name)
        _same("namespace", message.topic.resource_namespace, "")
    _compare(messages, plain, lambda message: checked(message, TOPIC, LIMITS, now_ms=NOW_MS))


def _compare_block(request: bytes, block: Any) -> None:
    response = data_pb2.PublishRequest.FromString(request)
    _same("topic", block.topic, response.queue.topic)
    _same("queue of the block", block.queue_id, response.queue.queue_id)
    if response.queue.broker_name not in {"", BROKER}:
        raise Differs(f"it is for broker {response.queue.broker_name}")
    topic: Any = SimpleNamespace(name=response.queue.topic, topic_id=TOPIC.topic_id, write_queues=TOPIC.write_queues)
    topic.message_type = TOPIC.message_type  # a topic of a name that cannot be is not found before this
    _compare(response.messages, block, lambda message: checked_in_block(message, topic, LIMITS, now_ms=NOW_MS))


def _compare(messages: Sequence[definition_pb2.Message], plain: PlainSend, check: Check) -> None:
    _same("count", len(plain.entries), len(messages))
    _same("any", bool(messages), True)
    _same("ids", plain.message_ids, [message.system_properties.message_id.encode() for message in messages])
    for message, entry, key, message_id in zip(messages, plain.entries, plain.keys, plain.message_ids, strict=True):
        properties = len(message.user_properties)
        full = check(message)
        if not isinstance(full, Append):
            raise Differs("the full path makes a timer of it")
        queue_id = entry.queue_id if 0 < entry.queue_id < TOPIC.write_queues else -1
        _same("queue", queue_id, full.queue_id)
        _same("tag", entry.tag_hash, full.tag_hash)
        _same("born", entry.born_ms, full.born_ms)
        _same("system properties", entry.system, full.system)
        _same("key", key, b"%b%08X" % (message_id, crc32(message.body)))
        if properties < 2:
            _same("head", entry.head, full.head)
        else:  # protobuf itself keeps no order of them
            _same("size of the head", len(entry.head), len(full.head))
            _same("head", _sorted(entry.head), _sorted(full.head))


def _sorted(head: bytes) -> bytes:
    return definition_pb2.Message.FromString(head).SerializeToString(deterministic=True)


def _same(what: str, ours: object, theirs: object) -> None:
    if ours != theirs:
        raise Differs(f"{what}: {ours!r} from the bytes, {theirs!r} by the full path")


def run(count: int, seed: int, *, blocks: bool = False) -> tuple[int, int]:
    """Judge this number; how many were as usual, and how many were read from their bytes."""
    made, reader = Requests(seed), PlainSends(LIMITS, broker_name=BROKER)
    make, by = (made.block, judge_block) if blocks else (made.request, judge)
    usual = read = 0
    for _ in range(count):
        request = make()
        usual += made.usual
        read += by(request, reader, usual=made.usual)
    return usual, read


def compare(native: NativeModule, count: int, seed: int, *, blocks: bool = False, hostile: bool = False) -> int:
    """Compare both readers on this number; how many they read from their bytes. `hostile`: of an attacker."""
    made = Requests(seed)
    pairs = [
        (PlainSends(limits, broker_name=name), NativeSends(native, limits, broker_name=name))
        for limits, name in ((LIMITS, BROKER), (WIDE_LIMITS, ""), (MD5_LIMITS, BROKER))
    ]
    read, base, repeat = 0, b"", ATTACKS_EACH if hostile else 1
    for number in range(count):
        if number % repeat == 0:
            base = made.block() if blocks else made.request()
        request = made.attacked(base) if hostile else base
        python, compiled = pairs[number % len(pairs)]
        one = python.read_block(request) if blocks else python.read(request)
        other = compiled.read_block(request) if blocks else compiled.read(request)
        if answer_of(one) != answer_of(other):
            raise Differs(f"{answer_of(one)} by Python, {answer_of(other)} compiled: {request.hex()}")
        read += one is not None
    return read


def answer_of(plain: PlainSend | None) -> tuple[object, ...] | None:
    """All that a reader returns, with types."""
    if plain is None:
        return None
    entries = [tuple((name, getattr(entry, name)) for name in Append.__mro__[1].__slots__) for entry in plain.entries]
    kinds = {type(entry) for entry in plain.entries}
    return type(plain), plain.topic, getattr(plain, "queue_id", None), plain.message_ids, plain.keys, kinds, entries


def compare_at_length(count: int, seed: int, step: int) -> None:
    """Print the figures of `compare` for both calls, each with requests as they are and attacked."""
    native = accelerator().module
    if native is None:
        print(f"evenq_native is {accelerator().state}: the compiled reader was not compared (make native)")
        return
    for blocks in (False, True):
        for hostile in (False, True):
            start, read = time.monotonic(), 0
            for first in range(0, count, step):
                of = min(step, count - first)
                read += compare(native, of, seed * 1_000_000 + first, blocks=blocks, hostile=hostile)
            print(
                f"{count} {'attacked ' if hostile else ''}{'blocks' if blocks else 'requests'}, seed {seed}, by Python and "
                f"compiled: {read} read from their bytes, none that differs; {time.monotonic() - start:.0f} s",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Hold the readers of SendMessage and of Publish against each other.")
    parser.add_argument("--count", type=int, default=1_000_000, help="of each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compiled-only", action="store_true", help="only compare the compiled reader")
    asked = parser.parse_args()
    step = 50_000
    compare_at_length(asked.count, asked.seed, step)
    if asked.compiled_only:
        return
    for blocks in (False, True):
        start = time.monotonic()
        totals = [0, 0]
        for first in range(0, asked.count, step):
            found = run(min(step, asked.count - first), asked.seed * 1_000_000 + first, blocks=blocks)
            totals = [total + one for total, one in zip(totals, found, strict=True)]
        print(
            f"{asked.count} {'blocks' if blocks else 'requests'}, seed {asked.seed}: {totals[0]} as usual, {totals[1]} "
            f"read from their bytes, none that differs; {time.monotonic() - start:.0f} s"
        )


if __name__ == "__main__":
    main()
