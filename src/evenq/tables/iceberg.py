"""Iceberg table of a topic: the files of its folder, registered in a catalog. No row is copied.

Problem: a publisher may be killed at any moment, run twice, or lose the answer to a commit that the catalog made.
`table expire` deletes files meanwhile. A file must never be registered twice or left out, and a reader of the Iceberg
table must never meet a file that is gone.

Idea: the names of the files say which rows they have, so the data files of the current snapshot are the only state.
A step loads the table, compares it with the folder, and commits the files that are missing. The commit names the
snapshot that it was compared with: if another commit was faster, the catalog refuses, and the step begins again.

Invariants:
- One step is one commit, on the snapshot that was read. pyiceberg's own retries are off: they would repeat the step on
  another snapshot without a new comparison.
- The result of a commit is never assumed. After an error the next step reads the snapshot.
- Names are compared, not paths: a range that overlaps a registered one is an error. So is a data file in the snapshot
  that evenq did not write, because it may have rows of ours.
- `table expire` first commits one step that removes the files and raises `evenq.starts`, and then deletes them. That
  commit always makes a snapshot, so it conflicts with a publisher that has not seen it. Files before a start are never
  registered again.
- `table rebuild` writes a file under its name, and then commits its new entry in place of the old one. A size that
  differs is the only state between the two, so a rebuild that was killed is repeated. With an equal size the old
  entry is right, because rows and their bounds follow from the messages.
- The folder names its Iceberg table (`_iceberg.json`) before the first file is registered. Otherwise `table expire`
  could delete a file that it does not know to be registered. It looks for that name before it deletes and, if there was
  none, again after it: a publisher that begins later lists the folder without these files.

Example: the folder has [0, 1000) and [1000, 2000) of a queue, and the snapshot has [0, 1000). The step commits
[1000, 2000). Its answer is lost, and the publisher is killed. The next one reads a snapshot that has both files, and
does nothing.

Reference: https://iceberg.apache.org/spec/ (snapshots, column projection by name mapping).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from evenq.columns.arrow_schema import TYPES, arrow_schema
from evenq.errors import ConnectionFailed, Error, Forbidden, NotFound, SettingsError, StoreError, Unauthorized
from evenq.tables.checking import QueueFiles, TableFinding
from evenq.tables.files import COLUMNS
from evenq.tables.folder import FolderTables, TableTarget, place_bytes
from evenq.tables.iceberg_state import LINK_NAME, LINK_VERSION, IcebergFile, IcebergName, IcebergState, link_of
from evenq.tables.layout import TableChanged, TableQueue, TableRange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction

FILES_PER_STEP: Final = 500
CONFLICTS_MAX: Final = 20
"""Commits of others that one call starts again after."""
SNAPSHOTS_MAX, SNAPSHOTS_KEPT = 1_000, 500
"""Snapshots of a table at most, and those that remain when there are more: each commit writes the list of them."""
TOPIC, FOLDER, STARTS = "evenq.topic", "evenq.folder", "evenq.starts"
"""Properties of the table. STARTS: the offset of each queue before which files are deleted or will be."""
STEP, ENDS = "evenq.step", "evenq.ends"
"""Properties of a snapshot: the id of its step, which follows from the names of its files, and the ends of queues."""
NAME_MAPPING: Final = "schema.name-mapping.default"
RETRIES: Final = "commit.retry.num-retries"
PROPERTIES: Final = {
    "gc.enabled": "false",  # DROP ... PURGE and the like would delete the only copy of the files
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


@dataclass(slots=True, kw_only=True)
class PublishTurn:
    """The outcome of one comparison of the folder with the catalog."""

    files: int = 0
    """Registered by this call, or registered again."""
    rows: int = 0
    left: int = 0
    """Files that are not registered."""
    snapshot_id: int | None = None
    failures: dict[TableQueue, Error] = field(default_factory=dict)


class _Entry(NamedTuple):
    """A file of a step."""

    file: DataFile
    files: QueueFiles
    part: TableRange


class IcebergTable:
    """The Iceberg table of one topic. All methods block, and raise ConnectionFailed while the catalog is away."""

    def __init__(self, target: TableTarget, topic: str, name: IcebergName | None = None) -> None:
        """`name`: from the command line. Raises SettingsError without any, TableChanged for another one."""
        self._target, self._topic = target, topic
        self.name, self._uuid = self._link(name)
        root = f"file://{os.path.abspath(target.url)}" if isinstance(target, FolderTables) else target.url
        self._root = root.rstrip("/")
        self._catalog: Catalog | None = None
        self._known: IcebergState | None = None
        self.progress = 0
        """Rises with each call of the catalog and each file that was read: a watcher sees that work continues."""

    def begin(self) -> None:
        """Creates the Iceberg table unless it exists, and names it in the folder. Raises NotFound, TableChanged."""
        if self._uuid:
            return
        with self._failing():
            from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError

            catalog = self._opened()
            try:
                table = catalog.load_table(self.name.table)
            except NoSuchTableError:
                properties = {**PROPERTIES, TOPIC: self._topic, FOLDER: self._folder}
                with suppress(TableAlreadyExistsError):  # another publisher was faster
                    schema = _nullable(arrow_schema(COLUMNS))
                    catalog.create_table(self.name.table, schema=schema, properties=properties)
                table = catalog.load_table(self.name.table)
        self._must_be_ours(table)
        link = {"version": LINK_VERSION, "table": str(self.name), "uuid": str(table.metadata.table_uuid)}
        place_bytes(self._target, self._link_path, f"{json.dumps(link)}\n".encode(), lambda _: None)
        _, self._uuid = self._link(self.name)  # another publisher may have been faster

    def state(self) -> IcebergState:
        """Returns the files of the current snapshot."""
        return self._state(self._loaded())

    def publish(self, content: Callable[[], Sequence[QueueFiles]]) -> PublishTurn:
        """Registers the files of a folder that are missing, in steps. `content` lists the folder. Failures of a queue
        are in the result. Raises TableChanged for a table that others write.
        """
        turn = PublishTurn()
        return self._repeated(turn, lambda table, state: self._add(table, self._step(state, content(), turn), turn))

    def renew(self, content: Callable[[], Sequence[QueueFiles]]) -> PublishTurn:
        """Replaces the entries of files that were written again and have another size now, in steps. Files that
        cannot be read keep their entries, and their errors are in the result. Raises TableChanged as `publish` does.
        """
        turn, refused = PublishTurn(), set[str]()
        return self._repeated(turn, lambda table, state: self._replace(table, state, content(), turn, refused))

    def withdraw(self, starts: Mapping[TableQueue, int]) -> int:
        """Removes the files before these offsets in one commit, also from later steps; returns their number. Files may
        be deleted after it.
        """
        from pyiceberg.exceptions import CommitFailedException

        for _ in range(CONFLICTS_MAX):
            table = self._loaded()
            state = self._state(table)
            both = {queue: max(starts.get(queue, 0), state.starts.get(queue, 0)) for queue in {*starts, *state.starts}}
            merged = {queue: start for queue, start in both.items() if start}
            old = [
                file
                for file in self._data_files(table)
                if (there := self._range_of(file.file_path)) and there[1].end <= merged.get(there[0], 0)
            ]
            if not old and merged == state.starts:
                return 0
            with suppress(CommitFailedException):
                self._remove(table, old, merged)
                return len(old)
        raise ConnectionFailed(f"{self.name} is changed by other commits all the time; run it again")

    def findings(self, queues: Iterable[QueueFiles]) -> Iterator[TableFinding]:
        """Yields what differs between the folder and the current snapshot."""
        state, place = self.state(), str(self.name)
        for path in state.strangers:
            yield TableFinding(place, f"has a data file that evenq did not write: {path}")
        for path in state.repeated:
            yield TableFinding(place, f"has a file more than once: {path}")
        if state.deletes:
            yield TableFinding(place, f"has {state.deletes} delete files of another program, which hide rows")
        there = {one.queue: one for one in queues}
        for queue, files in state.files.items():
            one = there.get(queue)
            names = set(one.files) if one is not None else set()
            for part, file in files.items():
                path = self._target.path(f"{queue.folder}/{part.name}")
                if one is None or part not in names:
                    yield TableFinding(path, f"is registered in {place}, but is gone: its readers fail")
                elif (file.rows, file.bytes) != (part.count, one.sizes[part.name]):
                    sizes = f"{file.rows:,} rows, {file.bytes:,} bytes"
                    yield TableFinding(path, f"has other sizes in {place}: {sizes}; run `evenq table rebuild`")
        for one in there.values():
            try:
                for part in state.missing(one):
                    yield TableFinding(
                        self._target.path(one.path(part)), f"is not registered in {place}; run `evenq table publish`"
                    )
            except TableChanged as error:
                yield TableFinding(self._target.path(one.queue.folder), error.message)

    def _repeated(self, turn: PublishTurn, step: Callable[[Table, IcebergState], bool]) -> PublishTurn:
        """Runs steps of one commit, each on the snapshot that it reads, until one finds nothing to do."""
        from pyiceberg.exceptions import CommitFailedException

        conflicts = 0
        while True:
            table = self._loaded()
            state = self._state(table)
            turn.snapshot_id = state.snapshot_id
            self._must_be_alone(state)
            try:
                if not step(table, state):
                    return turn
            except CommitFailedException as error:
                conflicts += 1
                if conflicts == CONFLICTS_MAX:
                    raise ConnectionFailed(
                        f"{CONFLICTS_MAX} commits to {self.name} were refused because other commits were faster; the "
                        "next run continues"
                    ) from error

    def _link(self, name: IcebergName | None) -> tuple[IcebergName, str]:
        """Returns name and UUID; the UUID is empty before `begin`."""
        link, shown = link_of(self._target, self._topic), self._target.path(self._topic)
        if link is None:
            if name is None:
                raise SettingsError(f"{shown} is in no Iceberg table yet: add --iceberg CATALOG.NAMESPACE.TABLE")
            return name, ""
        if name not in {None, link[0]}:
            raise TableChanged(
                f"{shown} is registered in {link[0]}, not in {name}: one folder has one Iceberg table; leave --iceberg "
                "out, or export to another folder"
            )
        return link

    @property
    def _folder(self) -> str:
        return f"{self._root}/{self._topic}"

    @property
    def _link_path(self) -> str:
        return f"{self._topic}/{LINK_NAME}"

    def _opened(self) -> Catalog:
        from pyiceberg.catalog import list_catalogs, load_catalog

        self.progress += 1
        if self._catalog is None:
            known = list_catalogs()
            if self.name.catalog.lower() not in {one.lower() for one in known}:
                raise SettingsError(
                    f"pyiceberg has no settings of a catalog {self.name.catalog} (known catalogs: "
                    f"{', '.join(sorted(known)) or 'none'}); write them to ~/.pyiceberg.yaml, or set "
                    f"PYICEBERG_CATALOG__{self.name.catalog.upper()}__URI"
                )
            try:
                self._catalog = load_catalog(self.name.catalog)
            except (ValueError, KeyError) as error:
                raise SettingsError(f"catalog {self.name.catalog}: {_line(error)}") from error
        return self._catalog

    def _loaded(self) -> Table:
        """Returns the table as it is in the catalog now."""
        with self._failing():
            table = self._opened().load_table(self.name.table)
        self.progress += 1
        self._must_be_ours(table)
        # Only of this copy: a conflict must end the commit.
        table.metadata.properties[RETRIES] = "0"
        return table

    def _must_be_ours(self, table: Table) -> None:
        properties = table.properties
        if properties.get(TOPIC) != self._topic:
            raise TableChanged(
                f"{self.name} exists and is not the table of topic {self._topic}: name one that does not exist "
                "(--iceberg), it is created"
            )
        if properties.get(FOLDER) != self._folder:
            raise TableChanged(
                f"{self.name} has the files of {properties.get(FOLDER)}, not of {self._folder}: publish that folder, "
                f"or delete {self._target.path(self._link_path)} if it exists, and name another table (--iceberg)"
            )
        if self._uuid not in {"", str(table.metadata.table_uuid)}:
            raise TableChanged(
                f"{self.name} was dropped and created again: delete {self._target.path(self._link_path)} to publish "
                "into the new one"
            )
        if f"{self._folder}/".startswith(f"{table.location().rstrip('/')}/"):
            raise TableChanged(
                f"{self._folder} is inside the location of {self.name}, whose maintenance may delete files that are "
                "not registered yet: drop the table, and create it elsewhere or export to another folder"
            )

    def _must_be_alone(self, state: IcebergState) -> None:
        if state.strangers:
            raise TableChanged(
                f"{self.name} has {len(state.strangers)} data files that evenq did not write, for example "
                f"{state.strangers[0]}: they may have rows of {self._topic} (a compaction?). Roll the table back, or "
                f"drop it, delete {self._target.path(self._link_path)}, and publish anew"
            )

    def _state(self, table: Table) -> IcebergState:
        snapshot = table.current_snapshot()
        starts = {
            queue: int(start)
            for folder, start in json.loads(table.properties.get(STARTS, "{}")).items()
            if (queue := TableQueue.of(f"{self._topic}/{folder}")) is not None
        }
        number = snapshot.snapshot_id if snapshot is not None else None
        if self._known is not None and self._known.snapshot_id == number:
            self._known.starts = starts
            return self._known
        state = IcebergState(snapshot_id=number, starts=starts)
        with self._failing():
            for file in self._data_files(table):
                there = self._range_of(file.file_path)
                if file.content != 0:
                    state.deletes += 1
                elif there is None:
                    state.strangers.append(file.file_path)
                elif there[1] in state.files.setdefault(there[0], {}):
                    state.repeated.append(file.file_path)
                else:
                    state.files[there[0]][there[1]] = IcebergFile(file.record_count, file.file_size_in_bytes)
        self.progress += 1
        self._known = state
        return state

    def _data_files(self, table: Table) -> Iterator[DataFile]:
        """Yields the live entries of the current snapshot, those of delete files too."""
        snapshot = table.current_snapshot()
        for manifest in snapshot.manifests(table.io) if snapshot is not None else ():
            self.progress += 1
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.data_file

    def _range_of(self, path: str) -> tuple[TableQueue, TableRange] | None:
        """Returns the content of a file by its name; None for one of another program."""
        if not path.startswith(f"{self._folder}/"):
            return None
        folder, _, name = path[len(self._root) + 1 :].rpartition("/")
        queue, part = TableQueue.of(folder), TableRange.of(name)
        return (queue, part) if queue is not None and part is not None and not part.gap else None

    def _step(
        self, state: IcebergState, content: Sequence[QueueFiles], turn: PublishTurn
    ) -> list[tuple[QueueFiles, TableRange]]:
        """Returns the next files to register, without those of queues that failed."""
        step: list[tuple[QueueFiles, TableRange]] = []
        turn.left = 0
        for one in content:
            try:
                missing = state.missing(one)
            except TableChanged as error:
                turn.failures[one.queue] = error
                continue
            turn.left += len(missing)
            if one.queue not in turn.failures:
                step += [(one, part) for part in missing[: FILES_PER_STEP - len(step)]]
        return step

    def _add(self, table: Table, step: Sequence[tuple[QueueFiles, TableRange]], turn: PublishTurn) -> bool:
        """Commits one step; False: it is empty. Raises CommitFailedException if another commit was faster."""
        if not step:
            return False
        change = table.transaction()
        files: list[_Entry] = []
        with self._failing():
            if table.metadata.name_mapping() is None:  # the files have no ids of columns
                change.set_properties({NAME_MAPPING: table.schema().name_mapping.model_dump_json()})
            for one, part in step:
                if one.queue not in turn.failures:
                    try:
                        files.append(_Entry(self._data_file(change, table, one, part), one, part))
                    except (StoreError, TableChanged) as error:
                        turn.failures[one.queue] = error
        self._commit(table, change, files, turn)
        return True

    def _replace(
        self, table: Table, state: IcebergState, content: Sequence[QueueFiles], turn: PublishTurn, refused: set[str]
    ) -> bool:
        """Commits new entries for files that have another size; False: there are none. `refused`: paths of files that
        cannot be registered. Raises CommitFailedException if another commit was faster.
        """
        change = table.transaction()
        files: list[_Entry] = []
        with self._failing():
            for one in content:
                for part in state.outdated(one):
                    if one.path(part) in refused or len(files) == FILES_PER_STEP:
                        continue
                    try:
                        files.append(_Entry(self._data_file(change, table, one, part), one, part))
                    except (StoreError, TableChanged) as error:
                        turn.failures[one.queue] = error
                        refused.add(one.path(part))
            replaced = {one.file for one in files}  # equal by path
            old = [file for file in self._data_files(table) if file in replaced]
        turn.left = len(refused)
        self._commit(table, change, files, turn, old=old)
        return bool(files)

    def _commit(
        self,
        table: Table,
        change: Transaction,
        files: Sequence[_Entry],
        turn: PublishTurn,
        old: Sequence[DataFile] = (),
    ) -> None:
        """Commits files, in place of `old` ones, as one snapshot."""
        if not files:
            return
        with self._failing():
            snapshot = change.update_snapshot(snapshot_properties=_step_properties(files))
            with snapshot.overwrite() if old else snapshot.merge_append() as producer:
                for file in old:
                    producer.delete_data_file(file)
                for one in files:
                    producer.append_data_file(one.file)
            self.progress += 1
            change.commit_transaction()
        self.progress += 1
        turn.files += len(files)
        turn.rows += sum(one.part.count for one in files)
        self._remove_old_snapshots(table)

    def _data_file(self, change: Transaction, table: Table, one: QueueFiles, part: TableRange) -> DataFile:
        """Returns the entry of a file, and adds its new columns to the table. Raises StoreError, TableChanged."""
        import pyarrow as pa
        import pyarrow.parquet as pq
        from pyiceberg.exceptions import ValidationError
        from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, parquet_file_to_data_file

        path, shown = f"{self._root}/{one.path(part)}", self._target.path(one.path(part))

        def entry() -> DataFile:
            return parquet_file_to_data_file(io=table.io, table_metadata=change.table_metadata, file_path=path)

        self.progress += 1
        try:
            try:
                file = entry()
            except pa.ArrowException:
                raise
            except ValueError:  # columns that the table does not have yet
                with self._target.open(one.path(part)) as opened:
                    schema = pq.read_schema(opened)
                with change.update_schema() as update:  # the columns of messages never change
                    update.union_by_name(_nullable(one for one in schema if one.name not in TYPES))
                _must_fit(schema)
                file = entry()
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"{shown} cannot be registered: {_line(error)}") from error
        except (ValueError, TypeError, ValidationError, UnsupportedPyArrowTypeException) as error:
            raise TableChanged(f"the columns of {shown} do not fit {self.name}: {_line(error)}") from error
        if file.record_count != part.count:
            raise StoreError(f"{shown} has {file.record_count:,} rows, its name says {part.count:,}")
        return file

    def _remove(self, table: Table, old: Sequence[DataFile], starts: Mapping[TableQueue, int]) -> None:
        """Commits the removal. Raises CommitFailedException if another commit was faster."""
        change = table.transaction()
        with self._failing():
            values = {_inner(queue): start for queue, start in sorted(starts.items())}
            change.set_properties({STARTS: json.dumps(values)})
            producer = change.update_snapshot(snapshot_properties={STARTS: json.dumps(values)})
            if old:
                with producer.overwrite() as removal:
                    for file in old:
                        removal.delete_data_file(file)
            else:  # a snapshot without a change, with which a step of another publisher conflicts
                with producer.fast_append():
                    pass
            self.progress += 1
            change.commit_transaction()
        self.progress += 1

    def _remove_old_snapshots(self, table: Table) -> None:
        from pyiceberg.exceptions import CommitFailedException

        snapshots = sorted(table.snapshots(), key=lambda one: one.sequence_number or 0)
        if len(snapshots) <= SNAPSHOTS_MAX:
            return
        kept = {ref.snapshot_id for ref in table.refs().values()}
        old = [one.snapshot_id for one in snapshots[:-SNAPSHOTS_KEPT] if one.snapshot_id not in kept]
        with self._failing(), suppress(CommitFailedException):  # the next step repeats it
            table.maintenance.expire_snapshots().by_ids(old).commit()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Raises errors of evenq for those of pyiceberg and of the packages that it uses; CommitFailedException as it
        is.
        """
        from pyiceberg import exceptions as iceberg
        from requests.exceptions import RequestException

        catalog = self.name.catalog
        try:
            yield
        except (Error, iceberg.CommitFailedException):
            raise
        except iceberg.NoSuchNamespaceError as error:
            namespace = ".".join(self.name.table[:-1])
            raise NotFound(
                f"catalog {catalog} has no namespace {namespace}: correct --iceberg, or create it: pyiceberg --catalog "
                f"{catalog} create namespace {namespace}"
            ) from error
        except iceberg.NoSuchTableError as error:
            raise NotFound(
                f"{self.name}, in which {self._target.path(self._topic)} is registered, does not exist any more: "
                f"restore it, or delete {self._target.path(self._link_path)} and publish into a new one"
            ) from error
        except (iceberg.UnauthorizedError, iceberg.OAuthError, iceberg.AuthorizationExpiredError) as error:
            raise Unauthorized(f"catalog {catalog} does not accept the credentials: {_line(error)}") from error
        except iceberg.ForbiddenError as error:
            raise Forbidden(f"catalog {catalog} does not permit this: {_line(error)}") from error
        except iceberg.NotInstalledError as error:
            raise SettingsError(f"catalog {catalog} needs another package: {_line(error)}") from error
        except (RequestException, iceberg.RESTError, ConnectionError, TimeoutError) as error:
            raise ConnectionFailed(f"catalog {catalog} cannot be reached: {_line(error)}") from error
        except Exception as error:  # each kind of catalog and of storage has classes of its own
            if type(error).__module__.partition(".")[0] == "sqlalchemy":
                raise ConnectionFailed(f"catalog {catalog} cannot be reached: {_line(error)}") from error
            raise StoreError(f"{self.name} cannot be used: {type(error).__name__}: {_line(error)}") from error


def _inner(queue: TableQueue) -> str:
    """Returns the folder of a queue below that of its topic."""
    return queue.folder.partition("/")[2]


def _step_properties(step: Sequence[_Entry]) -> dict[str, str]:
    names = "\n".join(one.files.path(one.part) for one in step)
    ends: dict[str, int] = {}
    for one in step:
        ends[_inner(one.files.queue)] = one.part.end
    return {STEP: hashlib.sha256(names.encode()).hexdigest()[:16], ENDS: json.dumps(ends)}


def _nullable(columns: Iterable[pa.Field]) -> pa.Schema:
    """Returns a schema whose columns may be null, so that files without a column that came later fit it."""
    import pyarrow as pa

    return pa.schema([one.with_nullable(True) for one in columns])


def _must_fit(schema: pa.Schema) -> None:
    """Raises ValueError for a message column of another type; pyiceberg would print a table of all columns."""
    right = arrow_schema(COLUMNS)
    for one in schema:
        if one.name in TYPES and right.field(one.name).type != one.type:
            raise ValueError(f"column {one.name} is {one.type}, not {right.field(one.name).type}")


def _line(error: BaseException) -> str:
    """Returns the text of an error as one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]} ..."
