"""The only access to the Kubernetes API, by the `kubernetes` package (`pip install evenq[kubernetes]`).

Used by the rebalancer's lease and topology and by the broker's group record, from worker threads only: every method
blocks, with a timeout, and the first call imports the package, which takes a second. In a pod its service account is
used, elsewhere the user's kubeconfig. The package provides host, credentials (tokens are renewed) and connections.
Objects are plain parsed JSON, because converting ten thousand pods to its classes takes longer than reading them.
"""

from __future__ import annotations

import http
import json
import os
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias
from urllib.parse import urlencode

from evenq.errors import ConnectionFailed, Error, Forbidden, NotFound, PreconditionFailed, SettingsError

Object: TypeAlias = dict[str, Any]
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CALL_S = (1.0, 1.5)  # to connect, and to wait for each byte: a lease must be renewed within a few seconds
LIST_S = (2.0, 20.0)
PAGE = 500
WATCH_S = 240


class Expired(Error):
    """The version of a watch is too old (410): list again."""


class WatchStop:
    """Stops a watch from another thread, also while it waits for the next change."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._response: Any = None
        self.is_set = False

    def set(self) -> None:
        """Ends the watch now. Does not wait."""
        with self._lock:
            self.is_set = True
            self._shut()

    def begin(self, response: Any) -> None:
        """Registers the response that the watch reads."""
        with self._lock:
            self._response = response
            if self.is_set:
                self._shut()

    def end(self) -> None:
        """Registers that the watch reads nothing any more."""
        with self._lock:
            self._response = None

    def _shut(self) -> None:
        # Not possible in urllib3 before 2.3: such a watch ends after its time.
        shutdown = getattr(self._response, "shutdown", None)
        if shutdown is not None:
            try:
                shutdown()
            except (OSError, ValueError, RuntimeError):  # it has already ended
                return


class KubernetesApi:
    """The API, as described above. `namespace` empty: that of the pod, otherwise `default`."""

    def __init__(self, namespace: str = "") -> None:
        self._namespace = namespace
        self._client: Any = None
        self._lock = Lock()

    @property
    def namespace(self) -> str:
        """Namespace of leases and pods."""
        if not self._namespace:
            try:
                self._namespace = (ACCOUNT / "namespace").read_text(encoding="ascii").strip() or "default"
            except OSError:
                self._namespace = "default"
        return self._namespace

    def call(self, verb: str, path: str, body: Object | None = None) -> Object:
        """Makes one call; a PATCH merges. Raises NotFound, PreconditionFailed (409), Forbidden, ConnectionFailed,
        SettingsError.
        """
        response = self._send(verb, path, body=body, timeout=CALL_S)
        try:
            parsed = json.loads(response.data)
        except ValueError as error:
            raise ConnectionFailed(f"Kubernetes answered {verb} {path} with invalid JSON: {error}") from error
        return parsed if isinstance(parsed, dict) else {}

    def listed(self, path: str) -> tuple[list[Object], str]:
        """Returns all objects under `path`, read page by page, and the version to watch from."""
        objects: list[Object] = []
        more = ""
        while True:
            query = {"limit": str(PAGE), **({"continue": more} if more else {})}
            page = json.loads(self._send("GET", path, query=query, timeout=LIST_S).data)
            objects += page.get("items") or []
            metadata = page.get("metadata") or {}
            more = metadata.get("continue") or ""
            if not more:
                return objects, str(metadata.get("resourceVersion") or "")

    def watched(
        self, path: str, version: str, *, name: str = "", limit_s: int = WATCH_S, stop: WatchStop | None = None
    ) -> Iterator[tuple[str, Object]]:
        """Yields changes since `version`: kind (ADDED, MODIFIED, DELETED, BOOKMARK) and object. `version` empty:
        existing objects as ADDED, then changes; `name`: of this object only. Ends after `limit_s` seconds, and when
        `stop` is set. Raises Expired.
        """
        query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(limit_s)}
        if version:
            query["resourceVersion"] = version
        if name:
            query["fieldSelector"] = f"metadata.name={name}"
        response = self._send("GET", path, query=query, timeout=(2.0, limit_s + 15.0))
        try:
            if stop is not None:
                stop.begin(response)
            for line in _lines(response):
                event = json.loads(line)
                kind, entry = str(event.get("type")), event.get("object") or {}
                if kind == "ERROR":
                    if entry.get("code") == http.HTTPStatus.GONE:
                        raise Expired(f"the watch of {path} is too far behind")
                    raise ConnectionFailed(f"the watch of {path} failed: {str(entry.get('message'))[:200]}")
                yield kind, entry
        except (OSError, ValueError, self._http_error()) as error:
            raise ConnectionFailed(f"the watch of {path} broke: {error}") from error
        finally:
            if stop is not None:
                stop.end()
            response.close()

    # --- inside

    def _send(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        timeout: tuple[float, float],
    ) -> Any:
        client = self._connected()
        from urllib3 import Timeout

        settings = client.configuration
        token = settings.auth_settings().get("BearerToken", {}).get("value")  # read each time, because it is renewed
        kind = "application/merge-patch+json" if verb == "PATCH" else "application/json"
        headers = {"Accept": "application/json", "Content-Type": kind}
        if token:
            headers["Authorization"] = token
        try:
            response = client.rest_client.pool_manager.request(
                verb,
                settings.host + path + ("?" + urlencode(query) if query else ""),
                body=json.dumps(body) if body is not None else None,
                headers=headers,
                timeout=Timeout(connect=timeout[0], read=timeout[1]),
                # Retries would exceed the time within which a lease must be renewed; callers retry themselves.
                retries=False,
                # A watch is read line by line, without its end.
                preload_content=not (query and "watch" in query),
            )
        except (OSError, ValueError, self._http_error()) as error:
            raise ConnectionFailed(f"Kubernetes does not answer {verb} {path}: {error}") from error
        if response.status >= http.HTTPStatus.BAD_REQUEST:
            problem = _translated(response.status, str(response.reason), verb, path)
            response.release_conn()
            raise problem
        return response

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                try:
                    import kubernetes
                except ImportError as error:
                    raise SettingsError(
                        "the package `kubernetes` is missing; install evenq[kubernetes], or choose settings without "
                        "Kubernetes"
                    ) from error
                package: Any = kubernetes  # it has no useful types
                client, config = package.client, package.config
                settings = client.Configuration()
                try:
                    if (ACCOUNT / "token").exists() and "KUBERNETES_SERVICE_HOST" in os.environ:
                        config.load_incluster_config(client_configuration=settings)
                    else:
                        config.load_kube_config(client_configuration=settings)
                except (config.ConfigException, OSError) as error:
                    raise ConnectionFailed(
                        f"there is no access to Kubernetes: {error}; run in a pod with a service account, or with a "
                        "kubeconfig"
                    ) from error
                self._client = client.ApiClient(settings)
                _accept_old_authorities(self._client.rest_client.pool_manager.connection_pool_kw)
            return self._client

    def _http_error(self) -> type[Exception]:
        from urllib3.exceptions import HTTPError

        return HTTPError


def _accept_old_authorities(options: dict[str, Any]) -> None:
    """Makes the TLS context without the flag VERIFY_X509_STRICT, which urllib3 sets since Python 3.13.

    With it, authorities without key usage or key identifiers are refused. Older tools made such clusters; kubectl and
    Python 3.12 accept them.
    """
    from urllib3.util.ssl_ import create_urllib3_context

    context = create_urllib3_context(cert_reqs=options["cert_reqs"])
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not (options["ca_certs"] or options.get("ca_cert_data")):  # urllib3 does this only for a context of its own
        context.load_default_certs()
    options["ssl_context"] = context


def _lines(response: Any) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(1 << 16, decode_content=False):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from filter(None, lines)


def _translated(status: int, reason: str, verb: str, path: str) -> Error:
    what = f"{verb} {path}"
    match status:
        case http.HTTPStatus.NOT_FOUND:
            return NotFound(f"Kubernetes has no {path}")
        case http.HTTPStatus.CONFLICT:
            return PreconditionFailed(f"{what} met a newer version")
        case http.HTTPStatus.GONE:
            return Expired(f"{what}: the version is too old")
        case http.HTTPStatus.UNAUTHORIZED | http.HTTPStatus.FORBIDDEN:
            return Forbidden(f"Kubernetes forbids {what} ({status}); give the service account a role for it")
        case _:
            return ConnectionFailed(f"Kubernetes answered {what} with {status} {reason}")
