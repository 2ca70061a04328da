"""A manifest that somebody wrote: whole by its checksum, and not what a backup would say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from evenq.errors import PreconditionFailed, StoreCorrupted
from evenq.store.backup.manifest import (
    BackupManifest,
    ClusterRun,
    RestorePoint,
    SavedPiece,
    check_cluster,
    manifest_path,
    pack,
    read_cluster,
    unpack,
    unpack_partial,
    write_cluster,
)
from evenq.store.backup.reading import find_manifest
from evenq.store.backup.target import FolderTarget, write_small

POINT = RestorePoint(
    number=1, created_ms=5, store_id="s", epoch=1, log_start=0, first=10,
    snapshot="snapshot/00000001-00000000000000000010", snapshot_bytes=3, snapshot_crc32c=4, copied_bytes=100,
)  # fmt: skip
MANIFEST = BackupManifest(
    cluster="c", broker_name="broker-a", segment_bytes=1 << 20, number=1, points=(POINT,),
    pieces=(SavedPiece(0, 100, 7),),
)  # fmt: skip
FIRST = ClusterRun(cluster="one", created_ms=7, brokers={"a": 1, "b": 1})


def sealed(content: Any) -> bytes:
    body = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return f'{{"format":1,"crc32c":{crc32c(body.encode())},"content":{body}}}\n'.encode()


def content(**changes: Any) -> dict[str, Any]:
    return {**json.loads(pack(MANIFEST))["content"], **changes}


def point(**changes: Any) -> dict[str, Any]:
    return content(points=[{**content()["points"][0], **changes}])


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert unpack(pack(MANIFEST), "here") == MANIFEST
    assert unpack(sealed(content()), "here") == MANIFEST


@pytest.mark.parametrize(
    "tampered",
    [
        content(broker="../../etc"),
        content(broker="/etc"),
        content(broker=""),
        content(broker=7),
        content(cluster=None),
        content(number="1"),
        content(number=-1),
        content(segment_bytes=0),
        content(segment_bytes=1 << 60),
        content(segment_bytes=True),
        content(segment_bytes=1e9),
        content(points=[]),
        content(points=None),
        content(points=["x"]),
        content(points=[[1, 2]]),
        content(pieces=[[0, 1 << 70, 1]]),
        content(pieces=[[-5, 10, 1]]),
        content(pieces=[[0, 10]]),
        content(pieces=[["../x", 10, 1]]),
        content(pieces=7),
        point(snapshot="../../../../etc/passwd"),
        point(snapshot="/etc/passwd"),
        point(snapshot="snapshot/../x"),
        point(snapshot="snapshot/00000001-00000000000000000010\n"),
        point(snapshot=None),
        point(first="soon"),
        point(epoch=-1),
        point(snapshot_bytes=1 << 70),
        point(created_ms=[]),
        point(unknown=1),
        [],
        None,
        "x",
    ],
)
def test_a_manifest_that_no_backup_would_write_is_refused_and_names_its_place(tampered: Any) -> None:
    with pytest.raises(StoreCorrupted, match=r"^backup/manifest"):
        unpack(sealed(tampered), "backup/manifest-00000001.json")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"nonsense",
        b'{"format":1}',
        b"\xff\xfe",
        b'{"format":1,"crc32c":1,"content":[]}',
        b"[" * 100_000,
    ],
)
def test_bytes_that_are_no_manifest_are_refused(data: bytes) -> None:
    with pytest.raises(StoreCorrupted, match=r"^here"):
        unpack(data, "here")
    assert unpack_partial(data, "here", after=1) == []


def test_a_manifest_that_lies_where_another_belongs_is_damage(tmp_path: Any) -> None:
    target = FolderTarget(tmp_path)
    write_small(target, f"broker-b/{manifest_path(1)}", pack(MANIFEST))
    with pytest.raises(StoreCorrupted, match="holds manifest 1 of broker broker-a, which does not match its place"):
        find_manifest(target, "broker-b")
    write_small(target, f"broker-a/{manifest_path(2)}", pack(MANIFEST))
    with pytest.raises(StoreCorrupted, match="does not match its place"):
        find_manifest(target, "broker-a")


def test_what_a_backup_writes_is_its_owners_alone(tmp_path: Any) -> None:
    target = FolderTarget(tmp_path / "target")
    with target:
        write_small(target, f"broker-a/{manifest_path(1)}", pack(MANIFEST))
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert {mode for name, mode in modes.items() if (tmp_path / name).is_dir()} == {0o700}
    assert {mode for name, mode in modes.items() if (tmp_path / name).is_file()} == {0o600}


def test_a_run_is_read_as_it_was_written_and_keeps_the_brokers_that_it_did_not_touch(tmp_path: Path) -> None:
    target = FolderTarget(tmp_path)
    assert read_cluster(target) is None
    check_cluster(target, "any")
    write_cluster(target, FIRST)
    assert read_cluster(target) == FIRST
    write_cluster(target, ClusterRun(cluster="one", created_ms=8, brokers={"b": 2, "c": 1}))
    assert read_cluster(target) == ClusterRun(cluster="one", created_ms=8, brokers={"a": 1, "b": 2, "c": 1})


def test_a_target_takes_one_cluster(tmp_path: Path) -> None:
    target = FolderTarget(tmp_path)
    write_cluster(target, FIRST)
    check_cluster(target, "one")
    with pytest.raises(PreconditionFailed, match="has backups of cluster 'one', and this one is 'two'"):
        check_cluster(target, "two")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 2}', '{"format": 1, "brokers": []}', "[" * 100_000])
def test_a_file_that_no_backup_wrote_is_refused_and_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(StoreCorrupted, match=r"cluster\.json cannot be read"):
        read_cluster(FolderTarget(tmp_path))
