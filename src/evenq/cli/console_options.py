"""The grammar of `evenq console`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evenq.cli.grammar import add_endpoint, command
from evenq.cli.tls_options import add_tls
from evenq.cli.values import between

CONSOLE_PORT = 8080
_EXAMPLES = """\
examples:
  evenq console                                      http://127.0.0.1:8080/ for the cluster at 127.0.0.1:8081
  evenq console --endpoint broker:8081 --allow-changes
  evenq console --host 0.0.0.0 --name queue.example.com --https-certificate c.pem --https-key k.pem
  evenq console --host 0.0.0.0 --prefix /evenq --behind-https      behind a proxy that ends TLS

Users of a cluster with keys sign in with their own; the console has no rights of its own and ignores the keys of the
environment. Without --allow-changes it only shows.
"""


def add_console(commands: Any) -> None:
    console = command(
        commands,
        "console",
        "show a cluster in the browser",
        "console",
        "run",
        examples=_EXAMPLES,
        remote=False,
        extras="cli,console",
    )
    add_endpoint(console)
    console.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    console.add_argument(
        "--port", type=between(0, 65_535), default=CONSOLE_PORT, help="port; 0 = any free port (default %(default)s)"
    )
    console.add_argument(
        "--allow-changes", action="store_true", help="let users send messages and change what their grants allow"
    )
    console.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="HOST",
        help="host name under which browsers reach it; may be repeated (IP addresses and localhost always work)",
    )
    console.add_argument("--prefix", default="", metavar="PATH", help="path of the console behind a proxy, as /evenq")
    console.add_argument("--https-certificate", type=Path, metavar="FILE", help="PEM file: serve HTTPS")
    console.add_argument("--https-key", type=Path, metavar="FILE", help="PEM file of the certificate's key")
    console.add_argument("--behind-https", action="store_true", help="a proxy serves HTTPS: cookies are for HTTPS only")
    console.add_argument(
        "--log-level",
        default="WARNING",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        help="lowest level of log lines on standard error (default %(default)s)",
    )
    add_tls(console)
