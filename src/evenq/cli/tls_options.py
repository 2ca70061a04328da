"""The options of TLS that each command with an access point has, and `evenq up --tls`.

What they say goes into the environment, where all clients of the process look; an option goes before what stands there.
"""

from __future__ import annotations

import argparse
import os

from evenq.errors import SettingsError

__all__ = ["add_tls", "use_tls"]

_VARIABLES = {
    "tls_ca": "EVENQ_TLS_CA",
    "tls_certificate": "EVENQ_TLS_CERTIFICATE",
    "tls_key": "EVENQ_TLS_KEY",
    "tls_server_name": "EVENQ_TLS_SERVER_NAME",
}


def add_tls(parser: argparse.ArgumentParser) -> None:
    """Options of a command that connects."""
    group = parser.add_argument_group(
        "TLS",
        "or evenqs:// in front of the endpoint, and EVENQ_TLS_CA, _CERTIFICATE, _KEY, _SERVER_NAME, _INSECURE",
    )
    group.add_argument("--tls", action="store_true", help="use TLS; the other TLS options imply it")
    group.add_argument("--tls-ca", metavar="FILE", help="PEM file of the authority to trust (default: the system's)")
    group.add_argument(
        "--tls-certificate", metavar="FILE", help="PEM file of your own certificate, if brokers require one"
    )
    group.add_argument("--tls-key", metavar="FILE", help="PEM file of the private key of --tls-certificate")
    group.add_argument(
        "--tls-server-name", metavar="NAME", help="name in the server's certificate, if not the host name"
    )
    group.add_argument(
        "--tls-insecure",
        action="store_true",
        help="trust the first certificate that the server presents; for tests only",
    )


def use_tls(options: argparse.Namespace) -> None:
    """Let the options count. Raises SettingsError for an endpoint that says plain text."""
    given = {name: getattr(options, name, None) for name in _VARIABLES}
    insecure = getattr(options, "tls_insecure", False)
    for name, value in given.items():
        if value:
            os.environ[_VARIABLES[name]] = value
    if insecure:
        for variable in ("EVENQ_TLS_CA", "EVENQ_TLS_SERVER_NAME"):
            os.environ.pop(variable, None)
        os.environ["EVENQ_TLS_INSECURE"] = "true"
    elif given["tls_ca"] or given["tls_server_name"]:
        os.environ.pop("EVENQ_TLS_INSECURE", None)
    endpoint = getattr(options, "endpoint", None)
    if endpoint is None or not (insecure or any(given.values()) or getattr(options, "tls", False)):
        return
    if "evenq://" in endpoint.lower():  # in front of any of several: it counts for all
        raise SettingsError(
            f"--endpoint {endpoint} is plain text, an option of TLS asks for TLS; write evenqs://, or neither"
        )
    if "://" not in endpoint:
        options.endpoint = f"evenqs://{endpoint}"
