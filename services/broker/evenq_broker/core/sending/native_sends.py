"""Reader of plain requests by the compiled accelerator: `plain_sends`, with the same answers.

`evenq_native` holds the byte work alone. The rules that a broker sets (limits, reserved names, tags, the digest) are
passed to it from here. `make plain-sends` compares both readers with generated requests. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from evenq.store import Append
from evenq_broker.core.sending.body_digest import CRC32_HEAD, MD5_HEAD
from evenq_broker.core.sending.plain_sends import PlainBlock, PlainSend, PlainSends, known_tag
from evenq_broker.core.sending.validation import (
    KEYS_MAX,
    NORMAL_END,
    RESERVED_PROPERTIES,
    MessageLimits,
)

if TYPE_CHECKING:
    from evenq_native import PlainReader


class NativeModule(Protocol):
    """The part of `evenq_native` that is used here."""

    @property
    def PlainReader(self) -> type[PlainReader]: ...  # noqa: N802  a class of the module


class NativeSends(PlainSends):
    """Reader of requests under the limits of one broker, compiled."""

    def __init__(self, native: NativeModule, limits: MessageLimits, *, broker_name: str = "") -> None:
        super().__init__(limits, broker_name=broker_name)
        self._native = native.PlainReader(
            append=Append,
            tag_hash_of=known_tag,
            broker_name=broker_name,
            body_bytes_max=limits.body_bytes_max,
            properties_max=limits.properties_max,
            properties_bytes_max=limits.properties_bytes_max,
            keys_max=KEYS_MAX,
            reserved_properties=sorted(RESERVED_PROPERTIES),
            crc32_head=CRC32_HEAD,
            md5_head=MD5_HEAD,
            system_end=NORMAL_END + limits.store_host_field,
        )

    def _read(self, data: bytes) -> PlainSend | None:
        columns = self._native.read(data, self._crc_min)
        if columns is None:
            return None
        topic, entries, message_ids, keys = columns
        send = PlainSend(topic)
        send.entries, send.message_ids, send.keys = entries, message_ids, keys
        return send

    def _read_block(self, data: bytes) -> PlainBlock | None:
        columns = self._native.read_block(data, self._crc_min)
        if columns is None:
            return None
        topic, queue_id, entries, message_ids, keys = columns
        block = PlainBlock(topic, queue_id)
        block.entries, block.message_ids, block.keys = entries, message_ids, keys
        return block


def plain_reader(native: NativeModule | None, limits: MessageLimits, *, broker_name: str = "") -> PlainSends:
    """Returns the reader of a broker: compiled with the accelerator, otherwise in Python."""
    if native is None:
        return PlainSends(limits, broker_name=broker_name)
    return NativeSends(native, limits, broker_name=broker_name)
