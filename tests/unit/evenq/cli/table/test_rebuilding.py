"""`evenq table rebuild` of a table in Iceberg: nothing is replaced while its catalog is away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evenq.tables.folder import FolderTables
from tests.unit.evenq.tables.fake_log import START_MS, FakeLog
from tests.unit.evenq.tables.test_exporting import export

pytest.importorskip("pyiceberg")


def test_a_catalog_that_is_away_stops_a_rebuild_before_it_replaces_a_file(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evenq.cli.table import rebuilding

    async def written(*_: object) -> None:
        pytest.fail("files are written without the catalog")

    monkeypatch.setattr(rebuilding, "_written", written)
    log = FakeLog()
    log.add(250)
    export(log, FolderTables(tmp_path), now_ms=START_MS + 3_600_000)
    link = {"version": 1, "table": "nowhere.sales.orders", "uuid": "u"}
    (tmp_path / "orders" / "_iceberg.json").write_text(json.dumps(link))
    code, _, err, _ = run(f"table rebuild orders --to {tmp_path}")
    assert (code, "no settings of a catalog nowhere" in err) == (2, True)
