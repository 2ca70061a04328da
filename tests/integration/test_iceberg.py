"""Iceberg tables beside real brokers: publishers that are killed at any moment register each file exactly once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.command_line import evenq_json, evenq_process, run_evenq
from evenq_proofs.waiting import until

import evenq
from evenq.testing import LocalCluster
from tests.integration.test_tables import FAST, Sender, export, send, start

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")
pytestmark = [pytest.mark.timeout(300), pytest.mark.cluster(rebalancer=False)]

ROUNDS = int(os.environ.get("EVENQ_TEST_ICEBERG_ROUNDS", "8"))


class Lake:
    """A catalog in SQLite, with its settings in the environment."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from pyiceberg.catalog import load_catalog

        self.warehouse = folder / "warehouse"
        self.warehouse.mkdir()
        self.database = folder / "catalog.db"
        uri, warehouse = f"sqlite:///{self.database}", f"file://{self.warehouse}"
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", uri)
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", warehouse)
        self._catalog = load_catalog("lake", uri=uri, warehouse=warehouse)
        self._catalog.create_namespace("sales")

    def rows(self, topic: str) -> list[tuple[str, int, int]]:
        """Broker, queue and offset of each row, read by pyiceberg."""
        table = self._catalog.load_table(f"sales.{topic}")
        names = ("brokerName", "queueId", "queueOffset")
        found = table.scan(selected_fields=names).to_arrow()
        return sorted(zip(*(found.column(name).to_pylist() for name in names), strict=True))

    def paths(self, topic: str) -> list[str]:
        tasks = self._catalog.load_table(f"sales.{topic}").scan().plan_files()
        return sorted(task.file.file_path.removeprefix("file://") for task in tasks)

    def written(self, topic: str, kind: str) -> int:
        """Files of a commit that may not be made yet."""
        return len([*(self.warehouse / "sales" / topic / "metadata").glob(f"*{kind}")])


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    return Lake(tmp_path, monkeypatch)


def publish(folder: Path, topic: str) -> Any:
    return evenq_json("table", "publish", topic, "--to", folder, "--iceberg", f"lake.sales.{topic}")


def follow(folder: Path, topic: str) -> subprocess.Popen[str]:
    words = ("table", "publish", topic, "--to", folder, "--iceberg", f"lake.sales.{topic}", "--follow")
    return start(*words, "--every", "100ms", endpoint="127.0.0.1:1")


def must_be_the_same(lake: Lake, folder: Path, topic: str) -> None:
    """Each file is registered once, and pyiceberg and DuckDB read the same rows, each offset once."""
    duckdb = pytest.importorskip("duckdb")
    registered = lake.paths(topic)
    assert registered == sorted(map(str, (folder / topic).rglob("*.parquet")))
    rows = lake.rows(topic)
    assert len(set(rows)) == len(rows), "a row twice"
    sql = f"select count(*), sum(queueOffset) from read_parquet({registered})"
    [(count, total)] = duckdb.sql(sql).fetchall()
    assert (count, total) == (len(rows), sum(offset for _, _, offset in rows))


def test_a_topic_is_an_iceberg_table(cluster: LocalCluster, lake: Lake, tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    send(cluster.endpoint, "orders", 530)
    export(cluster.endpoint, "orders", folder, *FAST)
    assert publish(folder, "orders")["rows"] == 530
    must_be_the_same(lake, folder, "orders")
    [first, second] = evenq_json("table", "show", "orders", "--to", folder, endpoint=cluster.endpoint)
    assert (first["published"], second["published"]) == (265, 265)
    assert evenq_json("table", "verify", "orders", "--to", folder, "--whole", endpoint=cluster.endpoint)["clean"]
    expire = ("table", "expire", "orders", "--to", folder, "--before", "0s", "--yes")
    assert "from lake.sales.orders" in evenq_process(*expire).stderr
    assert len(lake.rows("orders")) == 130
    must_be_the_same(lake, folder, "orders")
    assert publish(folder, "orders")["files"] == 0


def test_files_that_are_rebuilt_stay_readable_in_the_catalog(cluster: LocalCluster, lake: Lake, tmp_path: Path) -> None:
    """One is damaged, and one is gone that `--tail` ended within a window: it gets its registered name again."""
    folder = tmp_path / "tables"
    for count in (30, 450):
        send(cluster.endpoint, "mended", count, queues=1)
        export(cluster.endpoint, "mended", folder, "--tail", *FAST)
    publish(folder, "mended")
    before, paths = lake.rows("mended"), lake.paths("mended")
    files = sorted((folder / "mended").rglob("*.parquet"))
    files[1].unlink()
    files[2].write_bytes(files[2].read_bytes()[:-9])
    words = ("table", "rebuild", "mended", "--to", folder)
    found = evenq_json(*words, endpoint=cluster.endpoint)
    assert (found["files"], found["left"], found["failures"]) == (2, 0, [])
    assert (lake.rows("mended"), lake.paths("mended")) == (before, paths)
    assert evenq_json("table", "verify", "mended", "--to", folder, endpoint=cluster.endpoint)["clean"]


@pytest.mark.slow  # a dozen publishers, each with the imports of pyiceberg
def test_publishers_and_exporters_that_are_killed_register_each_file_once(
    cluster: LocalCluster, lake: Lake, tmp_path: Path
) -> None:
    """Kills at random moments, after manifests are written, and beside the commit of the catalog."""
    folder = tmp_path / "tables"
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("killed", queues=2)
    sender, rng = Sender(cluster.endpoint, "killed"), random.Random(149)
    sender.start()
    words = ("table", "follow", "killed", "--to", folder, *FAST, "--every", "100ms")
    exporter = start(*words, endpoint=cluster.endpoint)
    until(lambda: list(folder.rglob("*.parquet")), "a file", seconds=60)
    for round_ in range(ROUNDS):
        publisher = follow(folder, "killed")
        lines = publisher.stderr
        assert lines is not None
        assert "publishing" in lines.readline()
        match round_ % 4:
            case 0:
                time.sleep(rng.uniform(0, 3))
            case 1:
                before = lake.written("killed", ".avro")
                until(lambda at=before: lake.written("killed", ".avro") > at, "a manifest", seconds=60)  # type: ignore[misc]
            case 2:
                before = lake.written("killed", ".metadata.json")
                until(lambda at=before: lake.written("killed", ".metadata.json") > at, "a commit", seconds=60)  # type: ignore[misc]
            case _:  # an expiry meets publishers
                assert any("registered" in line for line in lines)
                run_evenq("table", "expire", "killed", "--to", folder, "--before", "4s", "--yes")
        publisher.kill()
        publisher.communicate()
        if round_ % 3 == 1:
            exporter.kill()
            exporter.communicate()
            exporter = start(*words, endpoint=cluster.endpoint)
    sender.stop()
    both = [follow(folder, "killed") for _ in range(2)]
    export(cluster.endpoint, "killed", folder)
    for one in (exporter, *both):
        one.send_signal(signal.SIGTERM)
        _, errors = one.communicate(timeout=60)
        assert one.returncode == 0, errors
        assert "Traceback" not in errors, errors
    publish(folder, "killed")
    must_be_the_same(lake, folder, "killed")
    verified = evenq_json("table", "verify", "killed", "--to", folder, "--whole", endpoint=cluster.endpoint)
    assert verified["clean"], verified
    assert len(lake.rows("killed")) == verified["rows"]
