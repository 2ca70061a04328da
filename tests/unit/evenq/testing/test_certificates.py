"""Certificates made on the spot: who signs, who may read the keys, and what is missing without the package."""

import contextlib
import ssl
import stat
import sys
from pathlib import Path

import pytest

from evenq.errors import SettingsError
from evenq.testing.certificates import Authority, here


def test_a_pair_belongs_together_is_signed_by_its_authority_and_names_its_hosts(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    pair = authority.sign("server", hosts=here())
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(pair.certificate, pair.key)
    trusting = ssl.create_default_context(cafile=str(authority.ca))
    assert trusting.cert_store_stats()["x509_ca"] == 1
    assert {"localhost", "127.0.0.1", "::1"} <= set(here())


def test_certificates_pass_the_strict_check_that_python_3_13_makes_by_default(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("server", hosts=["localhost"])
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(pair.certificate, pair.key)
    trusting = ssl.create_default_context(cafile=str(authority.ca))
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(back, there, server_hostname="localhost")
    server = served.wrap_bio(there, back, server_side=True)
    for side in (client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert client.getpeercert()["subjectAltName"] == (("DNS", "localhost"),)


def test_only_their_owner_may_read_keys(tmp_path: Path) -> None:
    pair = Authority(tmp_path / "tls").sign("server", hosts=["localhost"])
    assert stat.S_IMODE(pair.key.stat().st_mode) == 0o600


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(SettingsError, match=r'pip install "evenq\[tls\]"'):
        Authority(tmp_path / "tls")
