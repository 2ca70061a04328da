"""An API server of Kubernetes that knows Leases and nothing else, over HTTP on loopback, for tests.

Objects have a `resourceVersion` that grows with every write of the server; updates compare it; watches begin at a
version, or with what there is, and a version below `oldest` is answered with 410 in the stream, as the real one does.
Tests steer what goes wrong: `status_of` answers instead, `lose_answers` carries a write out and hangs up, `pause` says
nothing, `end_watches` hangs up on them. `python -m evenq_proofs.lease_api PORT FILE` is one that may be killed: it
answers a write once its objects are in the file, synced; each write is a line of FILE.writes before that.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from evenq.runtime.clock import SystemClock
from evenq.runtime.closing import Closing

HISTORY_MAX = 2_000
"""Writes that watches can begin behind; older ones have to read again."""


class LeaseApi(Closing):
    """See the module. Serves until `close`."""

    def __init__(self, *, port: int = 0, path: Path | None = None) -> None:
        """`path`: where the objects are kept from one start to the next; None: in memory."""
        self._path = path
        self.changed = threading.Condition()
        self.leases: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.oldest = 0
        """Versions below it are too old for a watch."""
        self.history: list[tuple[int, str, str, dict[str, Any]]] = []
        """Version, kind of event, path and object."""
        self.calls: list[tuple[str, str]] = []
        """Verb (WATCH among them) and query."""
        self.status_of: dict[str, int] = {}
        """Answer to a verb instead of doing it."""
        self.lose_answers = 0
        """So many writes are carried out and not answered."""
        self.paused = False
        self.watch_round = 0
        self.watching = 0
        """Open watches."""
        if path is not None and path.exists():
            kept = json.loads(path.read_bytes())
            self.leases, self.version = kept["leases"], kept["version"]
            self.oldest = self.version
        self._server = ThreadingHTTPServer(("127.0.0.1", port), type("Bound", (_Handler,), {"api": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def kubeconfig(self, folder: Path) -> Path:
        """A file by which clients find it."""
        return kubeconfig_of(folder / "kubeconfig", self._server.server_address[1])

    def put(self, path: str, lease: dict[str, Any], kind: str = "MODIFIED") -> dict[str, Any]:
        """Write an object as another process does."""
        with self.changed:
            self.version += 1
            lease = json.loads(json.dumps(lease))
            lease["metadata"]["resourceVersion"] = str(self.version)
            if kind == "DELETED":
                self.leases.pop(path, None)
            else:
                self.leases[path] = lease
            self.history.append((self.version, kind, path, lease))
            if len(self.history) > HISTORY_MAX:
                del self.history[: HISTORY_MAX // 2]
                self.oldest = self.history[0][0]
            self._keep(lease)
            self.changed.notify_all()
            return lease

    def end_watches(self) -> None:
        """Hang up on all of them."""
        with self.changed:
            self.watch_round += 1
            self.changed.notify_all()

    def pause(self, *, paused: bool = True) -> None:
        """Say nothing any more, or speak again."""
        with self.changed:
            self.paused = paused
            self.changed.notify_all()

    def _keep(self, written: dict[str, Any]) -> None:
        """What was written is in the file before it is reported; so is when (a clock that all processes share)."""
        if self._path is None:
            return
        with writes_of(self._path).open("a", encoding="utf-8") as file:
            # The newline in front: a line that a kill has torn must not spoil the next one.
            file.write("\n" + json.dumps({"at_ms": SystemClock().monotonic_ms(), "lease": written}))
        new = self._path.with_suffix(".new")
        with new.open("w", encoding="utf-8") as file:
            json.dump({"version": self.version, "leases": self.leases}, file)
            file.flush()
            os.fsync(file.fileno())
        new.rename(self._path)

    def close(self) -> None:
        """End it."""
        self.pause(paused=False)
        self.end_watches()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    api: LeaseApi
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if "watch" in query:
            self._watch(url.path, query)
        elif not self._refused("GET", ""):
            with self.api.changed:
                lease = self.api.leases.get(url.path)
            self._answer(404, {"kind": "Status"}) if lease is None else self._answer(200, lease)

    def do_POST(self) -> None:
        body = self._body()
        if not self._refused("POST", ""):
            self._write(f"{self.path}/{body['metadata']['name']}", body, "ADDED")

    def do_PUT(self) -> None:
        body = self._body()
        if not self._refused("PUT", ""):
            self._write(self.path, body, "MODIFIED")

    def _write(self, path: str, body: dict[str, Any], kind: str) -> None:
        api = self.api
        with api.changed:
            before = api.leases.get(path)
            if (before is None) != (kind == "ADDED"):
                return self._answer(404 if before is None else 409, {"kind": "Status"})
            if before is not None and before["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
                return self._answer(409, {"kind": "Status"})
            written = api.put(path, body, kind)
            lost, api.lose_answers = api.lose_answers > 0, max(0, api.lose_answers - 1)
        if lost:
            self.close_connection = True
            return None
        return self._answer(201 if kind == "ADDED" else 200, written)

    def _watch(self, path: str, query: dict[str, str]) -> None:
        if self._refused("WATCH", json.dumps(query)):
            return
        api = self.api
        wanted = f"{path}/{query['fieldSelector'].removeprefix('metadata.name=')}"
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        self.wfile.flush()
        with api.changed:
            at, began = int(query.get("resourceVersion") or 0), api.watch_round
            if at and at < api.oldest:
                self._tell("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})
                return
            if not at:
                at = api.version
                if wanted in api.leases:
                    self._tell("ADDED", api.leases[wanted])
            api.watching += 1
            try:
                while api.watch_round == began:
                    for version, kind, changed, lease in api.history:
                        if version > at and changed == wanted and not api.paused:
                            at = version
                            self._tell(kind, lease)
                    api.changed.wait(5)
            except OSError:
                return
            finally:
                api.watching -= 1

    def _tell(self, kind: str, lease: dict[str, Any]) -> None:
        line = json.dumps({"type": kind, "object": lease}).encode() + b"\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
        self.wfile.flush()

    def _body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return body

    def _refused(self, verb: str, query: str) -> bool:
        with self.api.changed:
            self.api.calls.append((verb, query))
            while self.api.paused:
                self.api.changed.wait(5)
            status = self.api.status_of.get(verb, 0)
        if status:
            self._answer(status, {"kind": "Status", "code": status})
        return bool(status)

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def writes_of(path: Path) -> Path:
    """Every write of an API server that keeps its objects in `path`: lines of `at_ms` and
    `lease`, of which some may be torn, and a line may tell of a write that a kill has undone.
    """
    return path.with_suffix(".writes")


def kubeconfig_of(path: Path, port: int) -> Path:
    """A file by which clients find an API server at a port of this machine."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "shop"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    path.write_text(json.dumps(config))
    return path


if __name__ == "__main__":
    with LeaseApi(port=int(sys.argv[1]), path=Path(sys.argv[2])):
        threading.Event().wait()
