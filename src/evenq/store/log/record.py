"""The byte table of a commit-log frame, shared by writer, reader and recovery; see `docs/internals/data_files.md`.

A frame is a fixed header and two payloads. All numbers are big-endian. The CRC32C covers everything after itself, so a
frame with a matching CRC is whole. `synced offset` is the log offset up to which the log was on disk when the frame was
made: a hole before it is damage, a hole after it may come from a power loss (see `recovery`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from evenq.errors import StoreCorrupted, StoreError
from evenq.store.log.messages import StoredMessage, StoredTimer


@dataclass(frozen=True, slots=True)
class ByteField:
    """One line of a byte table: name and `struct` letter."""

    name: str
    letter: str

    @property
    def size(self) -> int:
        return struct.calcsize(">" + self.letter)


def struct_of(fields: tuple[ByteField, ...]) -> struct.Struct:
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
TIMER: Final = 4  # a message for a later time; see `TimerFields` for the content of three of its fields
TIMER_END: Final = 5  # its head lists the timers that ended: their log offsets, 8 bytes each
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
    """A frame that was read and whose CRC matches."""

    __slots__ = (
        "_queue_offset_field",
        "_tag_hash_field",
        "born_ms",
        "epoch",
        "flags",
        "head",
        "kind",
        "log_offset",
        "queue_id",
        "size",
        "store_ms",
        "synced_offset",
        "system",
        "topic_id",
    )

    def __init__(self, header: tuple[int, ...], head: bytes, system: bytes) -> None:
        (
            self.size,
            _,
            _,
            _,
            self.kind,
            self.flags,
            self.epoch,
            self.topic_id,
            self.queue_id,
            self._queue_offset_field,
            self.log_offset,
            self.synced_offset,
            self.store_ms,
            self.born_ms,
            self._tag_hash_field,
            _,
            _,
        ) = header
        self.head = head
        self.system = system

    @property
    def queue_offset(self) -> int:
        """Place of a message in its queue."""
        assert self.kind != TIMER, "a timer has no place in a queue"
        return self._queue_offset_field

    @property
    def tag_hash(self) -> int:
        """Hash of a message's tag, 0 without one."""
        assert self.kind != TIMER, "a timer's fields are `timer`"
        return self._tag_hash_field

    @property
    def timer(self) -> TimerFields:
        """Fields of a timer. Raises StoreCorrupted for another kind."""
        if self.kind != TIMER:
            raise StoreCorrupted(
                f"the record at log offset {self.log_offset} is of kind {self.kind}, a timer is {TIMER}"
            )
        return TimerFields.read(self.flags, self._queue_offset_field, self._tag_hash_field)


@dataclass(frozen=True, slots=True)
class TimerFields:
    """Values of a timer in three frame fields that are named for those of a message. Only this class maps them."""

    due_ms: int
    """Due time of the message, ms since the epoch: in the field "tag hash"."""
    tag_hash: int
    """Tag hash of the later message: in the field "queue offset", as 64 bits without sign."""
    timer_kind: int
    """Kind for the owner, 0 .. TIMER_KIND_MAX: in bits 8 to 15 of "flags"."""

    @staticmethod
    def read(flags: int, queue_offset_field: int, tag_hash_field: int) -> TimerFields:
        """Returns the values in the three fields of a frame."""
        tag_hash = queue_offset_field - (1 << 64) if queue_offset_field & _SIGN else queue_offset_field
        return TimerFields(tag_hash_field, tag_hash, flags >> TIMER_KIND_SHIFT)

    @property
    def flags(self) -> int:
        return self.timer_kind << TIMER_KIND_SHIFT

    @property
    def queue_offset_field(self) -> int:
        return self.tag_hash & _UNSIGNED

    @property
    def tag_hash_field(self) -> int:
        return self.due_ms


