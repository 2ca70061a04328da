"""The byte table of a commit-log frame, shared by the writer, the reader and recovery; `docs/internals/data_files.md`
shows it.

A frame is a fixed header and two payloads. All numbers are big-endian. The CRC32C covers everything behind itself, so
a frame whose CRC fits is whole. `synced offset` says up to where the log was on disk when the frame was made: a hole
before it is corruption, a hole behind it may be what a power loss left (see `recovery`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from evenq.errors import StoreCorrupted, StoreError
from evenq.store.log.messages import StoredMessage, StoredTimer

__all__ = [
    "FRAME_FIELDS",
    "HEADER_BYTES",
    "KINDS",
    "ByteField",
    "Frame",
    "Header",
    "TimerFields",
    "frame_at",
    "is_message",
    "kind_at",
    "message_at",
    "message_of",
    "pack",
    "pack_padding",
    "pack_timer_ids",
    "timer_ids_of",
    "timer_of",
]


@dataclass(frozen=True, slots=True)
class ByteField:
    """One line of a byte table: name and `struct` letter."""

    name: str
    letter: str

    @property
    def size(self) -> int:
        return struct.calcsize(">" + self.letter)


def struct_of(fields: tuple[ByteField, ...]) -> struct.Struct:
    """The packer of a byte table."""
    return struct.Struct(">" + "".join(field.letter for field in fields))


FRAME_FIELDS: Final = (
    ByteField("total size", "I"),
    ByteField("magic", "I"),
    ByteField("crc32c", "I"),
    ByteField("version", "B"),
    ByteField("kind", "B"),
    ByteField("flags", "H"),
    ByteField("epoch", "Q"),
    ByteField("topic id", "I"),
    ByteField("queue id", "I"),
    ByteField("queue offset", "Q"),
    ByteField("log offset", "Q"),
    ByteField("synced offset", "Q"),
    ByteField("store ms", "q"),
    ByteField("born ms", "q"),
    ByteField("tag hash", "q"),
    ByteField("head length", "I"),
    ByteField("system length", "I"),
)
MAGIC: Final = 0x45764C31  # "EvL1"
VERSION: Final = 1
MESSAGE: Final = 1
STATE: Final = 2
PADDING: Final = 3  # fills the rest of a segment; its total size is that rest, its CRC covers the header only
TIMER: Final = 4  # a message to come; see `TimerFields` for what three of its fields hold
TIMER_END: Final = 5  # its head lists the timers that are over: their log offsets, 8 bytes each
KINDS: Final = {MESSAGE: "message", STATE: "state", PADDING: "padding", TIMER: "timer", TIMER_END: "timer end"}
FLAG_MORE: Final = 1  # the next record belongs to the same append call: both or neither
TIMER_KIND_SHIFT: Final = 8
TIMER_KIND_MAX: Final = 255

HEADER: Final = struct_of(FRAME_FIELDS)
HEADER_BYTES: Final = HEADER.size
_unpack_header: Final = HEADER.unpack_from
COPY_MAX: Final = 4_096
PREFIX: Final = struct.Struct(">III")
PREFIX_BYTES: Final = PREFIX.size
REST: Final = struct_of(FRAME_FIELDS[3:])
STEM: Final = struct_of(FRAME_FIELDS[3:9])  # of a message: the same for all of one queue
PLACE: Final = struct_of(FRAME_FIELDS[9:])
MAGIC_BYTES: Final = MAGIC.to_bytes(4, "big")
_SIZE_AND_MAGIC: Final = struct.Struct(">II")
_UNSIGNED: Final = (1 << 64) - 1
_SIGN: Final = 1 << 63


Header = tuple[int, ...]
"""The fields of a frame (`FRAME_FIELDS`), as `HEADER` unpacks them."""


class Frame:
    """A frame that was read and whose CRC fits."""

    __slots__ = (
        "_queue_offset_field", "_tag_hash_field", "born_ms", "epoch", "flags", "head", "kind", "log_offset",
        "queue_id", "size", "store_ms", "synced_offset", "system", "topic_id",
    )  # fmt: skip

    def __init__(self, header: tuple[int, ...], head: bytes, system: bytes) -> None:
        (
            self.size, _, _, _, self.kind, self.flags, self.epoch, self.topic_id, self.queue_id,
            self._queue_offset_field, self.log_offset, self.synced_offset, self.store_ms, self.born_ms,
            self._tag_hash_field, _, _,
        ) = header  # fmt: skip
        self.head = head
        self.system = system

    @property
    def queue_offset(self) -> int:
        """Of a message: its place in its queue."""
        assert self.kind != TIMER, "a timer has no place in a queue"
        return self._queue_offset_field

    @property
    def tag_hash(self) -> int:
        """Of a message: the hash of its tag, 0 without one."""
        assert self.kind != TIMER, "a timer's fields are `timer`"
        return self._tag_hash_field

    @property
    def timer(self) -> TimerFields:
        """Of a timer. Raises StoreCorrupted for another kind."""
        if self.kind != TIMER:
            raise StoreCorrupted(
                f"the record at log offset {self.log_offset} is of kind {self.kind}, a timer is {TIMER}"
            )
        return TimerFields.read(self.flags, self._queue_offset_field, self._tag_hash_field)


@dataclass(frozen=True, slots=True)
class TimerFields:
    """What a timer keeps in three fields of its frame that are named for what a message keeps there. The format is
    fixed; this is the only place that knows which field holds what.
    """

    due_ms: int
    """When the message is due, ms since the epoch: in the field "tag hash"."""
    tag_hash: int
    """Of the message to come: in the field "queue offset", as 64 bits without sign."""
    timer_kind: int
    """What its owner makes of it, 0 .. TIMER_KIND_MAX: in bits 8 to 15 of "flags"."""

    @staticmethod
    def read(flags: int, queue_offset_field: int, tag_hash_field: int) -> TimerFields:
        """Of the three fields of a frame."""
        tag_hash = queue_offset_field - (1 << 64) if queue_offset_field & _SIGN else queue_offset_field
        return TimerFields(tag_hash_field, tag_hash, flags >> TIMER_KIND_SHIFT)

    @property
    def flags(self) -> int:
        """The field "flags"."""
        return self.timer_kind << TIMER_KIND_SHIFT

    @property
    def queue_offset_field(self) -> int:
        """The field "queue offset"."""
        return self.tag_hash & _UNSIGNED

    @property
    def tag_hash_field(self) -> int:
        """The field "tag hash"."""
        return self.due_ms


def pack(
    *, kind: int, flags: int, epoch: int, topic_id: int, queue_id: int, queue_offset: int, log_offset: int,
    synced_offset: int, store_ms: int, born_ms: int, tag_hash: int, head: bytes, system: bytes,
) -> bytes:  # fmt: skip
    """One whole frame. The append path does the same in place, without this call's cost."""
    rest = REST.pack(
        VERSION, kind, flags, epoch, topic_id, queue_id, queue_offset, log_offset, synced_offset, store_ms, born_ms,
        tag_hash, len(head), len(system),
    )  # fmt: skip
    body = b"".join((rest, head, system))
    return PREFIX.pack(PREFIX_BYTES + len(body), MAGIC, crc32c(body)) + body


