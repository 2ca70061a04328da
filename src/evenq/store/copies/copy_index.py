"""Files the message index of a follower, block by block after its replays, so that little is left after a failover.

`MessageIndex` writes the same files as in a store: each is a pure function of its block of the log. Only blocks that
end below the last replay get a file: they are committed and on disk, so no file covers records that may be cut. A file
exists whole or not at all; the next call or the next leader does what a crash or a change of the log left undone.
Between two calls only the names of the files are in memory. The steps run like those of a replay, on its thread and
with its pauses: at most a quarter of a core. A failure of the index is logged and never stops the copy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from evenq.store.copies.log_copy import LogCopy
from evenq.store.index.message_index import KeysOf, MessageIndex, Span
from evenq.store.io.files import ReadFiles

log = logging.getLogger(__name__)

FILES_MAX: Final = 2
"""Log files open at a time: the log is read once, from the front."""
BLOCKS_MAX: Final = 4
"""Blocks filed in one call, which takes some seconds: replays wait for it."""


class CopyIndex:
    """Index of one broker while it follows. One call at a time."""

    def __init__(self, keys_of: KeysOf) -> None:
        self._keys_of = keys_of
        self._of: LogCopy | None = None
        self._changes = -1
        self._index: MessageIndex | None = None
        self._has_more = True

    async def follow(self, copy: LogCopy) -> bool:
        """Files some blocks below the copy's `replayed_end`. Returns False if more are left, or if the log changed in
        the meantime: call again. Raises StorePoisoned if the copy's disk failed.
        """
        replays = copy.replays
        if self._of is not copy or self._changes != replays.changes:
            self._of, self._changes, self._index = copy, replays.changes, None
        self._has_more = True
        await replays.drive(self._steps(copy, copy.replayed_end))
        return not self._has_more

    def _steps(self, copy: LogCopy, until: int) -> Iterator[None]:
        replays, start = copy.replays, copy.start
        files = ReadFiles(replays.disk, FILES_MAX)
        try:
            index = self._index or MessageIndex(
                replays.disk,
                files,
                segment_bytes=replays.segment_bytes,
                keys_of=self._keys_of,
                min_offset=lambda _topic_id, _queue_id: 0,
            )
            if index is not self._index:
                index.load(start, copy.end)
            self._index = None  # kept again after the steps succeed
            yield
            span = Span(start, until, until)
            yield from index.file_whole_blocks(span, files, blocks_max=BLOCKS_MAX)
            if index.is_held:  # logged already; the next call starts again, since blocks in memory are not kept
                self._has_more = False
            else:
                self._has_more, self._index = index.has_whole_block(span), index
        except Exception:
            self._has_more = False  # until the next replay
            log.exception("the message index of this copy is not built now: queries would wait after a failover")
        finally:
            files.close()
