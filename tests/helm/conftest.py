"""Where helm and a cluster come from: PATH, or the one-node test cluster beside the project (K8S_TOOLS)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.whole_runs import skip_or_fail

sys.path.insert(0, str(Path(__file__).resolve().parent))  # evenq_helm: the cluster and the demo's pods
from evenq_helm.kubernetes import IMAGES, REGISTRY, TAG, Kubernetes
from evenq_helm.turns import Room, shared

BASE = ("--build-arg", "PYTHON_IMAGE=python:3.11-slim")  # the test cluster makes its own and asks no registry
ROOT = Path(__file__).resolve().parents[2]
ROOM = pytest.StashKey[Room]()


def tools() -> Path | None:
    """The folder with `up`, `env`, `build-image` ..., if it is there."""
    folder = Path(os.environ.get("K8S_TOOLS", ROOT.parent / "shared" / "k8s")).resolve()
    return folder if (folder / "up").is_file() else None


def binaries() -> Path:
    return Path(os.environ.get("K8S_CACHE", Path.home() / ".cache" / "k8s-test")) / "bin"


def install(folder: Path) -> None:
    """Make the cluster's binaries, helm among them, where they are missing; `.ci/run` may have begun already."""
    lock = Path(f"{binaries().parent}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["flock", lock, folder / "install"], check=True, timeout=1_800)


@pytest.fixture(scope="session")
def helm() -> str:
    """A helm 3 to run. Built by the test cluster's own installer where the machine has none."""
    found = shutil.which("helm") or shutil.which("helm", path=str(binaries()))
    if found is None and (folder := tools()) is not None:
        install(folder)
        found = shutil.which("helm", path=str(binaries()))
    if found is None:
        skip_or_fail("no helm on PATH and no K8S_TOOLS beside the project")
    return found


@pytest.fixture(scope="session")
def cluster_tools() -> Path:
    """The scripts of the test cluster."""
    folder = tools()
    if folder is None:
        skip_or_fail("no test cluster beside the project; set K8S_TOOLS")
    install(folder)
    return folder


def of_the_run(config: pytest.Config) -> Path | None:
    """A folder that all processes of this run share; None: there is only this one."""
    return Path(config.option.basetemp).parent if hasattr(config, "workerinput") else None


def room(config: pytest.Config) -> Room | None:
    """The one of this process."""
    folder = of_the_run(config)
    if folder is not None and ROOM not in config.stash:
        config.stash[ROOM] = Room(folder)
    return config.stash.get(ROOM, None)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test on the cluster, with all that is installed for it, is there among others."""
    here = room(item.config) if item.get_closest_marker("kubernetes") else None
    with here.among_others() if here else nullcontext():
        yield


def pytest_unconfigure(config: pytest.Config) -> None:
    if ROOM in config.stash:
        config.stash[ROOM].close()


@pytest.fixture
def alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """No other test is on the cluster meanwhile."""
    here = room(request.config)
    with here.alone() if here else nullcontext():
        yield


@pytest.fixture(scope="session")
def kubernetes(
    cluster_tools: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kubernetes]:
    """The cluster, with our images on its node."""
    folder = cluster_tools

    def begin() -> None:
        kubernetes = Kubernetes(folder)
        # One after the other: the cluster comes up, and takes each image as it is built.
        with ThreadPoolExecutor(1) as beside:
            up = beside.submit(subprocess.run, [folder / "up"], check=True, timeout=1_800, stdout=subprocess.DEVNULL)
            tasks: list[Future[Any]] = [up]
            for image in IMAGES:
                name = f"{REGISTRY}/{image}:{TAG}"
                kubernetes.tool("build-image", name, ".", "-f", "docker/Dockerfile", "--target", image, *BASE)
                tasks.append(beside.submit(kubernetes.tool, "load-image", name))
            for task in tasks:
                task.result()
        kubernetes.run("kubectl", "label", "node", "--all", "--overwrite", "topology.kubernetes.io/zone=north")

    def end() -> None:
        if not os.environ.get("EVENQ_TEST_KEEP"):
            subprocess.run([folder / "down"], check=False, timeout=120, stdout=subprocess.DEVNULL)

    with shared(of_the_run(request.config) or tmp_path_factory.getbasetemp(), begin=begin, end=end):
        yield Kubernetes(folder)
