"""The compiled reader of plain requests answers exactly as the one in Python, also to hostile input.

Without `evenq_native` the tests are skipped; not if `EVENQ_TEST_ALL` is set and cargo is installed: there they fail. Millions
of requests: `make plain-sends`.
"""

import random
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from zlib import crc32

import pytest
from evenq_broker.core.sending.body_digest import MD5_HEAD
from evenq_broker.core.sending.native_sends import NativeSends, plain_reader
from evenq_broker.core.sending.plain_sends import PlainSends, known_tag
from evenq_broker.core.sending.validation import RESERVED_PROPERTIES, MessageLimits
from evenq_proofs.native_module import native_module

from evenq.store import Append
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2

sys.path.insert(0, str(Path(__file__).resolve().parent))
import plain_requests as made

LIMITS = MessageLimits(body_bytes_max=4 << 20, properties_max=128, properties_bytes_max=16 << 10, delay_max_ms=1)


@pytest.fixture(scope="module")
def native() -> ModuleType:
    """The accelerator."""
    return native_module()


def request(count: int = 1, **properties: str) -> service_pb2.SendMessageRequest:
    asked = service_pb2.SendMessageRequest()
    for number in range(count):
        message = asked.messages.add(body=b"x" * (100 + number))
        message.topic.name = "t"
        message.user_properties.update(properties)
        system = message.system_properties
        system.message_id, system.tag, system.body_encoding, system.message_type = f"id{number}", "AB"[number % 2], 1, 1
        system.keys.append(f"order-{number}")
        system.born_timestamp.seconds, system.born_timestamp.nanos = made.NOW_MS // 1_000, 1_000_000 + number
        system.born_host, system.queue_id, system.trace_context = "localhost", 3, "00-4bf9-00f0-01"
    return asked


def block(count: int = 1) -> data_pb2.PublishRequest:
    queue = common_pb2.Queue(topic="t", broker_name=made.BROKER, queue_id=3)
    asked = data_pb2.PublishRequest(queue=queue, messages=request(count).messages)
    for message in asked.messages:
        message.ClearField("topic")
    return asked


def same(native: ModuleType, data: bytes, limits: MessageLimits = LIMITS, broker_name: str = made.BROKER) -> bool:
    """Compares both readers for both calls; returns whether one of them read the request."""
    python = PlainSends(limits, broker_name=broker_name)
    compiled = NativeSends(native, limits, broker_name=broker_name)
    read = False
    for one, other in ((python.read, compiled.read), (python.read_block, compiled.read_block)):
        expected = made.answer_of(one(data))
        assert made.answer_of(other(data)) == expected, data.hex()
        read = read or expected is not None
    return read


@pytest.mark.parametrize("hostile", [False, True])
@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_both_readers_answer_alike_to_generated_requests(
    native: ModuleType, seed: int, *, blocks: bool, hostile: bool
) -> None:
    read = made.compare(native, 2_000, 100 + seed, blocks=blocks, hostile=hostile)
    assert 20 < read < 2_000, "some are read, and some are left to the full path"


@pytest.mark.parametrize("of", [request, block])
def test_a_request_that_is_cut_anywhere_or_has_any_other_byte_is_answered_alike(native: ModuleType, of: object) -> None:
    data = of(2).SerializeToString()  # type: ignore[operator]
    assert same(native, data)
    for at in range(len(data)):
        same(native, data[:at])
        for byte in (0x00, 0x01, 0x0A, 0x12, 0x1A, 0x22, 0x7F, 0x80, 0xFF, data[at] ^ 1):
            same(native, data[:at] + bytes((byte,)) + data[at + 1 :])


def test_lengths_of_any_size_in_any_place_are_answered_alike(native: ModuleType) -> None:
    data = block(1).SerializeToString()
    for at in range(len(data)):
        for length in made.BAD_LENGTHS:
            same(native, data[:at] + length + data[at + 1 :])


def test_random_bytes_are_not_plain(native: ModuleType) -> None:
    rng = random.Random(5)
    for _ in range(2_000):
        assert not same(native, rng.choice((b"", b"\x0a", b"\x0a\x01t\x12")) + rng.randbytes(rng.randrange(60)))


@pytest.mark.parametrize(
    "name",
    [
        "k",
        "é",
        "\u2003",
        "\u00a0",
        "\ue000",
        "\u0378",
        "\U0001f600",
        "a\u202eb",
        "x" * 127,
        "x" * 128,
        "\x7f",
        "\x1f",
        "~",
        " ",
    ],
)
def test_texts_are_judged_by_the_same_table_of_characters(native: ModuleType, name: str) -> None:
    """Which characters are printable depends on Python's version: the compiled reader has no table of its own."""
    asked = request(2, **{name: "v"})
    asked.messages[0].system_properties.tag = asked.messages[1].system_properties.keys[0] = name
    same(native, asked.SerializeToString())
    asked.messages[0].system_properties.tag, asked.messages[1].system_properties.keys[0] = "A", "k"
    assert same(native, asked.SerializeToString()) == name.isprintable()


