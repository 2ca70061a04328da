"""Names and contents of Iceberg tables: what a folder says about its table, and the files of a snapshot.

Needs no pyiceberg, so commands that only look for an Iceberg table do not import it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Self

from evenq.errors import SettingsError
from evenq.tables.checking import QueueFiles
from evenq.tables.folder import TableTarget
from evenq.tables.layout import TableChanged, TableQueue, TableRange

LINK_NAME: Final = "_iceberg.json"
LINK_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class IcebergName:
    """The name of an Iceberg table, with the catalog's name in the settings of pyiceberg."""

    catalog: str
    table: tuple[str, ...]
    """Namespace and table."""

    def __str__(self) -> str:
        return ".".join((self.catalog, *self.table))

    @classmethod
    def of(cls, text: str) -> Self:
        """Raises SettingsError."""
        catalog, *table = text.split(".")
        if len(table) < 2 or not all((catalog, *table)):
            raise SettingsError(f"--iceberg is {text!r}; write CATALOG.NAMESPACE.TABLE, for example lake.sales.orders")
        return cls(catalog, tuple(table))


@dataclass(frozen=True, slots=True)
class IcebergFile:
    """A registered file, as the manifest describes it."""

    rows: int
    bytes: int


@dataclass(slots=True, kw_only=True)
class IcebergState:
    """The files of the current snapshot."""

    snapshot_id: int | None
    """None: the table has none yet."""
    starts: Mapping[TableQueue, int]
    files: dict[TableQueue, dict[TableRange, IcebergFile]] = field(default_factory=dict)
    repeated: list[str] = field(default_factory=list)
    """Paths of files that are registered more than once."""
    strangers: list[str] = field(default_factory=list)
    """Paths of files that evenq did not write."""
    deletes: int = 0
    """Files that delete rows of other files."""

    @property
    def rows(self) -> int:
        return sum(file.rows for files in self.files.values() for file in files.values())

    @property
    def file_count(self) -> int:
        return sum(map(len, self.files.values()))

    def outdated(self, one: QueueFiles) -> list[TableRange]:
        """Returns the registered files of a queue that have another size in the folder."""
        there = self.files.get(one.queue, {})
        return [part for part in one.files if part in there and there[part].bytes != one.sizes[part.name]]

    def missing(self, one: QueueFiles) -> list[TableRange]:
        """Returns the files of a queue that are to be registered. Raises TableChanged for ranges that overlap."""
        there, start = self.files.get(one.queue, {}), self.starts.get(one.queue, 0)
        wanted = [part for part in one.files if part not in there and part.end > start]
        for before, after in pairwise(sorted({*there, *wanted})):
            if after.start < before.end:
                raise TableChanged(
                    f"{one.path(after)} overlaps {before.name}: its rows would be in the Iceberg table twice; see "
                    f"`evenq table verify {one.queue.topic}`"
                )
        return wanted


def link_of(target: TableTarget, topic: str) -> tuple[IcebergName, str] | None:
    """Returns the name and UUID of the Iceberg table that a topic's folder is registered in. Raises SettingsError."""
    path = f"{topic}/{LINK_NAME}"
    if path not in target.files(topic):
        return None
    data = target.read(path)
    try:
        values = json.loads(data)
        if values["version"] == LINK_VERSION:
            return IcebergName.of(values["table"]), str(values["uuid"])
    except (ValueError, TypeError, KeyError, AttributeError, SettingsError) as error:
        raise SettingsError(f"{target.path(path)} does not name an Iceberg table ({error}); restore it") from error
    raise SettingsError(f"{target.path(path)} is of version {values['version']}: use a newer evenq")