def pack_padding(log_offset: int, rest_bytes: int, *, epoch: int, synced_offset: int, store_ms: int) -> bytes:
    """What ends a segment: a padding header, or zeros where not even that fits."""
    if rest_bytes < HEADER_BYTES:
        return bytes(rest_bytes)
    rest = REST.pack(VERSION, PADDING, 0, epoch, 0, 0, 0, log_offset, synced_offset, store_ms, 0, 0, 0, 0)
    return PREFIX.pack(rest_bytes, MAGIC, crc32c(rest)) + rest


def frame_at(data: bytes | memoryview, position: int, log_offset: int) -> Frame | None:
    """The frame that starts at `position` of `data` and should carry `log_offset`; None if none does or it is cut
    short.

    Raises StoreError for a whole frame of a version this program does not know.
    """
    if len(data) - position < HEADER_BYTES:
        return None
    header = HEADER.unpack_from(data, position)
    size, magic, crc, version, kind = header[:5]
    if magic != MAGIC or size < HEADER_BYTES or header[10] != log_offset:
        return None
    if kind == PADDING:
        end = position + HEADER_BYTES
    else:
        end = position + size
        if end > len(data):
            return None
    covered = memoryview(data) if end - position >= COPY_MAX else data  # a view costs more than a copy of little
    if crc32c(covered[position + PREFIX_BYTES : end]) != crc:
        return None
    if version != VERSION:
        raise StoreError(
            f"the record at log offset {log_offset} has format version {version}; this program reads version "
            f"{VERSION}: start a newer program on this folder"
        )
    head_length, system_length = header[15:]
    if kind == PADDING:
        return Frame(header, b"", b"")
    if HEADER_BYTES + head_length + system_length != size:
        return None
    body = position + HEADER_BYTES
    return Frame(header, bytes(data[body : body + head_length]), bytes(data[body + head_length : end]))


