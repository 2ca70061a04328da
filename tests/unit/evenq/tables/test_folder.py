"""A name appears whole, once, and in a folder only beside names that it follows."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from evenq.errors import SettingsError, StoreError
from evenq.tables import folder
from evenq.tables.checking import table_of
from evenq.tables.exporting import table_settings
from evenq.tables.files import read_batches, read_footer
from evenq.tables.folder import FolderTables, RemoteTables, TableTarget, place_bytes, table_target
from evenq.tables.iceberg_state import link_of
from evenq.tables.layout import TableChanged
from evenq.tables.typed.stored import keep_schema, newest_schema
from tests.unit.evenq.tables.fake_log import FakeLog
from tests.unit.evenq.tables.test_exporting import export, try_export
from tests.unit.evenq.tables.typed.conversion import schema_of


@pytest.fixture(params=["folder", "memory", "file"])
def target(request: Any, tmp_path: Path) -> TableTarget:
    if request.param == "folder":
        return table_target(str(tmp_path / "new" / "tables"))
    pytest.importorskip("fsspec")
    if request.param == "memory":
        return table_target(f"memory://{tmp_path.name}")
    return RemoteTables(f"file://{tmp_path}/tables")  # not atomic, as SFTP


def test_a_file_appears_once_and_keeps_its_first_content(target: TableTarget) -> None:
    assert target.topics() == []
    assert target.files("orders") == {}
    assert place_bytes(target, "orders/a/1", b"one", lambda _: None)
    assert not place_bytes(target, "orders/a/1", b"other", lambda _: None)
    assert target.read("orders/a/1") == b"one"
    assert [path for path in target.files("orders") if ".lock" not in path] == ["orders/a/1"]
    assert target.files("orders")["orders/a/1"] == 3
    assert target.topics() == ["orders"]
    target.remove("orders/a/1")
    target.remove("orders/a/1")
    assert "orders/a/1" not in target.files("orders")


def test_a_check_sees_the_names_beside_it_and_can_refuse(target: TableTarget) -> None:
    place_bytes(target, "orders/1", b"", lambda _: None)
    seen: list[str] = []

    def refuse(names: Any) -> None:
        seen.extend(names)
        raise TableChanged("no")

    with pytest.raises(TableChanged):
        place_bytes(target, "orders/2", b"", refuse)
    assert "1" in seen
    assert "orders/2" not in target.files("orders")
    assert not [path for path in target.files("orders") if path.endswith(".tmp")]


def test_folders_that_cannot_be_topics_are_not_topics(target: TableTarget) -> None:
    for name in ("orders", "shop%orders", "lost+found", ".trash"):
        place_bytes(target, f"{name}/1", b"", lambda _: None)
    assert target.topics() == ["orders", "shop%orders"]


def test_a_draft_that_is_discarded_leaves_nothing(target: TableTarget) -> None:
    draft = target.draft("orders/q")
    draft.file.write(b"half")
    draft.discard()
    draft.discard()
    assert target.files("orders/q") == {}


def test_a_file_that_is_missing_is_named(target: TableTarget) -> None:
    for access in (target.open, target.read):
        with pytest.raises(StoreError, match="nothing"):
            access("orders/nothing")


def test_drafts_of_killed_exporters_are_removed_and_those_of_others_stay(tmp_path: Path) -> None:
    target = FolderTables(tmp_path)
    other = target.draft("q")
    left = tmp_path / "q" / ".4711-abc.tmp"
    left.write_bytes(b"half a file")
    mine = target.draft("q")
    assert not left.exists()
    assert len(target.files("q")) == 2, "the other exporter's and mine"
    assert other.place("1", lambda _: None)
    assert mine.place("2", lambda _: None)
    for draft in (other, mine):
        draft.discard()
    assert sorted(target.files("q")) == ["q/.lock", "q/1", "q/2"]


def test_drafts_of_killed_exporters_are_removed_from_nfs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, only a file that is open for writing can have an exclusive lock."""
    target, original = FolderTables(tmp_path), folder.fcntl.flock

    def flock(file: Any, kind: int) -> None:
        if kind & folder.fcntl.LOCK_EX and not file.writable():
            raise OSError(errno.EBADF, "Bad file descriptor")
        original(file, kind)

    monkeypatch.setattr(folder.fcntl, "flock", flock)
    other = target.draft("q")
    left = tmp_path / "q" / ".4711-abc.tmp"
    left.write_bytes(b"half a file")
    place_bytes(target, "q/1", b"one", lambda _: None)
    assert other.place("2", lambda _: None), "it is not left"
    other.discard()
    assert not left.exists()


def test_files_are_for_their_owner(tmp_path: Path) -> None:
    target = FolderTables(tmp_path / "tables")
    place_bytes(target, "orders/1", b"secret", lambda _: None)
    assert (tmp_path / "tables" / "orders" / "1").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "tables").stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="orders"):
        FolderTables(tmp_path).draft("orders")


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(StoreError, match="cannot be used"):
        FolderTables(tmp_path / "x").draft("orders")


def test_a_failed_upload_shows_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    target = RemoteTables(f"memory://{tmp_path.name}")

    class Away(Exception):
        pass

    def fail(*_: Any, **__: Any) -> None:
        raise Away("the store is away")

    monkeypatch.setattr(target.system, "put_file", fail)
    with pytest.raises(StoreError, match="Away: the store is away"):
        place_bytes(target, "orders/1", b"", lambda _: None)
    assert target.files("orders") == {}


