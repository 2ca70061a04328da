"""TLS options of commands that connect. Their values replace those of the environment, which all clients read."""

from __future__ import annotations

import argparse
import os

from evenq.errors import SettingsError

_VARIABLES = {
    "tls_ca": "EVENQ_TLS_CA",
    "tls_certificate": "EVENQ_TLS_CERTIFICATE",
    "tls_key": "EVENQ_TLS_KEY",
    "tls_server_name": "EVENQ_TLS_SERVER_NAME",
}


def add_tls(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "TLS",
        "or evenqs:// before the endpoint, and the variables EVENQ_TLS_CA, _CERTIFICATE, _KEY, _SERVER_NAME, _INSECURE",
    )
    group.add_argument("--tls", action="store_true", help="use TLS; the other TLS options imply it")
    group.add_argument("--tls-ca", metavar="FILE", help="PEM file of the authority to trust (default: the system's)")
    group.add_argument(
        "--tls-certificate", metavar="FILE", help="PEM file of your own certificate, if brokers require one"
    )
    group.add_argument("--tls-key", metavar="FILE", help="PEM file of the private key of --tls-certificate")
    group.add_argument(
        "--tls-server-name", metavar="NAME", help="name in the server's certificate, if it is not the host name"
    )
    group.add_argument(
        "--tls-insecure",
        action="store_true",
        help="trust the server's first certificate; for tests only",
    )


def use_tls(options: argparse.Namespace) -> None:
    """Applies the options to the process. Raises SettingsError for an endpoint of plain text."""
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
    if "evenq://" in endpoint.lower():  # one of several endpoints decides for all
        raise SettingsError(
            f"--endpoint {endpoint} is plain text, but a TLS option was given; write evenqs://, or remove that option"
        )
    if "://" not in endpoint:
        options.endpoint = f"evenqs://{endpoint}"
