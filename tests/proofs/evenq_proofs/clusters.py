"""The fixtures `cluster` and `shared_cluster`: servers as processes, as the marker `cluster` says.

    pytestmark = pytest.mark.cluster(brokers=2, rebalancer=False)

The marker takes the arguments of `LocalCluster`, and those of `running`. Tests of a module with the marker share one
cluster, and each of them leaves all servers running. `own=True`, or a marker of a test: the test gets a cluster of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import evenq
from evenq.testing import LocalCluster


@contextmanager
def running(
    folder: Path,
    *,
    settings: Mapping[str, str] | None = None,
    users: str = "",
    admin: evenq.Credentials | None = None,
    prepare: Callable[[evenq.Admin], object] | None = None,
    **plan: Any,
) -> Iterator[LocalCluster]:
    """A cluster of `plan`. `settings`: of every server. `users`: a file that is kept in `folder`; only signed calls are
    taken then. `prepare`: called with an Admin of the credentials `admin` before the first test.
    """
    common = dict(settings or {})
    if users:
        file = folder / "users.toml"
        file.write_text(users)
        file.chmod(0o600)
        common |= {"AUTH__ENABLED": "true", "AUTH__USERS": str(file)}
    for server in ("broker", "nameserver", "rebalancer"):
        plan[f"{server}_settings"] = {**common, **plan.get(f"{server}_settings", {})}
    with LocalCluster(**plan) as cluster:
        if prepare is not None:
            with evenq.Admin(endpoint=cluster.endpoint, credentials=admin) as client:
                prepare(client)
        yield cluster


@pytest.fixture(scope="module")
def shared_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """That of the module, for fixtures that last as long."""
    with running(tmp_path_factory.mktemp("cluster"), **_plan(request.node)) as cluster:
        yield cluster


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    plan = _plan(request.node)
    of_test = any(mark.name == "cluster" for mark in request.node.own_markers)
    if not (plan.pop("own", False) or of_test):
        yield request.getfixturevalue("shared_cluster")
        return
    with running(tmp_path_factory.mktemp("cluster"), **plan) as cluster:
        yield cluster


def _plan(node: pytest.Item | pytest.Collector) -> dict[str, Any]:
    mark = node.get_closest_marker("cluster")
    assert mark is not None, f"{node.nodeid} has no marker `cluster`"
    return dict(mark.kwargs)
