"""`evenq up --tls`: certificates for one start, and the settings of clients.

There is no port of plain text, and the servers call each other with TLS. Each start creates a new authority, in the
folder `tls` of the data folder, or in a folder that is removed at the end.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from tempfile import mkdtemp

from evenq.serving.tls import TlsSettings
from evenq.testing.certificates import Authority, CertificatePair, here


@dataclass(frozen=True, slots=True)
class Certificates:
    """The certificate and the trusted authority of all servers of one start."""

    ca: Path
    pair: CertificatePair

    def settings(self, port: int = 0) -> TlsSettings:
        return TlsSettings(port=port, certificate=self.pair.certificate, key=self.pair.key, peers=True, peer_ca=self.ca)


def make_certificates(data: Path | None, stack: AsyncExitStack) -> Certificates:
    """Creates them in `data`/tls, or in a folder that `stack` removes. Raises SettingsError without `cryptography`."""
    folder = Path(mkdtemp(prefix="evenq-up-tls-")) if data is None else data / "tls"
    if data is None:
        stack.callback(_remove, folder)
    authority = Authority(folder.resolve())
    return Certificates(authority.ca, authority.sign("server", hosts=here()))


def how_to(ca: Path, endpoint: str) -> list[str]:
    """Returns lines with the settings of each client for `endpoint` (`evenqs://host:port`, or several with `;`)."""
    shell = quote(str(ca))
    return [
        f"evenq commands   export EVENQ_ENDPOINT={quote(endpoint)} EVENQ_TLS_CA={shell}",
        f'Python (evenq)   evenq.Producer(endpoint="{endpoint}", tls=evenq.Tls(ca="{ca}"))',
        f'Spark            .option("endpoints", "{endpoint}").option("tlsCa", "{ca}")',
        f"RocketMQ SDKs    endpoint {endpoint.replace('evenqs://', '')}, and",
        "  Java, Go, C#   nothing: they use TLS and trust any certificate by default",
        f"  Python         tls_enable=True, with GRPC_DEFAULT_SSL_ROOTS_FILE_PATH={shell}",
        f"  Node.js        sslEnabled: true, with NODE_EXTRA_CA_CERTS={shell}",
    ]


def _remove(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