def message_at(data: bytes, position: int, log_offset: int) -> StoredMessage | None:
    """The same as `frame_at` and `message_of` in one, for reads: None for whatever is no whole message of this version
    in its place.
    """
    if len(data) - position < HEADER_BYTES:
        return None
    (size, magic, crc, version, kind, _, _, topic_id, queue_id, queue_offset, own_offset, _, store_ms, born_ms,
     tag_hash, head_bytes, system_bytes) = _unpack_header(data, position)  # fmt: skip
    end = position + size
    head = position + HEADER_BYTES
    system = head + head_bytes
    if (
        magic != MAGIC
        or kind != MESSAGE
        or version != VERSION
        or own_offset != log_offset
        or system + system_bytes != end
        or end > len(data)
    ):
        return None
    covered = data if size < COPY_MAX else memoryview(data)  # as above
    if crc32c(covered[position + PREFIX_BYTES : end]) != crc:
        return None
    return StoredMessage(
        topic_id, queue_id, queue_offset, own_offset, born_ms, store_ms, tag_hash, data[head:system], data[system:end]
    )


def is_message(header: Header, data: memoryview, position: int, base: int) -> bool:
    """Whether that is the header of a whole message in its place. Any other frame, and any doubt, is `_frame`'s."""
    size = header[0]
    return (
        header[4] == MESSAGE
        and header[1] == MAGIC
        and header[10] == base + position
        and header[3] == VERSION
        and HEADER_BYTES + header[15] + header[16] == size
        and position + size <= len(data)
        and crc32c(data[position + PREFIX_BYTES : position + size]) == header[2]
    )


def size_at(data: bytes | memoryview, position: int) -> int:
    """Total size that the frame at `position` claims; 0 if no frame header can start there."""
    if len(data) - position < HEADER_BYTES:
        return 0
    size, magic = _SIZE_AND_MAGIC.unpack_from(data, position)
    return size if magic == MAGIC and size >= HEADER_BYTES else 0


def kind_at(data: bytes) -> int:
    """Kind of the record whose header `data` begins with."""
    return int(HEADER.unpack_from(data)[4])


def message_of(frame: Frame) -> StoredMessage:
    """The message that a frame of kind MESSAGE holds. Raises StoreCorrupted for another kind."""
    if frame.kind != MESSAGE:
        raise StoreCorrupted(
            f"the record at log offset {frame.log_offset} is of kind {frame.kind}, a message is {MESSAGE}"
        )
    return StoredMessage(
        frame.topic_id, frame.queue_id, frame.queue_offset, frame.log_offset, frame.born_ms, frame.store_ms,
        frame.tag_hash, frame.head, frame.system,
    )  # fmt: skip


# -- timers -----------------------------------------------------------------------------------------------------------


def timer_of(frame: Frame) -> StoredTimer:
    """The timer that a frame of kind TIMER holds. Raises StoreCorrupted for another kind."""
    fields = frame.timer
    return StoredTimer(
        frame.topic_id, frame.queue_id, frame.log_offset, frame.born_ms, frame.store_ms, fields.tag_hash, fields.due_ms,
        fields.timer_kind, frame.head, frame.system,
    )  # fmt: skip


def pack_timer_ids(timer_ids: Sequence[int]) -> bytes:
    """The head of a frame of kind TIMER_END."""
    return struct.pack(f">{len(timer_ids)}Q", *timer_ids)


def timer_ids_of(frame: Frame) -> tuple[int, ...]:
    """The timers that a frame of kind TIMER_END ends. Raises StoreCorrupted for another kind or a broken list."""
    count, rest = divmod(len(frame.head), 8)
    if frame.kind != TIMER_END or rest:
        raise StoreCorrupted(
            f"the record at log offset {frame.log_offset} of kind {frame.kind} and {len(frame.head)} bytes is no "
            f"list of timers: that is kind {TIMER_END} and 8 bytes a timer"
        )
    return struct.unpack(f">{count}Q", frame.head)
