"""What tests with other people's clients share: a cluster, one that takes signed calls only, and an end for each peer.

A module says in `BROKER_SETTINGS` what its brokers have besides.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from evenq_proofs.official_sdks import cache_of
from evenq_proofs.peer import Peer

from evenq.testing import LocalCluster

NODE = Path(__file__).with_name("node")
NODE_MIN = 18
ASYNCAPI_SPECS = "6.11.1"

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
        for name in ("python", "node", "java")
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


def missing(why: str) -> NoReturn:
    if os.environ.get("CI") or os.environ.get("EVENQ_TEST_ALL"):
        pytest.fail(f"{why}; CI must have it")
    pytest.skip(why)


@pytest.fixture(scope="session")
def lacking() -> Callable[[str], NoReturn]:
    """Says why a test cannot run here: it is skipped, or fails where everything must run."""
    return missing


@pytest.fixture(scope="session")
def asyncapi_schemas() -> Path:
    """The folder with the JSON schemas of AsyncAPI."""
    home = cache_of("asyncapi", "EVENQ_ASYNCAPI_CACHE") / ASYNCAPI_SPECS
    schemas = home / "node_modules" / "@asyncapi" / "specs" / "schemas"
    if not schemas.exists():
        npm = shutil.which("npm")
        if npm is None:
            missing("npm, which brings the schemas of AsyncAPI, is not installed")
        home.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--prefix", str(home), "--ignore-scripts", "--no-audit", "--no-fund"]
        command.append(f"@asyncapi/specs@{ASYNCAPI_SPECS}")
        done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=300, check=False)
        if not schemas.exists():
            missing(f"npm install @asyncapi/specs failed: {done.stderr.strip()[-300:]}")
    return schemas


@pytest.fixture(scope="session")
def rust_cache() -> Path:
    """Where Rust's SDK is built, once."""
    return cache_of("rust", "EVENQ_CARGO_CACHE")


@pytest.fixture(scope="session")
def go_cache() -> Path:
    """The same for Go's."""
    return cache_of("go", "EVENQ_GO_CACHE")


@pytest.fixture(scope="session")
def modules() -> Path:
    """The folder with the Node.js SDK, installed from the lock file."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        missing("Node.js with npm is not installed")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    major = int(re.findall(r"\d+", version)[0])
    if major < NODE_MIN:
        missing(f"Node.js is {version.strip()}, the SDK needs {NODE_MIN} or newer")
    lock = (NODE / "package-lock.json").read_bytes()
    cache = cache_of("node", "EVENQ_NODE_CACHE")
    home = cache / f"{hashlib.sha256(lock).hexdigest()[:16]}-{major}"
    if not (home / "node_modules").exists():
        cache.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=cache))
        for name in ("package.json", "package-lock.json"):
            shutil.copy(NODE / name, fresh)
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=fresh, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            shutil.rmtree(fresh)
            missing(f"npm ci of the Node.js SDK failed: {done.stderr.strip()[-300:]}")
        try:
            fresh.rename(home)
        except OSError:  # another run was faster
            shutil.rmtree(fresh)
    return home / "node_modules"
