"""Fixtures for users' tests with pytest, which loads this module by its entry point.

It imports nothing of evenq until a test uses a fixture, because it is loaded in every test run of an environment in
which evenq is installed. The guide is docs/guides/testing.md.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from evenq.in_memory import MemoryCluster
    from evenq.testing import LocalCluster

NAME_MAX = 80


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "evenq_topic(queues, message_type): arguments of the topic that the fixture evenq_topic creates"
    )


@pytest.fixture(scope="session")
def evenq_cluster_options() -> dict[str, Any]:
    """Arguments of the `LocalCluster` of `evenq_cluster`. Define a fixture with this name to change them."""
    return {}


@pytest.fixture(scope="session")
def evenq_cluster(
    tmp_path_factory: pytest.TempPathFactory, evenq_cluster_options: dict[str, Any]
) -> Iterator[LocalCluster]:
    """A cluster of real processes for the whole test run, on free ports; clients connect to its `endpoint`."""
    _must_have_server("evenq_cluster")
    from evenq.testing import LocalCluster

    arguments = {"folder": tmp_path_factory.mktemp("evenq"), **evenq_cluster_options}
    with LocalCluster(**arguments) as cluster:
        yield cluster


@pytest.fixture
def evenq_topic(request: pytest.FixtureRequest, evenq_cluster: LocalCluster) -> Iterator[str]:
    """The name of a new topic of `evenq_cluster`, which is deleted after the test. The marker `evenq_topic` sets its
    `queues`, `message_type` and the other arguments of `Admin.create_topic`.
    """
    from evenq.client.admin import Admin
    from evenq.errors import TopicNotFound

    marker = request.node.get_closest_marker("evenq_topic")
    name = f"{_name_of(request)}-{uuid.uuid4().hex[:8]}"
    with Admin(endpoint=evenq_cluster.endpoint, tls=evenq_cluster.client_tls or False) as admin:
        admin.create_topic(name, **(marker.kwargs if marker is not None else {}))
        yield name
        with contextlib.suppress(TopicNotFound):  # the test deleted it
            admin.delete_topic(name)


@pytest.fixture
def evenq_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryCluster]:
    """A broker in this process, in memory, for one test. Clients that are created without an endpoint connect to it."""
    _must_have_server("evenq_memory")
    from evenq.in_memory import MemoryCluster
    from evenq.wire import credentials, tls

    for module in (credentials, tls):  # the access to another cluster
        for name, variable in vars(module).items():
            if name.endswith("_VARIABLE"):
                monkeypatch.delenv(variable, raising=False)
    with MemoryCluster() as cluster:
        monkeypatch.setenv("EVENQ_ENDPOINT", cluster.endpoint)
        yield cluster


def _name_of(request: pytest.FixtureRequest) -> str:
    """Returns the test's name in characters that a topic may have."""
    return re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")[:NAME_MAX]


def _must_have_server(fixture: str) -> None:
    from evenq.runtime.extras import EXTRA_OF, is_installed, missing

    for package, extra in EXTRA_OF.items():
        if extra == "server" and package != "uvloop" and not is_installed(package):
            pytest.fail(missing(f"the fixture {fixture}", package), pytrace=False)
