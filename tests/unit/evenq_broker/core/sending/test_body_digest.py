"""The digest of a body that is stored and delivered: official SDKs accept it, and the duplicate window does not depend on it."""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

import pytest
from evenq_broker.core.sending.body_digest import body_of, digest_field, field_of_sent, for_node, mark_of

from evenq.errors import MessageCorrupted
from evenq.store import StoredMessage
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2

BODIES = [b"%d" % number for number in range(500)]
PADDED = next(body for body in BODIES if zlib.crc32(body) < 1 << 28)
FULL = next(body for body in BODIES if zlib.crc32(body) >= 1 << 28)


def md5(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest().upper()


def digest_of(field: bytes) -> v2.Digest:
    return v2.SystemProperties.FromString(field).body_digest


def sent(kind: Any, checksum: str) -> v2.Digest:
    return v2.Digest(type=kind, checksum=checksum)


# As the SDKs compute what they compare with, text for text (sources of rocketmq-clients, decision 151).
CRC32_OF = {
    "Java: Long.toHexString().toUpperCase()": lambda body: f"{zlib.crc32(body):x}".upper(),
    "Go: ToUpper(FormatInt(.., 16))": lambda body: f"{zlib.crc32(body):x}".upper(),
    'C#: ToString("X")': lambda body: f"{zlib.crc32(body):X}",
    "C++: hex(htonl(crc))": lambda body: zlib.crc32(body).to_bytes(4, "big").hex().upper(),
    'Python: format(crc, "08X")': lambda body: format(zlib.crc32(body), "08X"),
}


@pytest.mark.parametrize("sdk", CRC32_OF)
def test_the_stored_digest_is_the_text_that_each_sdk_makes(sdk: str) -> None:
    kinds = set()
    for body in BODIES:
        digest = digest_of(digest_field(body, only_md5=False))
        kinds.add(digest.type)
        assert digest.checksum == (CRC32_OF[sdk](body) if digest.type == v2.CRC32 else md5(body))
    assert kinds == {v2.CRC32, v2.MD5}


def test_a_client_of_node_gets_md5_whatever_is_stored() -> None:
    for body in (PADDED, FULL):
        for only_md5 in (False, True):
            head = v2.Message(topic=v2.Resource(name="t"), user_properties={"k": "v" * 200}, body=body)
            system = digest_field(body, only_md5=only_md5)
            one = StoredMessage(1, 2, 3, 4, 5, 6, 7, head.SerializeToString(), system)
            [got] = for_node([one])
            assert digest_of(got.system) == sent(v2.MD5, md5(body))
            same = set(StoredMessage.__slots__) - {"system"}
            assert [getattr(got, name) for name in same] == [getattr(one, name) for name in same]


def test_md5_alone_can_be_required() -> None:
    for body in BODIES:
        assert digest_of(digest_field(body, only_md5=True)) == sent(v2.MD5, md5(body))


@pytest.mark.parametrize("only_md5", [False, True])
@pytest.mark.parametrize("body", [PADDED, FULL])
def test_a_digest_that_came_is_kept_if_all_sdks_accept_it(body: bytes, *, only_md5: bool) -> None:
    own = digest_of(digest_field(body, only_md5=only_md5))
    crc, sha1 = zlib.crc32(body), hashlib.sha1(body, usedforsecurity=False).hexdigest()
    for given, kept in (
        (sent(v2.CRC32, f"{crc:x}"), own),
        (sent(v2.CRC32, f"{crc:08X}"), own),
        (sent(v2.MD5, md5(body).lower()), sent(v2.MD5, md5(body))),
        (sent(v2.SHA1, sha1), own if only_md5 else sent(v2.SHA1, sha1.upper())),
        (sent(9, "anything"), own),
        (sent(v2.MD5, ""), own),
        (sent(v2.CRC32, ""), own),
        (sent(v2.DIGEST_TYPE_UNSPECIFIED, "anything"), own),
    ):
        assert digest_of(field_of_sent(given, body, only_md5=only_md5)) == kept


@pytest.mark.parametrize("only_md5", [False, True])
@pytest.mark.parametrize(
    ("kind", "checksum"),
    [
        (v2.CRC32, "0"),
        (v2.CRC32, "CBF4392"),
        (v2.CRC32, "0CBF43926"),
        (v2.CRC32, str(zlib.crc32(b"123456789"))),
        (v2.MD5, "0" * 32),
        (v2.MD5, "x"),
        (v2.SHA1, "0" * 40),
    ],
)
def test_a_wrong_digest_is_refused(kind: Any, checksum: str, *, only_md5: bool) -> None:
    with pytest.raises(MessageCorrupted, match="damaged on its way"):
        field_of_sent(sent(kind, checksum), b"123456789", only_md5=only_md5)


@pytest.mark.parametrize("body", [PADDED, FULL, b"x" * 100_000])
def test_the_mark_of_a_message_is_the_crc32_of_its_body_whatever_digest_is_stored(body: bytes) -> None:
    head = v2.Message(topic=v2.Resource(name="t" * 200), user_properties={"a": "1", "b": "v" * 300}, body=body)
    mark = b"%08X" % zlib.crc32(body)
    sha1 = sent(v2.SHA1, hashlib.sha1(body, usedforsecurity=False).hexdigest())
    forged = v2.SystemProperties(message_id="1", trace_context='"\f\b\x01\x12\b00000000').SerializeToString()
    end = b"\x28\x01\x30\x01\x52\x03h:1"
    for field in (
        digest_field(body, only_md5=False),
        digest_field(body, only_md5=True),
        field_of_sent(sha1, body, only_md5=False),
    ):
        assert mark_of(head.SerializeToString(), forged + field + end) == mark


def test_a_head_that_no_broker_wrote_has_no_body_and_raises_nothing() -> None:
    head = v2.Message(topic=v2.Resource(name="t"), user_properties={"k": "v"}, body=b"body").SerializeToString()
    assert body_of(head) == b"body"
    for cut in range(len(head)):
        assert b"body".startswith(body_of(head[:cut]))
    assert body_of(b"") == body_of(b"\xff" * 50) == body_of(b"\x0a\xff\xff\xff\xff\x7f") == b""
