"""Peers that use an official SDK and nothing of ours: what starts each of them (`tests/compat`, and proofs).

Go and Maven build theirs into a cache folder at the first run (`EVENQ_GO_CACHE`, `EVENQ_JAVA_CACHE`, otherwise below
the user's cache), each source once. The tests say what a peer takes and prints in its own head.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

COMPAT: Final = Path(__file__).resolve().parents[2] / "compat"
BUILD_SECONDS: Final = 600
JAVA_MIN: Final = 17
JAVA_FLAGS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Starts sooner and takes less than the defaults."""


class NotInstalled(Exception):
    """A peer cannot be built here; the text says what is missing."""


def cache_of(name: str, variable: str) -> Path:
    """The folder that peers are built in."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get(variable) or caches / "evenq" / name)


def python_peer() -> list[str]:
    """The command of the peer of Python's SDK."""
    return [sys.executable, str(COMPAT / "python_sdk_peer.py")]


def go_peer() -> Path:
    """The program of the peer of Go's SDK, built from its sums. Raises NotInstalled."""
    go, source = shutil.which("go"), COMPAT / "go"
    if go is None:
        raise NotInstalled("Go is not installed (https://go.dev/dl, or apt-get install golang)")
    cache = cache_of("go", "EVENQ_GO_CACHE")
    program = cache / f"peer-{_digest([source / 'go.mod', source / 'go.sum', *sorted(source.glob('*.go'))])}"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        fresh = program.with_name(f"{program.name}.{os.getpid()}")
        command = ["nice", go, "build", "-mod=readonly", "-o", str(fresh), "."]
        done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
        if done.returncode != 0:
            raise NotInstalled(f"go could not build the client: {done.stderr.strip()[-500:]}")
        fresh.rename(program)
    return program


def java_classpath() -> str:
    """The class path of the peer of Java's SDK, built from its pom. Raises NotInstalled."""
    maven, java, compiler = (shutil.which(name) for name in ("mvn", "java", "javac"))
    if maven is None or java is None or compiler is None:
        raise NotInstalled("Maven and a JDK are not both installed (apt-get install maven openjdk-17-jdk-headless)")
    version = subprocess.run([compiler, "-version"], capture_output=True, text=True, check=True).stdout
    if int(re.findall(r"\d+", version)[0]) < JAVA_MIN:
        raise NotInstalled(f"the JDK is {version.strip()}, the client needs {JAVA_MIN} or newer")
    source = COMPAT / "java"
    cache = cache_of("java", "EVENQ_JAVA_CACHE")
    home = cache / f"peer-{_digest([source / 'pom.xml', source / 'src' / 'main' / 'java' / 'Peer.java'])}"
    if not home.exists():
        cache.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=cache))
        command = ["nice", maven, "-q", "-B", "--strict-checksums", "-f", str(source / "pom.xml")]
        done = subprocess.run(
            [*command, f"-Dbuild.folder={fresh}", "compiler:compile", "dependency:copy-dependencies"],
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            shutil.rmtree(fresh)
            raise NotInstalled(f"Maven could not build the client: {(done.stdout + done.stderr).strip()[-500:]}")
        try:
            fresh.rename(home)
        except OSError:  # another run was faster
            shutil.rmtree(fresh)
    return os.pathsep.join([str(home / "classes"), str(home / "dependency" / "*")])


def java_peer(classpath: str, folder: Path) -> list[str]:
    """The command of the peer of Java's SDK, which logs into `folder`."""
    return ["java", *JAVA_FLAGS, f"-Duser.home={folder}", f"-Drocketmq.log.root={folder}", "-cp", classpath, "Peer"]


def _digest(sources: Sequence[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
