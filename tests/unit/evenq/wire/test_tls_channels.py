"""What channels with TLS are made from, while files change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from evenq.testing.certificates import Authority
from evenq.wire.tls import Tls
from evenq.wire.tls_channels import LOOK_MS, TlsChannels


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