def test_reserved_and_repeated_properties_are_left_to_the_full_path(native: ModuleType) -> None:
    for name in RESERVED_PROPERTIES:
        assert not same(native, request(1, **{name: "v"}).SerializeToString())
    twice = b"\x12\x06\x0a\x01k\x12\x01v"
    data = request(1, k="v").messages[0].SerializeToString().replace(twice, twice + twice, 1)
    assert not same(native, b"\x0a" + made.varint(len(data)) + data)


@pytest.mark.parametrize(
    "limits",
    [
        {"body_bytes_max": 99},
        {"body_bytes_max": 100},
        {"properties_max": 1},
        {"properties_max": 2},
        *({"properties_bytes_max": size} for size in range(1, 60)),
    ],
)
def test_limits_are_the_same(native: ModuleType, limits: dict[str, int]) -> None:
    usual = {"body_bytes_max": 1_000, "properties_max": 10, "properties_bytes_max": 1_000, "delay_max_ms": 1}
    same(native, request(1, a="1", b="22").SerializeToString(), MessageLimits(**usual | limits))


def test_system_properties_of_up_to_8_kib_and_queues_of_up_to_1_kib_are_read(native: ModuleType) -> None:
    read = []
    for size in range(1, 128):
        asked = request(1)
        asked.messages[0].system_properties.keys.extend(["k" * 100] * 79 + ["l" * size])
        read.append(same(native, asked.SerializeToString()))
    assert (read[0], read[-1]) == (True, False)
    read = []
    for size in range(1_000, 1_040):
        published = block(1)
        published.queue.broker_name = "b" * size
        read.append(same(native, published.SerializeToString(), broker_name="b" * size))
    assert (read[0], read[-1]) == (True, False)


def test_properties_without_end_cost_no_more_than_their_limit(native: ModuleType) -> None:
    asked = request()
    for number in range(20_000):
        asked.messages[0].user_properties[f"{number}"] = "v"
    assert not same(native, asked.SerializeToString())


def test_a_body_that_is_digested_without_the_interpreters_lock_has_the_same_digest(native: ModuleType) -> None:
    asked = request(3)
    for message in asked.messages:
        message.body = random.Random(1).randbytes(100_000)
    assert same(native, asked.SerializeToString())


def test_an_error_of_a_rule_in_python_is_raised_and_a_request_of_another_type_refused(native: ModuleType) -> None:
    def broken(_tag: bytes) -> int:
        raise RuntimeError("the rule failed")

    reader = native.PlainReader(**{**arguments(), "tag_hash_of": broken})
    with pytest.raises(RuntimeError, match="the rule failed"):
        reader.read(request().SerializeToString(), 0)
    with pytest.raises(TypeError):
        reader.read("text", 0)
    with pytest.raises(OverflowError):
        reader.read(b"", -1)


@pytest.mark.parametrize("only_md5", [False, True])
def test_both_readers_store_the_same_digest_for_each_first_digit_of_a_crc32(
    native: ModuleType, *, only_md5: bool
) -> None:
    bodies: dict[int, bytes] = {}
    for number in range(1_000):
        body = b"%d" % number
        bodies.setdefault(crc32(body) >> 28, body)
    limits = replace(LIMITS, only_md5=lambda: only_md5)
    for digit in range(16):
        asked = request()
        asked.messages[0].body = bodies[digit]
        data = asked.SerializeToString()
        assert same(native, data, limits)
        read = NativeSends(native, limits).read(data)
        assert read is not None
        assert (MD5_HEAD in read.entries[0].system) is (only_md5 or digit == 0)


def test_the_setting_counts_from_the_next_request_on(native: ModuleType) -> None:
    now = [True]
    limits = replace(LIMITS, only_md5=lambda: now[0])
    asked = request()
    asked.messages[0].body = b"123456789"
    for reader in (PlainSends(limits), NativeSends(native, limits)):
        for only_md5 in (True, False):
            now[0] = only_md5
            read = reader.read(asked.SerializeToString())
            assert read is not None
            assert (MD5_HEAD in read.entries[0].system) is only_md5
            assert read.keys == [b"id0CBF43926"], "the window of duplicates has one key for both"


def arguments() -> dict[str, object]:
    return {
        "append": Append, "tag_hash_of": known_tag, "broker_name": "a", "body_bytes_max": 1_000, "properties_max": 1,
        "properties_bytes_max": 100, "keys_max": 1, "reserved_properties": [], "crc32_head": b"", "md5_head": b"",
        "system_end": b"",
    }  # fmt: skip


def test_without_the_accelerator_the_reader_is_the_one_in_python(native: ModuleType) -> None:
    assert type(plain_reader(None, LIMITS)) is PlainSends
    assert type(plain_reader(native, LIMITS)) is NativeSends
