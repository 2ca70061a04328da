"""Our HTTP/2 server under other people's conformance programs: h2spec, and the interop client of gRPC's Go library.

`go` builds both into a cache folder at the first run (`EVENQ_GO_CACHE`, else below the user's cache). Without Go the
tests are skipped; not in CI (`CI` or `EVENQ_TEST_ALL` is set): there they fail. What h2spec finds fault with stands in
docs/internals/front.md.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from evenq_proofs.peer import Peer

HERE = Path(__file__).parent
GO = HERE / "conformance_go"
BUILD_SECONDS = 900
PROGRAMS = {
    "h2spec": "github.com/summerwind/h2spec/cmd/h2spec",
    "interop_client": "google.golang.org/grpc/interop/client",
}
pytestmark = pytest.mark.timeout(BUILD_SECONDS + 300)

CASES = (
    "empty_unary", "large_unary", "client_streaming", "server_streaming", "ping_pong", "empty_stream",
    "cancel_after_begin", "cancel_after_first_response", "timeout_on_sleeping_server", "custom_metadata",
    "status_code_and_message", "special_status_message", "unimplemented_method", "unimplemented_service",
)  # fmt: skip


@pytest.fixture(scope="session")
def programs(go_cache: Path, lacking: Callable[[str], NoReturn]) -> Path:
    """The folder with both, built from their sums."""
    go = shutil.which("go")
    if go is None:
        lacking("Go is not installed (https://go.dev/dl, or apt-get install golang)")
    sums = b"".join((GO / name).read_bytes() for name in ("go.mod", "go.sum", "tools.go"))
    home = go_cache / f"conformance-{hashlib.sha256(sums).hexdigest()[:16]}"
    home.mkdir(parents=True, exist_ok=True)
    for name, package in PROGRAMS.items():
        if (home / name).exists():
            continue
        fresh = home / f"{name}.{os.getpid()}"
        command = ["nice", go, "build", "-mod=readonly", "-o", str(fresh), package]
        done = subprocess.run(command, cwd=GO, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
        if done.returncode != 0:
            lacking(f"go could not build {name}: {done.stderr.strip()[-500:]}")
        fresh.rename(home / name)
    return home


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    log_path = tmp_path_factory.mktemp("interop") / "server.log"
    server = Peer([sys.executable, str(HERE / "interop_server.py")], log_path=log_path)
    try:
        server.wait(bool)
        yield int(server.said[0]["port"])
    finally:
        server.end()
    assert "Traceback" not in log_path.read_text()


@pytest.mark.parametrize("case", CASES)
def test_the_interop_client_of_grpc_go_is_content(programs: Path, port: int, case: str) -> None:
    command = [str(programs / "interop_client"), f"-server_port={port}", "-server_host=127.0.0.1", f"-test_case={case}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-1_000:]


@pytest.mark.parametrize("part", ["generic", "http2", "hpack"])
def test_h2spec_is_content(programs: Path, port: int, part: str) -> None:
    """Header fields of 16,000 bytes: five of them, as it sends them, are more than one frame of ours may have."""
    command = [
        str(programs / "h2spec"), part, "-h", "127.0.0.1", "-p", str(port), "-o", "5", "--max-header-length", "16000",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    result = re.search(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", done.stdout)
    assert result is not None, done.stdout[-500:] + done.stderr[-500:]
    print(f"h2spec {part}: {result.group(0)}")
    assert result.group(4) == "0", done.stdout[-3_000:]
