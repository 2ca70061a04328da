"""What tests with other people's clients share: a cluster, one that takes signed calls only, and an end for each peer.

A module says in `BROKER_SETTINGS` what its brokers have besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from evenq.testing import LocalCluster
from evenq.testing.peer import Peer

USERS = (
    """
[users.evenq-internal]
secret = "secret-of-the-servers"
internal = true
"""
    + "".join(
        f"""
[users.{name}]
secret = "secret-of-{name}"
allow = [
  {{ resource = "topic:signed", actions = ["publish", "consume"] }},
  {{ resource = "group:signed-*", actions = ["consume"] }},
]
"""
        for name in ("python", "node")
    )
    + """
[users.tenant]
secret = "secret-of-tenant"
allow = [
  { resource = "topic:shop%*", actions = ["publish", "consume"] },
  { resource = "group:shop%*", actions = ["consume"] },
]
[users.root]
secret = "secret-of-root"
admin = true
"""
)


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {
        "AUTO_CREATE_TOPICS": "true",
        "AUTO_CREATE_GROUPS": "true",
        "DEFAULT_QUEUES": "4",
        "DEFAULT_START_FROM": "FIRST",
        **getattr(request.module, "BROKER_SETTINGS", {}),
    }
    with LocalCluster(brokers=2, folder=tmp_path_factory.mktemp("cluster"), broker_settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster that takes signed calls only."""
    folder = tmp_path_factory.mktemp("signed")
    (folder / "users.toml").write_text(USERS)
    on = {"AUTH__ENABLED": "true", "AUTH__USERS": str(folder / "users.toml")}
    settings = {**on, "DEFAULT_START_FROM": "FIRST"}
    with LocalCluster(
        brokers=2, folder=folder, broker_settings=settings, nameserver_settings=on, rebalancer_settings=on
    ) as running:
        yield running


@pytest.fixture
def keep() -> Iterator[Callable[[Peer], None]]:
    """Give it a peer, and it ends with the test."""
    peers: list[Peer] = []
    yield peers.append
    for one in peers:
        one.end()
