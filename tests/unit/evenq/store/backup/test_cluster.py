"""What a target says of the whole cluster's newest run."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenq.errors import PreconditionFailed, StoreCorrupted
from evenq.store.backup.cluster import ClusterRun, check_cluster, read_cluster, write_cluster
from evenq.store.backup.target import FolderTarget

FIRST = ClusterRun(cluster="one", created_ms=7, brokers={"a": 1, "b": 1})


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