def test_a_store_that_fails_while_a_file_is_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages of fsspec have errors of their own, which are not OSError."""
    pytest.importorskip("fsspec")
    target, log = RemoteTables(f"memory://{tmp_path.name}"), FakeLog()
    log.add(100)
    table_settings(target, "orders", rows_per_file=100, close_after_ms=60_000)
    keep_schema(target, "orders", schema_of(a={"type": "string"}))
    export(log, target)
    place_bytes(target, "orders/_iceberg.json", b"{}", lambda _: None)
    [files] = table_of(target, "orders")

    class Away(Exception):
        pass

    class Broken(io.BytesIO):
        def read(self, *_: Any) -> bytes:
            raise Away("the store is away")

        readinto = read  # type: ignore[assignment]

    monkeypatch.setattr(target.system, "open", lambda *_, **__: Broken(bytes(1_000)))
    reads: list[Callable[[], object]] = [
        lambda: table_settings(target, "orders", rows_per_file=None, close_after_ms=None),
        lambda: newest_schema(target, "orders"),
        lambda: link_of(target, "orders"),
        lambda: read_footer(target, files.paths[0]),
        lambda: [*read_batches(target, files.paths[0])],
        lambda: target.read(files.paths[0]),
    ]
    for read in reads:
        with pytest.raises(StoreError, match="Away: the store is away"):
            read()
    log.add(100)
    [error] = try_export(log, target).failures.values()
    assert "the store is away" in error.message


def test_a_store_that_cannot_be_opened_is_named() -> None:
    fsspec = pytest.importorskip("fsspec")

    class Away(Exception):
        pass

    class Closed(fsspec.AbstractFileSystem):  # type: ignore[misc]
        def __init__(self, **_: Any) -> None:
            raise Away("the store is away")

    fsspec.register_implementation("closed", Closed, clobber=True)
    with pytest.raises(StoreError, match="closed://lake cannot be used: Away: the store is away"):
        table_target("closed://lake")


def upload_elsewhere(tmp_path: Path) -> RemoteTables:
    """A target that shows a file before its upload is complete, as that of SFTP does."""
    pytest.importorskip("fsspec")
    return RemoteTables(f"file://{tmp_path}")


def visible(folder: Path) -> list[str]:
    """Names of the files that a reader of a folder takes."""
    found: Any = ds.dataset(folder, schema=pa.schema([]), format="parquet")
    return sorted(Path(path).name for path in found.files)


def test_an_upload_that_is_not_complete_is_hidden_from_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, seen = upload_elsewhere(tmp_path), []
    original = target.system.mv

    def move(*arguments: Any) -> None:
        seen.append(visible(tmp_path / "orders"))
        if len(seen) == 1:
            raise OSError("connection lost")
        original(*arguments)

    monkeypatch.setattr(target.system, "mv", move)
    with pytest.raises(StoreError, match="connection lost"):
        place_bytes(target, "orders/1.parquet", b"one", lambda _: None)
    assert target.files("orders") == {}, "the draft is removed"
    assert place_bytes(target, "orders/1.parquet", b"one", lambda _: None)
    assert seen == [[], []]
    assert visible(tmp_path / "orders") == ["1.parquet"]


def test_uploads_of_one_name_at_the_same_time_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second exporter uploads while the first one moves its file to its name."""
    target, other = upload_elsewhere(tmp_path), upload_elsewhere(tmp_path)
    original, drafts = target.system.put_file, []

    def put(local: str, remote: str) -> None:
        drafts.append(remote)
        original(local, remote)
        if len(drafts) == 1:
            place_bytes(other, "orders/1.parquet", b"same", lambda _: None)

    monkeypatch.setattr(type(target.system), "put_file", lambda _, *arguments: put(*arguments))
    place_bytes(target, "orders/1.parquet", b"same", lambda _: None)
    assert len(set(drafts)) == 2
    assert target.files("orders") == {"orders/1.parquet": 4}


@pytest.mark.parametrize("left", ["1.parquet.tmp", ".1.parquet.0123.tmp"])
def test_uploads_of_killed_exporters_are_removed_once_their_names_are_there(tmp_path: Path, left: str) -> None:
    target = upload_elsewhere(tmp_path)
    (tmp_path / "orders").mkdir()
    for name in (left, ".11.parquet.0123.tmp"):
        (tmp_path / "orders" / name).write_bytes(b"half")
    for name in ("1", "2"):
        place_bytes(target, f"orders/{name}.parquet", b"one", lambda _: None)
    assert sorted(target.files("orders")) == [
        "orders/.11.parquet.0123.tmp", "orders/1.parquet", "orders/2.parquet"
    ]  # fmt: skip


@pytest.mark.parametrize("scheme", ["file", "local"])
def test_a_url_of_this_machine_is_a_folder_with_its_lock_and_its_sync(tmp_path: Path, scheme: str) -> None:
    target = table_target(f"{scheme}://{tmp_path}/tables/")
    assert isinstance(target, FolderTables)
    assert target.root == tmp_path / "tables"


@pytest.mark.parametrize("url", ["nonsense://x", "s3x://bucket"])
def test_a_scheme_that_is_not_known_is_a_setting_error(url: str) -> None:
    with pytest.raises(SettingsError, match=r"is not a valid target|needs the package"):
        table_target(url)
