"""`evenq up --tls`: certificates for one start, and how each client uses them.

Plain text is off then, as it should be in production, and the servers call each other with TLS, too. The authority is
made anew at each start, in the data folder's `tls` or in a folder that goes with the process.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from tempfile import mkdtemp

from evenq.serving.tls import TlsSettings
from evenq.testing.certificates import Authority, CertificatePair, here

__all__ = ["Certificates", "how_to", "make_certificates"]


@dataclass(frozen=True, slots=True)
class Certificates:
    """What the servers of one `evenq up --tls` show and trust."""

    ca: Path
    pair: CertificatePair

    def settings(self, port: int = 0) -> TlsSettings:
        """Of one server."""
        return TlsSettings(port=port, certificate=self.pair.certificate, key=self.pair.key, peers=True, peer_ca=self.ca)


def make_certificates(data: Path | None, stack: AsyncExitStack) -> Certificates:
    """In `data`/tls, or in a folder that `stack` removes. Raises SettingsError without the package `cryptography`."""
    folder = Path(mkdtemp(prefix="evenq-up-tls-")) if data is None else data / "tls"
    if data is None:
        stack.callback(_remove, folder)
    authority = Authority(folder.resolve())
    return Certificates(authority.ca, authority.sign("server", hosts=here()))


def how_to(ca: Path, endpoint: str) -> list[str]:
    """Lines for people: what each client needs to talk to `endpoint` (`evenqs://host:port`, or several with `;`)."""
    shell = quote(str(ca))
    return [
        f"evenq commands   export EVENQ_ENDPOINT={quote(endpoint)} EVENQ_TLS_CA={shell}",
        f'Python (evenq)   evenq.Producer(endpoint="{endpoint}", tls=evenq.Tls(ca="{ca}"))',
        f'Spark            .option("endpoints", "{endpoint}").option("tlsCa", "{ca}")',
        f"RocketMQ SDKs    endpoint {endpoint.replace('evenqs://', '')}, and",
        "  Java, Go, C#   nothing: they speak TLS and, by themselves, trust any certificate",
        f"  Python         tls_enable=True, with GRPC_DEFAULT_SSL_ROOTS_FILE_PATH={shell}",
        f"  Node.js        sslEnabled: true, with NODE_EXTRA_CA_CERTS={shell}",
    ]


def _remove(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
