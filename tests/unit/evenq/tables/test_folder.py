"""A name appears whole, once, and in a folder only beside names that it follows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from evenq.errors import SettingsError, StoreError
from evenq.tables.folder import FolderTables, RemoteTables, TableTarget, place_bytes, table_target
from evenq.tables.layout import TableChanged


@pytest.fixture(params=["folder", "memory", "file"])
def target(request: Any, tmp_path: Path) -> TableTarget:
    if request.param == "folder":
        return table_target(str(tmp_path / "new" / "tables"))
    pytest.importorskip("fsspec")
    return table_target(f"memory://{tmp_path.name}" if request.param == "memory" else f"file://{tmp_path}/tables")


def read(target: TableTarget, path: str) -> bytes:
    with target.open(path) as file:
        return file.read()


def test_a_file_appears_once_and_keeps_its_first_content(target: TableTarget) -> None:
    assert target.topics() == []
    assert target.files("orders") == {}
    assert place_bytes(target, "orders/a/1", b"one", lambda _: None)
    assert not place_bytes(target, "orders/a/1", b"other", lambda _: None)
    assert read(target, "orders/a/1") == b"one"
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


def test_a_draft_that_is_discarded_leaves_nothing(target: TableTarget) -> None:
    draft = target.draft("orders/q")
    draft.file.write(b"half")
    draft.discard()
    draft.discard()
    assert target.files("orders/q") == {}


def test_a_file_that_is_missing_is_named(target: TableTarget) -> None:
    with pytest.raises(StoreError, match="nothing"):
        target.open("orders/nothing")


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


@pytest.mark.parametrize("url", ["nonsense://x", "s3x://bucket"])
def test_a_scheme_that_is_not_known_is_a_setting_error(url: str) -> None:
    with pytest.raises(SettingsError, match=r"is not a valid target|needs the package"):
        table_target(url)
