"""A reused piece of memory for frames, and the messages parsed from it.

Frames of one queue mostly have one shape: while the lengths of head and system stay the same, one `Struct` unpacks a
whole frame, both payloads included, at half of the general cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from crc32c import crc32c

from evenq.store.io.disk import Room
from evenq.store.log.messages import StoredMessage
from evenq.store.log.record import HEADER_BYTES, MAGIC, MESSAGE, PREFIX_BYTES, VERSION, message_at

BUFFER_BYTES: Final = 128 << 10  # with its messages it stays in a core's cache
SHAPE_MAX: Final = 64 << 10
KEPT_MAX: Final = 16  # shapes and layouts
LIKE_HEADER: Final = ">QIH2x8xQQQ8xqqqQ"  # FRAME_FIELDS; fields that are compared only are taken two at a time
KIND_AND_VERSION: Final = VERSION << 8 | MESSAGE

Place = tuple[int, int, int]
"""One consume queue entry: log offset, size, tag hash."""


class Layout:
    """Views of a buffer in which frames of one size lie side by side."""

    __slots__ = ("checked", "rooms", "size")

    def __init__(self, view: memoryview, size: int) -> None:
        starts = range(0, len(view) - size + 1, size)
        self.size = size
        self.rooms: list[Room] = [(view[start : start + size],) for start in starts]
        self.checked = [view[start + PREFIX_BYTES : start + size] for start in starts]
        """The bytes that the CRCs cover."""


class ReadBuffer:
    """Buffer for one reader at a time."""

    __slots__ = ("_head", "_layouts", "_shape", "_shapes", "_size", "_system", "view")

    def __init__(self) -> None:
        self.view = memoryview(bytearray(BUFFER_BYTES))
        self._layouts: dict[int, Layout] = {}
        self._shapes: dict[tuple[int, int], Struct] = {}
        self._head = self._system = self._size = -1
        self._shape = Struct("")

    def layout(self, size: int) -> Layout:
        """Returns the layout for frames of `size`, up to `BUFFER_BYTES` of them."""
        layout = self._layouts.get(size)
        if layout is None:
            if len(self._layouts) >= KEPT_MAX:
                self._layouts.clear()
            layout = self._layouts[size] = Layout(self.view, size)
        return layout

    def parse_equal_sizes(
        self,
        layout: Layout,
        topic_id: int,
        queue_id: int,
        queue_offset: int,
        places: Sequence[Place],
        messages: list[StoredMessage],
    ) -> bool:
        """Adds messages from `queue_offset` on, read into the layout; False at the first wrong or damaged frame."""
        size, first, begun = layout.size, queue_offset, len(messages)
        if size == self._size:
            add, unpack, start = messages.append, self._shape.unpack_from, 0
            size_and_magic = size << 32 | MAGIC
            lengths, queue = self._head << 32 | self._system, topic_id << 32 | queue_id
            view = self.view
            for (log_offset, _, _), checked in zip(places, layout.checked):  # noqa: B905  # it has more than enough
                (prefix, crc, kind, key, offset, own_offset, store_ms, born_ms, tag_hash, both, head, system) = unpack(
                    view, start
                )
                if not (
                    crc32c(checked) == crc
                    and offset == queue_offset
                    and own_offset == log_offset
                    and key == queue
                    and prefix == size_and_magic
                    and kind == KIND_AND_VERSION
                    and both == lengths
                ):
                    break
                add(StoredMessage(topic_id, queue_id, offset, own_offset, born_ms, store_ms, tag_hash, head, system))
                start += size
                queue_offset += 1
        done = len(messages) - begun
        if done == len(places):
            return True
        starts = range(done * size, len(places) * size, size)
        return self.parse(
            self.view, topic_id, queue_id, range(first + done, first + len(places)), places[done:], starts, messages
        )

    def parse(
        self,
        view: memoryview,
        topic_id: int,
        queue_id: int,
        queue_offsets: Sequence[int],
        places: Sequence[Place],
        starts: Sequence[int],
        messages: list[StoredMessage],
    ) -> bool:
        """Does the same for frames of any size, anywhere in `view`."""
        for queue_offset, (log_offset, size, _), start in zip(queue_offsets, places, starts, strict=True):
            message = message_at(bytes(view[start : start + size]), 0, log_offset)
            if (
                message is None
                or message.queue_offset != queue_offset
                or message.queue_id != queue_id
                or message.topic_id != topic_id
            ):
                return False
            messages.append(message)
        if messages:
            self._expect(len(messages[-1].head), len(messages[-1].system))
        return True

    def _expect(self, head_bytes: int, system_bytes: int) -> None:
        """Prepares for more frames of these lengths."""
        if head_bytes + system_bytes > SHAPE_MAX or (head_bytes, system_bytes) == (self._head, self._system):
            return
        shape = self._shapes.get((head_bytes, system_bytes))
        if shape is None:
            if len(self._shapes) >= KEPT_MAX:
                self._shapes.clear()
            shape = self._shapes[head_bytes, system_bytes] = Struct(f"{LIKE_HEADER}{head_bytes}s{system_bytes}s")
        self._shape, self._head, self._system = shape, head_bytes, system_bytes
        self._size = HEADER_BYTES + head_bytes + system_bytes
