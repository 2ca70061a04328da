"""The door to the Kubernetes API, against a server of our own that speaks just enough of it."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("kubernetes")

from cryptography import x509

from evenq.errors import ConnectionFailed, Forbidden, NotFound, PreconditionFailed
from evenq.serving.kubernetes.api import Expired, KubernetesApi
from evenq.testing.certificates import Authority


class Handler(BaseHTTPRequestHandler):
    """One path for each thing that can happen."""

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if url.path.startswith("/status/"):
            self._answer(int(url.path.rpartition("/")[2]), {"kind": "Status"})
        elif url.path == "/nonsense":
            self._raw(200, b"<html>")
        elif "watch" in query:
            gone = {"type": "ERROR", "object": {"code": 410, "message": "too old"}}
            events = [{"type": "ADDED", "object": {"n": 1, "version": query["resourceVersion"]}}, {"type": "BOOKMARK"}]
            lines = [*events, *([gone] if url.path == "/old" else [])]
            self._raw(200, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        elif url.path == "/pages":
            more = "" if "continue" in query else "next"
            self._answer(200, {"items": [{"n": len(query)}], "metadata": {"continue": more, "resourceVersion": "7"}})
        else:
            self._answer(200, {"authorization": self.headers.get("Authorization")})

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(409 if b"conflict" in body else 200, {"got": json.loads(body)})

    def do_PATCH(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, {"type": self.headers["Content-Type"]})

    def _answer(self, status: int, body: object) -> None:
        self._raw(status, json.dumps(body).encode())

    def _raw(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(folder: Path, monkeypatch: pytest.MonkeyPatch, *, tls: bool = False) -> Iterator[KubernetesApi]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_address[1]}"
    cluster = {"server": address}
    if tls:
        authority = Authority(folder)
        pair = authority.sign("server", hosts=["127.0.0.1"])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        cluster = {"server": address.replace("http", "https"), "certificate-authority": str(authority.ca)}
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    (folder / "config").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(folder / "config"))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(folder / "config"))
    try:
        yield KubernetesApi()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesApi]:
    with serving(tmp_path, monkeypatch) as made:
        yield made


def test_calls_carry_the_token_and_bodies_and_answers_are_json(api: KubernetesApi) -> None:
    assert api.namespace == "default"
    assert api.call("GET", "/whatever") == {"authorization": "Bearer secret"}
    assert api.call("PUT", "/whatever", {"a": 1}) == {"got": {"a": 1}}
    assert api.call("PATCH", "/whatever", {"a": 1}) == {"type": "application/merge-patch+json"}


def test_an_authority_without_key_identifiers_is_trusted_with_each_version_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """urllib3 sets VERIFY_X509_STRICT with Python 3.13, which refuses authorities that kubectl accepts."""
    add = x509.CertificateBuilder.add_extension
    without = (x509.AuthorityKeyIdentifier, x509.KeyUsage)
    monkeypatch.setattr(
        x509.CertificateBuilder,
        "add_extension",
        lambda self, it, critical: self if isinstance(it, without) else add(self, it, critical),
    )
    with serving(tmp_path, monkeypatch, tls=True) as api:
        assert api.call("PUT", "/whatever", {"a": 1}) == {"got": {"a": 1}}


@pytest.mark.parametrize(
    ("status", "error"),
    [(404, NotFound), (403, Forbidden), (401, Forbidden), (410, Expired), (500, ConnectionFailed)],
)
def test_each_refusal_has_its_error(api: KubernetesApi, status: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        api.call("GET", f"/status/{status}")


def test_a_conflict_nonsense_and_silence_are_told_apart(api: KubernetesApi) -> None:
    with pytest.raises(PreconditionFailed):
        api.call("PUT", "/x", {"conflict": True})
    with pytest.raises(ConnectionFailed, match="invalid JSON"):
        api.call("GET", "/nonsense")


def test_lists_are_read_page_by_page_and_watches_line_by_line(api: KubernetesApi) -> None:
    objects, version = api.listed("/pages")
    assert (len(objects), version) == (2, "7")
    events = list(api.watched("/fresh", "7"))
    assert events == [("ADDED", {"n": 1, "version": "7"}), ("BOOKMARK", {})]
    with pytest.raises(Expired):
        list(api.watched("/old", "7"))


def test_without_any_access_the_error_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    with pytest.raises(ConnectionFailed, match="no access to Kubernetes"):
        KubernetesApi().call("GET", "/x")
