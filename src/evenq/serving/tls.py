"""TLS for a door: two PEM files become the credentials that `DoorOptions` takes."""

from __future__ import annotations

from pathlib import Path

import grpc

from evenq.errors import SettingsError

__all__ = ["server_credentials"]


def server_credentials(certificate: Path, key: Path) -> grpc.ServerCredentials:
    """Credentials from a certificate chain and its private key. Raises SettingsError for a file that cannot be read."""
    try:
        pair = (key.read_bytes(), certificate.read_bytes())
    except OSError as error:
        raise SettingsError(f"a TLS file cannot be read: {error}; give two readable PEM files") from error
    return grpc.ssl_server_credentials([pair])
