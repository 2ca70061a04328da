"""Which batch of a query is done, by the checkpoint itself: asked when the query is stopped.

Spark tells a source that a batch is done when it plans the next one, so a query that is stopped in between has a batch
that is done and of which its source knows nothing. Spark's checkpoint does: `commits/N` exists as soon as batch N is
done, and `offsets/N` holds the ends of all sources of that batch, as the sources wrote them. The runner is ended after
the query's last write to these logs, so what it reads then is final. Read with `pyarrow.fs`, as the runner has no JVM.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenq.errors import SettingsError
from pyspark_evenq.offsets import StreamOffset

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

__all__ = ["LastBatch", "QueryCheckpoint"]

log = logging.getLogger(__name__)
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):(.*)", re.IGNORECASE | re.DOTALL)
_ARROWS = {"s3a": "s3", "s3n": "s3"}
"""Hadoop's names of file systems that Arrow calls otherwise."""
ASK_MS = 800
"""Of the 2 s that a stopped query may take."""


class QueryCheckpoint:
    """The folder of one query's checkpoint, as `checkpointLocation` names it for the writer of the stream."""

    def __init__(self, location: str) -> None:
        self.location = location

    def must_exist(self) -> None:
        """Raises SettingsError if there is no checkpoint of a query. Spark makes it before it asks a source."""
        try:
            there = "metadata" in self._names("")
        except Exception as error:
            raise SettingsError(
                f"option checkpointLocation is {self.location!r}, which the driver's Python cannot read: {error}; give "
                "a place that pyarrow.fs opens, or leave the option out"
            ) from error
        if not there:
            raise SettingsError(
                f"option checkpointLocation is {self.location!r}, where no checkpoint is; give the place that the "
                "query's writer was given under that name, as an absolute path or a URI"
            )

    def is_done(self, start: StreamOffset, end: StreamOffset, *, timeout_ms: int) -> bool:
        """Whether the batch between these two is the last one that is done. False also if that cannot be read in time.
        Never raises.
        """
        result: list[bool] = []

        def ask() -> None:
            try:
                result.append(self._is_last(start, end))
            except Exception as error:  # noqa: BLE001  a stop goes on; then the batch counts as not done
                log.warning(
                    "cannot read from the checkpoint at %s whether its last batch is complete: %s", self.location, error
                )

        asking = threading.Thread(target=ask, name="evenq-checkpoint", daemon=True)
        asking.start()
        # In a thread, as `pyarrow.fs` takes no time limit; a daemon, so that it cannot hold up the end.
        asking.join(timeout_ms / 1000)
        return bool(result and result[0])

    def _is_last(self, start: StreamOffset, end: StreamOffset) -> bool:
        batches = [int(name) for name in self._names("commits") if name.isdigit()]
        if not batches:
            return False
        system, root = self._opened()
        with system.open_input_stream(f"{root}/offsets/{max(batches)}") as stream:
            entry = bytes(stream.read()).decode()
        logged = [line for line in map(_offset, entry.splitlines()) if line is not None]
        # More sources of ours may be in the query: this one is at one of the two places, and must not take another's
        # end for its own.
        return end.to_json() in logged and start.to_json() not in logged

    def _names(self, folder: str) -> set[str]:
        """Of the files in a folder of it; none if it is not there."""
        from pyarrow.fs import FileSelector

        system, root = self._opened()
        entries = system.get_file_info(FileSelector(f"{root}/{folder}".rstrip("/"), allow_not_found=True))
        return {entry.base_name for entry in entries if entry.is_file}

    def _opened(self) -> tuple[FileSystem, str]:
        """The file system, and the folder in its words."""
        from pyarrow.fs import FileSystem, LocalFileSystem

        matched = _SCHEME.match(self.location)
        if matched is None or matched[1].lower() == "file":
            path = self.location if matched is None else "/" + matched[2].lstrip("/")
            return LocalFileSystem(), str(Path(path).absolute())
        scheme = matched[1].lower()
        system, root = FileSystem.from_uri(f"{_ARROWS.get(scheme, scheme)}:{matched[2]}")
        return system, root.rstrip("/")


class LastBatch:
    """The batch that a runner planned last. Without a location it is never known to be done before Spark says so."""

    def __init__(self, location: str) -> None:
        self._checkpoint = QueryCheckpoint(location) if location else None
        self._span: tuple[StreamOffset, StreamOffset] | None = None
        if self._checkpoint is not None:
            self._checkpoint.must_exist()

    def planned(self, start: StreamOffset, end: StreamOffset) -> None:
        """Spark gets this batch."""
        self._span = start, end

    def over(self) -> None:
        """Spark said itself that it is done."""
        self._span = None

    def done(self) -> StreamOffset | None:
        """Its end, once it is done and Spark did not say so."""
        span = self._span
        if self._checkpoint is None or span is None or not self._checkpoint.is_done(*span, timeout_ms=ASK_MS):
            return None
        return span[1]


def _offset(line: str) -> Any:
    """A source's offset in an entry of the log; None for all else that is in it."""
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) and "q" in document and "v" in document else None
