"""The reason why a connection to a listening server fails: one sentence that names the fix.

gRPC reports "failed to connect to all addresses ... Socket closed" for most mistakes with TLS. After such a failure the
net calls `explain`, which makes another handshake with Python's `ssl`, whose errors can be distinguished. Blocks for
about `PROBE_MS` per handshake; called in a thread.
"""

from __future__ import annotations

import ssl
from ipaddress import ip_address

from evenq.wire.addresses import host_and_port
from evenq.wire.blocking_socket import CONNECT_MS
from evenq.wire.tls import CLIENT_HINTS, Hints, TlsFiles
from evenq.wire.tls_channels import client_context, handshake, names_of

PROBE_MS = CONNECT_MS
ANSWER_MS = 300  # a server that misses a client's certificate reports it after the handshake
_PLAIN_ANSWERS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_MESSAGE", "RECORD_LAYER_FAILURE"})
_EXPIRED, _TOO_EARLY = 10, 9  # of OpenSSL's X509_V_ERR_*
_NAME_CODES = frozenset({62, 64})


def worth_asking(reason: str, target: str) -> bool:
    """Returns whether TLS may be the reason of a failed call: a server listens, and the connection failed.

    gRPC's `reason` is that of one address. A name has several: the IPv6 address of `localhost` may refuse while a
    server listens at the other one.
    """
    if "failed to connect to all addresses" not in reason or "imeout" in reason:
        return False
    return "refused" not in reason or not _is_ip(host_and_port(target)[0])


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def explain(target: str, files: TlsFiles | None, hints: Hints = CLIENT_HINTS) -> str:
    """Returns why a client with `files` (None: plain text) cannot use `host:port`; empty if TLS is not the reason."""
    try:
        return _plain(target, hints) if files is None else _encrypted(target, files, hints)
    except OSError:  # the server does not listen any more, or sends nothing
        return ""


def _plain(target: str, hints: Hints) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        _shake(target, context, "")
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):
            return ""
    return f"{target} speaks TLS and this side plain text; use {hints.speak_tls}"


def _encrypted(target: str, files: TlsFiles, hints: Hints) -> str:
    tls = files.tls
    host, _ = host_and_port(target)
    name = tls.server_name or host
    context = client_context(files, verify=not tls.insecure)
    context.check_hostname = not tls.insecure
    try:
        answered = _shake(target, context, name)
    except ssl.SSLCertVerificationError as error:
        return _certificate(target, name, files, hints, error)
    except ssl.SSLError as error:
        if (error.reason or "") in _PLAIN_ANSWERS:
            return (
                f"{target} speaks plain text and this side TLS; give the server's TLS port, or {hints.speak_plain} in "
                "front of the address; then all data is sent unencrypted"
            )
        return _own_certificate(target, files, hints) if "ALERT" in (error.reason or "") else ""
    return "" if answered else _own_certificate(target, files, hints)


def _certificate(target: str, name: str, files: TlsFiles, hints: Hints, error: ssl.SSLCertVerificationError) -> str:
    subject = f"the certificate of {target}"
    if error.verify_code == _EXPIRED:
        return f"{subject}, or of its authority, has expired; renew it at the server, which reads it without a restart"
    if error.verify_code == _TOO_EARLY:
        return f"{subject} is not valid yet; compare the clocks of both machines"
    if error.verify_code in _NAME_CODES or "match" in error.verify_message:
        return (
            f"{subject} is for {_listed(target, files)}, not for {name!r}; use one of these names, or give "
            f"{hints.server_name}"
        )
    trusted = str(files.tls.ca) or "the system's authorities"
    return f"{subject} is not signed by {trusted} ({error.verify_message}); give its authority as {hints.ca}"


def _own_certificate(target: str, files: TlsFiles, hints: Hints) -> str:
    if files.pem.certificate is None:
        return f"{target} requires a certificate of this side, which has none; give {hints.certificate}"
    return (
        f"{target} rejects the certificate {files.tls.certificate} of this side: it has expired, or is not signed by "
        f"the authority that the server's tls.client_ca names; give others as {hints.certificate}"
    )


def _listed(target: str, files: TlsFiles) -> str:
    try:
        with handshake(target, client_context(files, verify=True), timeout_ms=PROBE_MS) as secured:
            return ", ".join(names_of(secured.getpeercert())[:8]) or "no host at all"
    except OSError:
        return "other names"


def _shake(target: str, context: ssl.SSLContext, name: str) -> bool:
    """Makes a handshake; True if the server keeps the connection. Raises ssl.SSLError, OSError."""
    with handshake(target, context, timeout_ms=PROBE_MS, name=name) as secured:
        secured.settimeout(ANSWER_MS / 1000)
        try:
            return bool(secured.recv(1))
        except TimeoutError:
            return True
