"""What channels with TLS are made from, while files change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from evenq.testing.certificates import Authority
from evenq.wire.tls import Tls, TlsFiles
from evenq.wire.tls_channels import LOOK_MS, TlsChannels
from evenq.wire.tls_diagnosis import explain, worth_asking


def test_a_version_never_stands_for_older_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first channel after a change is the one that finds it: it must not have the files before under the version
    of the new ones, by which it would be kept for good.
    """
    made: list[bytes | None] = []

    def credentials(authorities: bytes | None, *_: Any) -> str:
        made.append(authorities)
        return "credentials"

    monkeypatch.setattr(grpc, "ssl_channel_credentials", credentials)
    now = [0]
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    channels = TlsChannels(Tls(ca=old.ca), now_ms=lambda: now[0])
    before = channels.secure("a:1").version
    contents = new.ca.read_bytes()
    old.ca.write_bytes(contents)
    now[0] += LOOK_MS
    assert channels.secure("b:1").version > before
    assert made[-1] == contents
    assert channels.secure("a:1").version == channels.version


@pytest.mark.parametrize("host", ["a" * 70 + ".example", "a..b"])
def test_a_host_that_cannot_be_one_is_an_error_of_the_connection(host: str, tmp_path: Path) -> None:
    channels = TlsChannels(Tls(insecure=True), now_ms=lambda: 0)
    with pytest.raises(OSError, match="cannot be the name of a host"):
        channels.secure(f"{host}:1")
    assert explain(f"{host}:1", channels.files) == ""


def test_a_folder_of_authorities_counts_where_the_system_has_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "own")
    folder = tmp_path / "certs"
    folder.mkdir()
    (folder / "0a1b2c3d.0").write_bytes(authority.ca.read_bytes())
    (folder / "README").write_text("no certificate")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(folder))
    assert TlsFiles(Tls()).pem.ca == authority.ca.read_bytes()
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "missing"))
    assert TlsFiles(Tls()).pem.ca is None


def test_a_refusal_is_looked_into_where_the_name_may_have_another_address() -> None:
    refused = "failed to connect to all addresses; last error: UNKNOWN: ipv6:%5B::1%5D:8081: Connection refused"
    assert worth_asking(refused, "localhost:8081")
    assert not worth_asking(refused, "[::1]:8081")
    assert not worth_asking(refused, "127.0.0.1:8081")
    assert not worth_asking("failed to connect to all addresses; last error: Timeout", "localhost:8081")
