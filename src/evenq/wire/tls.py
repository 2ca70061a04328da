"""TLS of a client: `Tls` contains what is trusted and presented, `TlsFiles` reads the files and detects their changes.

The SDK and the command line make a `Tls` from arguments and `EVENQ_TLS_*`, servers from their setting `tls` for calls
to each other. Always true: files that are not valid never replace valid ones.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from evenq.errors import SettingsError
from evenq.runtime.private_files import warn_of_readers

log = logging.getLogger(__name__)

CA_VARIABLE, NAME_VARIABLE, INSECURE_VARIABLE = "EVENQ_TLS_CA", "EVENQ_TLS_SERVER_NAME", "EVENQ_TLS_INSECURE"
CERTIFICATE_VARIABLE, KEY_VARIABLE = "EVENQ_TLS_CERTIFICATE", "EVENQ_TLS_KEY"
FILE_BYTES_MAX = 4 << 20
_HASHED = re.compile(r"[0-9a-f]{8}\.[0-9]+")
"""Name by which OpenSSL finds a certificate in a folder; the other files there are links to the same certificates."""
_SWITCH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


class Hints(NamedTuple):
    """Names of the settings in errors, so that an error names what its reader can change."""

    ca: str
    certificate: str
    server_name: str
    speak_tls: str
    speak_plain: str


CLIENT_HINTS = Hints(
    ca="ca (tls=evenq.Tls(ca=...), EVENQ_TLS_CA or --tls-ca)",
    certificate="certificate and key (tls=evenq.Tls(...), EVENQ_TLS_CERTIFICATE and EVENQ_TLS_KEY, or "
    "--tls-certificate and --tls-key)",
    server_name="server_name (tls=evenq.Tls(server_name=...), EVENQ_TLS_SERVER_NAME or --tls-server-name)",
    speak_tls="evenqs:// (or tls=evenq.Tls(ca=...), --tls-ca)",
    speak_plain="evenq://",
)
SERVER_HINTS = Hints(
    ca="tls.peer_ca",
    certificate="tls.certificate and tls.key",
    server_name="tls.peer_server_name",
    speak_tls="tls.peers, or evenqs:// in front of the address",
    speak_plain="evenq://",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Settings of a client's TLS. All paths are PEM files, read again when they change. Raises SettingsError."""

    ca: str | Path = ""
    """Authorities that must have signed servers' certificates; empty = the system's."""
    certificate: str | Path = ""
    """The client's own certificate chain, for servers that require one; with `key`."""
    key: str | Path = ""
    """Its private key, without a password."""
    server_name: str = ""
    """Name that the server's certificate must contain; empty = the host of the address."""
    insecure: bool = False
    """True: trust the certificate that the server presents at the first connection, whatever its signer and name.
    For tests: a man in the middle is not detected. An expired certificate is still rejected.
    """
    hints: Hints = field(default=CLIENT_HINTS, repr=False, compare=False)
    """Names of these settings in errors."""

    def __post_init__(self) -> None:
        if bool(str(self.certificate)) != bool(str(self.key)):
            missing = "key" if str(self.certificate) else "certificate"
            raise SettingsError(f"TLS: {missing} is empty; give both certificate and key, or neither")
        if self.insecure and (str(self.ca) or self.server_name):
            raise SettingsError("TLS: insecure checks neither ca nor server_name; leave out insecure, or these two")

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> Self | None:
        """Returns the settings of `EVENQ_TLS_*`; None if none of them is set. Raises SettingsError."""
        ca, certificate, key, name, insecure = (
            environ.get(variable, "").strip()
            for variable in (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE, NAME_VARIABLE, INSECURE_VARIABLE)
        )
        if not (ca or certificate or key or name or insecure):
            return None
        if insecure and insecure.lower() not in _SWITCH:
            raise SettingsError(f"{INSECURE_VARIABLE} is {insecure!r}; give true or false")
        unchecked = _SWITCH.get(insecure.lower(), False)
        if not (ca or certificate or key or name or unchecked):
            return None
        return cls(ca=ca, certificate=certificate, key=key, server_name=name, insecure=unchecked)


@dataclass(frozen=True, slots=True)
class Pem:
    """Contents of a `Tls`'s files."""

    ca: bytes | None
    """None: the system's authorities cannot be found, so gRPC uses its own."""
    certificate: bytes | None
    key: bytes | None = field(repr=False)


class TlsFiles:
    """The files of one `Tls`."""

    def __init__(self, tls: Tls) -> None:
        """Raises SettingsError for files that cannot be read or are not valid."""
        self.tls = tls
        self._paths = [Path(path) for path in (tls.ca, tls.certificate, tls.key) if str(path)]
        self._stamp = self._look()
        self.pem = self._read()

    def refresh(self) -> bool:
        """Checks whether the files changed; True: `pem` is new. Invalid files are logged once and change nothing."""
        stamp = self._look()
        if stamp == self._stamp:
            return False
        # Kept also for invalid files, so they are logged once and not at each check.
        self._stamp = stamp
        try:
            pem = self._read()
        except SettingsError as error:
            log.warning("the changed TLS files are not used, the previous ones are: %s", error)
            return False
        if pem == self.pem:
            return False
        self.pem = pem
        return True

    def _look(self) -> tuple[object, ...]:
        return tuple(stamp_of(path) for path in self._paths)

    def _read(self) -> Pem:
        tls = self.tls
        certificate, key = read_pair(Path(tls.certificate), Path(tls.key)) if str(tls.key) else (None, None)
        return Pem(read_authorities(Path(tls.ca)) if str(tls.ca) else _system_authorities(), certificate, key)


def read_pair(certificate: Path, key: Path) -> tuple[bytes, bytes]:
    """Returns the contents of both files, checked to belong together. Raises SettingsError."""
    for _ in range(3):  # the files may change between the reads and the check; then the pair is read again
        try:
            pair = _content(certificate), _content(key)
            warn_of_readers(key)
            # Without `password` OpenSSL prompts for one at the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
        except (ssl.SSLError, ValueError) as error:
            raise SettingsError(
                f"certificate {certificate} and key {key} cannot be used for TLS ({error}): they must be PEM, belong "
                "together, and the key must have no password"
            ) from error
        except OSError as error:
            raise _unreadable(error) from error
        if pair == (_content(certificate), _content(key)):
            return pair
    raise SettingsError(f"certificate {certificate} and key {key} change continuously; write them once")


def read_authorities(path: Path) -> bytes:
    """Returns the content of a file of authorities' certificates. Raises SettingsError if it contains none."""
    content = _content(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(f"{path} contains no certificates of an authority ({error}); give a PEM file") from error
    return content


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(error) from error
    if len(content) > FILE_BYTES_MAX:
        raise SettingsError(f"TLS file {path} has more than {FILE_BYTES_MAX} bytes; give a PEM file")
    return content


def _unreadable(error: OSError) -> SettingsError:
    return SettingsError(f"a TLS file cannot be read: {error}; give readable PEM files")


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Returns a value that changes with the file, also if a link to it is moved; None: the file is not accessible."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _system_authorities() -> bytes | None:
    """Returns the authorities that OpenSSL trusts: its file, or its folder if it has no file, as some Python builds."""
    paths = ssl.get_default_verify_paths()  # also what SSL_CERT_FILE and SSL_CERT_DIR name
    files = [Path(paths.cafile)] if paths.cafile else []
    try:
        if not files and paths.capath:
            files = sorted(file for file in Path(paths.capath).iterdir() if _HASHED.fullmatch(file.name))
        return b"\n".join(file.read_bytes() for file in files) or None
    except OSError:
        return None
