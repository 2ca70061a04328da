"""Paths and names of a table, which are its only state, and the rule that cuts a queue into files. Pure.

    orders/_table.json
    orders/uid=U/broker=broker-a/queue=3/00000000000000000000-00000000000000131072.parquet
    orders/uid=U/broker=broker-a/queue=3/_00000000000000131072-00000000000000140000.gap

A name is START-END, with END exclusive. Engines leave out files that begin with an underscore. `uid` is that of the
queue's content, so a topic that is created again gets folders of its own. A file ends at the first of three offsets: a
multiple of `rows_per_file`, the first message that was stored in a later window of `close_after_ms`, and the end of the
queue after that window. Store times of a queue never fall, so the first two follow from the log alone: every
exporter cuts at the same offsets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final, Self
from urllib.parse import quote, unquote

from evenq.errors import PreconditionFailed, SettingsError
from evenq.model import MessageQueue

VERSION: Final = 1
SETTINGS_NAME: Final = "_table.json"
DATA, GAP = ".parquet", ".gap"
ROWS_MIN, ROWS_MAX, ROWS_DEFAULT = 100, 10_000_000, 250_000
CLOSE_MS_MIN, CLOSE_MS_MAX, CLOSE_MS_DEFAULT = 1_000, 7 * 86_400_000, 600_000
_NAME = re.compile(r"(?P<gap>_)?(\d{20})-(\d{20})(?(gap)\.gap|\.parquet)")
_FOLDER = re.compile(r"(?P<topic>[^/]+)/uid=(?P<uid>[^/]+)/broker=(?P<broker>[^/]+)/queue=(?P<queue>\d+)")


class TableGap(PreconditionFailed):
    """Messages that the table does not have are gone from the log."""


class TableChanged(PreconditionFailed):
    """The log or the folder contradicts what the table already has."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TableRange:
    """Offsets of one queue: a file of rows, or a gap that was accepted."""

    start: int
    end: int
    """Exclusive."""
    gap: bool = False

    @property
    def name(self) -> str:
        span = f"{self.start:020d}-{self.end:020d}"
        return f"_{span}{GAP}" if self.gap else f"{span}{DATA}"

    @property
    def count(self) -> int:
        return self.end - self.start

    @classmethod
    def of(cls, name: str) -> Self | None:
        """Returns the range of a name; None for any other file."""
        found = _NAME.fullmatch(name)
        if found is None or int(found[2]) >= int(found[3]):
            return None
        return cls(start=int(found[2]), end=int(found[3]), gap=found["gap"] is not None)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TableQueue:
    """The folder of one queue's content."""

    topic: str
    uid: str
    broker_name: str
    queue_id: int

    @property
    def folder(self) -> str:
        # A broker's name may have any character; engines decode a percent sign in `broker=...` as in a URL.
        return f"{self.topic}/uid={self.uid}/broker={quote(self.broker_name, safe='')}/queue={self.queue_id}"

    @property
    def topic_uid(self) -> str:
        """The part of the uid that all brokers share: it changes only when the topic is created again."""
        return self.uid.partition("-")[0]

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    @classmethod
    def of(cls, folder: str) -> Self | None:
        """Returns the queue of a folder's path; None for any other folder."""
        found = _FOLDER.fullmatch(folder)
        if found is None:
            return None
        return cls(
            topic=found["topic"], uid=found["uid"], broker_name=unquote(found["broker"]), queue_id=int(found["queue"])
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """The places where files end: written once, because other values would cut the same rows into other files."""

    rows_per_file: int = ROWS_DEFAULT
    close_after_ms: int = CLOSE_MS_DEFAULT
    """Length of the windows of store time at whose ends a file ends, ms."""

    def __post_init__(self) -> None:
        if not ROWS_MIN <= self.rows_per_file <= ROWS_MAX:
            raise SettingsError(f"--rows-per-file is {self.rows_per_file}; the range is {ROWS_MIN} to {ROWS_MAX}")
        if not CLOSE_MS_MIN <= self.close_after_ms <= CLOSE_MS_MAX:
            raise SettingsError(f"--close-after is {self.close_after_ms} ms; the range is 1s to 7d")

    def encode(self) -> bytes:
        return (json.dumps({"version": VERSION, **asdict(self)}) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes, where: str) -> Self:
        """Raises SettingsError for a file that is damaged or of a newer version."""
        try:
            values = json.loads(data)
            version = values.pop("version")
            if version == VERSION:
                return cls(**values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SettingsError(
                f"{where} does not hold the settings of a table ({error}); restore it, or export to another folder"
            ) from error
        raise SettingsError(f"{where} is of version {version}, this evenq reads version {VERSION}: use a newer evenq")

    def limit(self, start: int) -> int:
        """Returns the greatest end of a file that begins at `start`."""
        return (start // self.rows_per_file + 1) * self.rows_per_file

    def window_end_ms(self, store_ms: int) -> int:
        """Returns the end of the window of a store time, ms since the epoch."""
        return (store_ms // self.close_after_ms + 1) * self.close_after_ms


def ranges(names: Iterable[str]) -> list[TableRange]:
    """Returns the ranges among the names of a queue's folder, by their starts."""
    return sorted(found for name in names if (found := TableRange.of(name)) is not None)


def must_follow(wanted: TableRange, names: Iterable[str]) -> None:
    """Raises TableChanged if rows of `wanted` are in another file already."""
    for there in ranges(names):
        if there.start < wanted.end and wanted.start < there.end and there != wanted:
            raise TableChanged(f"offsets {wanted.start} to {wanted.end} overlap {there.name}, which another one wrote")
