"""Files the message index of a follower, block by block behind its replays, so that a query by key right after a
failover finds nearly all of it done.

`MessageIndex` makes the files, the same as a store's: each is a pure function of its block of the log. Only blocks that
end below the last replay get one, and what lies there is committed and on disk, so no file tells of what may be cut. A
file is there whole or not at all; what a crash or a change of the log gives up, the next call or the next leader does.
Nothing is in memory between two calls but the names of the files. The steps are those of a replay, on its thread and
with its pauses: a quarter of a core at most. Trouble with the index is logged and counted, and never stops the copy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from evenq.store.copies.log_copy import LogCopy
from evenq.store.index.message_index import KeysOf, MessageIndex, Span
from evenq.store.io.files import ReadFiles

__all__ = ["CopyIndex"]

log = logging.getLogger(__name__)

FILES_MAX: Final = 2
"""Of the log, open at a time: it is read once, from the front."""
BLOCKS_MAX: Final = 4
"""In one call, some seconds: replays wait for it."""


class CopyIndex:
    """Of one broker while it follows. One call at a time."""

    def __init__(self, keys_of: KeysOf) -> None:
        self._keys_of = keys_of
        self._of: LogCopy | None = None
        self._changes = -1
        self._index: MessageIndex | None = None
        self._has_more = True

    async def follow(self, copy: LogCopy) -> bool:
        """File some blocks below the copy's `replayed_end` that have no file. False: there are more, or the log was
        changed meanwhile; call again. Raises StorePoisoned if the copy's disk failed.
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
                replays.disk, files, segment_bytes=replays.segment_bytes, keys_of=self._keys_of,
                min_offset=lambda _topic_id, _queue_id: 0,
            )  # fmt: skip
            if index is not self._index:
                index.load(start, copy.end)
            self._index = None  # kept again when it is where it should be
            yield
            span = Span(start, until, until)
            yield from index.file_whole_blocks(span, files, blocks_max=BLOCKS_MAX)
            if index.is_held:  # it is logged, and the next call begins anew: blocks in memory are not kept
                self._has_more = False
            else:
                self._has_more, self._index = index.has_whole_block(span), index
        except Exception:
            self._has_more = False  # until the next replay
            log.exception("the message index of this copy is not built now: queries would wait after a failover")
        finally:
            files.close()
