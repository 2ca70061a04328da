"""Where helm and a cluster come from: PATH, or the one-node test cluster beside the project (K8S_TOOLS)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))  # evenq_helm: the cluster and the demo's pods
ROOT = Path(__file__).resolve().parents[2]


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
        pytest.skip("no helm on PATH and no K8S_TOOLS beside the project")
    return found


@pytest.fixture(scope="session")
def cluster_tools() -> Path:
    """The scripts of the test cluster."""
    folder = tools()
    if folder is None:
        pytest.skip("no test cluster beside the project; set K8S_TOOLS")
    install(folder)
    return folder
