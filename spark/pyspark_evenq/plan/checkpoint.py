"""The last finished batch of a query, read from its checkpoint when the query is stopped.

Spark reports to a source that a batch is done when it plans the next one. So after a stop in between, a batch is done
without a report to its source. Spark's checkpoint has it: `commits/N` exists as soon as batch N is done, and
`offsets/N` contains the ends of all sources of that batch, as the sources wrote them. Spark ends the runner after the
query's last write to these logs, so they are final. Read with `pyarrow.fs`, because the runner has no JVM.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenq.errors import SettingsError
from pyspark_evenq.plan.offsets import StreamOffset

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

log = logging.getLogger(__name__)
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):(.*)", re.IGNORECASE | re.DOTALL)
_ARROWS = {"s3a": "s3", "s3n": "s3"}
"""Hadoop's names of file systems -> Arrow's names."""
ASK_MS = 800
"""Part of the 2 s that a stopped query may take."""


class QueryCheckpoint:
    """The folder of one query's checkpoint: the `checkpointLocation` of the stream's writer."""

    def __init__(self, location: str) -> None:
        self.location = location

    def must_exist(self) -> None:
        """Raises SettingsError if there is no checkpoint of a query. Spark creates it before it calls a source."""
        try:
            there = "metadata" in self._names("")
        except Exception as error:
            raise SettingsError(
                f"option checkpointLocation is {self.location!r}, which the driver's Python cannot read: {error}; give "
                "a place that pyarrow.fs opens, or leave the option out"
            ) from error
        if not there:
            raise SettingsError(
                f"option checkpointLocation is {self.location!r}, where no checkpoint is; give the checkpointLocation "
                "of the query's writer, as an absolute path or a URI"
            )

    def is_done(self, start: StreamOffset, end: StreamOffset, *, timeout_ms: int) -> bool:
        """Returns whether this batch is the last finished one; False also if not readable in time. Never raises."""
        result: list[bool] = []

        def ask() -> None:
            try:
                result.append(self._is_last(start, end))
            except Exception as error:  # noqa: BLE001  the stop must continue; the batch counts as not done
                log.warning(
                    "cannot read from the checkpoint at %s whether its last batch is complete: %s", self.location, error
                )

        asking = threading.Thread(target=ask, name="evenq-checkpoint", daemon=True)
        asking.start()
        # In a thread, because `pyarrow.fs` has no time limit; a daemon, so that it cannot delay the process's end.
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
        # With several evenq sources in a query, the end of another one must not count as the end of this one.
        return end.to_json() in logged and start.to_json() not in logged

    def _names(self, folder: str) -> set[str]:
        from pyarrow.fs import FileSelector

        system, root = self._opened()
        entries = system.get_file_info(FileSelector(f"{root}/{folder}".rstrip("/"), allow_not_found=True))
        return {entry.base_name for entry in entries if entry.is_file}

    def _opened(self) -> tuple[FileSystem, str]:
        from pyarrow.fs import FileSystem, LocalFileSystem

        matched = _SCHEME.match(self.location)
        if matched is None or matched[1].lower() == "file":
            path = self.location if matched is None else "/" + matched[2].lstrip("/")
            return LocalFileSystem(), str(Path(path).absolute())
        scheme = matched[1].lower()
        system, root = FileSystem.from_uri(f"{_ARROWS.get(scheme, scheme)}:{matched[2]}")
        return system, root.rstrip("/")


class LastBatch:
    """The batch that a runner planned last. Without a location only Spark reports that it is done."""

    def __init__(self, location: str) -> None:
        self._checkpoint = QueryCheckpoint(location) if location else None
        self._span: tuple[StreamOffset, StreamOffset] | None = None
        if self._checkpoint is not None:
            self._checkpoint.must_exist()

    def planned(self, start: StreamOffset, end: StreamOffset) -> None:
        self._span = start, end

    def over(self) -> None:
        """Records that Spark reported the batch as done."""
        self._span = None

    def done(self) -> StreamOffset | None:
        """Returns the batch's end if it is done and Spark did not report that; otherwise None."""
        span = self._span
        if self._checkpoint is None or span is None or not self._checkpoint.is_done(*span, timeout_ms=ASK_MS):
            return None
        return span[1]


def _offset(line: str) -> Any:
    """Returns a source's offset in a line of a log entry; None for other lines."""
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) and "q" in document and "v" in document else None
