"""Throw-away certificates: a temporary authority, and the certificates that it signs for servers and clients.

For tests and for `evenq up --tls`; a real cluster gets its certificates from its platform (cert-manager, a company's
authority). Needs the package `cryptography`, which `evenq[tls]` installs.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenq.errors import SettingsError

if TYPE_CHECKING:
    from cryptography import x509

__all__ = ["Authority", "CertificatePair", "here"]

DAYS = 30
_CLOCKS_DIFFER = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class CertificatePair:
    certificate: Path
    key: Path


class Authority:
    """Authority that signs certificates. All files are in one folder; only their owner can read the keys."""

    def __init__(self, folder: Path, *, name: str = "evenq throw-away authority") -> None:
        """Creates a new authority in `folder`. Raises SettingsError without the package `cryptography`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._certificate, self._key = _issue(name, None, hosts=(), days=(0, DAYS), authority=True)
        self.ca = folder / "ca.pem"
        """The authority's own certificate, which clients must trust."""
        _write(self.ca, _pem(self._certificate))

    def sign(self, name: str, *, hosts: Iterable[str] = (), days: tuple[int, int] = (0, DAYS)) -> CertificatePair:
        """Writes a certificate for `hosts` (names and addresses) as NAME.pem and NAME-key.pem; an old pair is replaced.

        `days`: begin and end of its validity, in days from now.
        """
        certificate, key = _issue(name, (self._certificate, self._key), hosts=hosts, days=days, authority=False)
        pair = CertificatePair(self.folder / f"{name}.pem", self.folder / f"{name}-key.pem")
        _write(pair.key, _key_pem(key))
        _write(pair.certificate, _pem(certificate) + _pem(self._certificate))
        return pair


def here() -> list[str]:
    """Returns the names and addresses of this machine."""
    return list(dict.fromkeys(["localhost", "127.0.0.1", "::1", socket.gethostname()]))


def _issue(
    name: str, issuer: tuple[Any, Any] | None, *, hosts: Iterable[str], days: tuple[int, int], authority: bool
) -> tuple[x509.Certificate, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        raise SettingsError(
            'certificates are made with the package cryptography, which is not installed; run: pip install "evenq[tls]"'
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    parent, signing = issuer if issuer is not None else (None, key)
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if parent is None else parent.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]) - _CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
    )
    if authority:
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(usage, critical=True)
    names = [_general_name(host) for host in hosts]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signing, hashes.SHA256()), key


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    content: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return content


def _write(path: Path, content: bytes) -> None:
    """Replaces a file atomically: a server that reads it meanwhile gets the old one or the new one."""
    fresh = path.with_name(path.name + ".new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    fresh.replace(path)