def pack(
    *,
    kind: int,
    flags: int,
    epoch: int,
    topic_id: int,
    queue_id: int,
    queue_offset: int,
    log_offset: int,
    synced_offset: int,
    store_ms: int,
    born_ms: int,
    tag_hash: int,
    head: bytes,
    system: bytes,
) -> bytes:
    """Returns one whole frame. The append path does the same in place, without the cost of this call."""
    rest = REST.pack(
        VERSION,
        kind,
        flags,
        epoch,
        topic_id,
        queue_id,
        queue_offset,
        log_offset,
        synced_offset,
        store_ms,
        born_ms,
        tag_hash,
        len(head),
        len(system),
    )
    body = b"".join((rest, head, system))
    return PREFIX.pack(PREFIX_BYTES + len(body), MAGIC, crc32c(body)) + body


def pack_padding(log_offset: int, rest_bytes: int, *, epoch: int, synced_offset: int, store_ms: int) -> bytes:
    """Returns the end of a segment: a padding header, or zeros where it does not fit."""
    if rest_bytes < HEADER_BYTES:
        return bytes(rest_bytes)
    rest = REST.pack(VERSION, PADDING, 0, epoch, 0, 0, 0, log_offset, synced_offset, store_ms, 0, 0, 0, 0)
    return PREFIX.pack(rest_bytes, MAGIC, crc32c(rest)) + rest


def frame_at(data: bytes | memoryview, position: int, log_offset: int) -> Frame | None:
    """Returns the frame at `position` of `data` that must have `log_offset`; None if there is none or it is cut short.
    Raises StoreError for a whole frame of an unknown version.
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
    covered = memoryview(data) if end - position >= COPY_MAX else data  # for few bytes a copy costs less than a view
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
    """Returns the message at a place, for reads; None unless it is a whole message of this version in its place."""
    if len(data) - position < HEADER_BYTES:
        return None
    (
        size,
        magic,
        crc,
        version,
        kind,
        _,
        _,
        topic_id,
        queue_id,
        queue_offset,
        own_offset,
        _,
        store_ms,
        born_ms,
        tag_hash,
        head_bytes,
        system_bytes,
    ) = _unpack_header(data, position)
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
    """Whether this is the header of a whole message in its place. Other and doubtful frames are for `frame_at`."""
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
    """Returns the total size that the frame at `position` claims; 0 if no frame header can start there."""
    if len(data) - position < HEADER_BYTES:
        return 0
    size, magic = _SIZE_AND_MAGIC.unpack_from(data, position)
    return size if magic == MAGIC and size >= HEADER_BYTES else 0


def kind_at(data: bytes) -> int:
    """Returns the kind of the record whose header `data` begins with."""
    return int(HEADER.unpack_from(data)[4])


def message_of(frame: Frame) -> StoredMessage:
    """Returns the message of a frame of kind MESSAGE. Raises StoreCorrupted for another kind."""
    if frame.kind != MESSAGE:
        raise StoreCorrupted(
            f"the record at log offset {frame.log_offset} is of kind {frame.kind}, a message is {MESSAGE}"
        )
    return StoredMessage(
        frame.topic_id,
        frame.queue_id,
        frame.queue_offset,
        frame.log_offset,
        frame.born_ms,
        frame.store_ms,
        frame.tag_hash,
        frame.head,
        frame.system,
    )


def timer_of(frame: Frame) -> StoredTimer:
    """Returns the timer of a frame of kind TIMER. Raises StoreCorrupted for another kind."""
    fields = frame.timer
    return StoredTimer(
        frame.topic_id,
        frame.queue_id,
        frame.log_offset,
        frame.born_ms,
        frame.store_ms,
        fields.tag_hash,
        fields.due_ms,
        fields.timer_kind,
        frame.head,
        frame.system,
    )


def pack_timer_ids(timer_ids: Sequence[int]) -> bytes:
    """Returns the head of a frame of kind TIMER_END."""
    return struct.pack(f">{len(timer_ids)}Q", *timer_ids)


def timer_ids_of(frame: Frame) -> tuple[int, ...]:
    """Returns the timers that a frame of kind TIMER_END ends. Raises StoreCorrupted for other or broken ones."""
    count, rest = divmod(len(frame.head), 8)
    if frame.kind != TIMER_END or rest:
        raise StoreCorrupted(
            f"the record at log offset {frame.log_offset} of kind {frame.kind} and {len(frame.head)} bytes is not a "
            f"list of timers: that is kind {TIMER_END} and 8 bytes a timer"
        )
    return struct.unpack(f">{count}Q", frame.head)
