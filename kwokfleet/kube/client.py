"""Client of one API server, configured by a kubeconfig or by the service account of a pod.

The `kubernetes` package reads the configuration: contexts, certificates, expiring tokens, credential plug-ins,
proxies. Requests are sent without it: its typed methods cost three times the CPU of a plain request, and an API
server on the same machine needs that CPU.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import urllib3
from kubernetes import client, config
from kubernetes.config import kube_config

import kwokfleet
from kwokfleet import errors, settings
from kwokfleet.kube import http_connection, requests
from kwokfleet.kube.http_stream import HttpStream
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.requests import Request, RequestSender, Response

CONNECT_TIMEOUT_S, RESPONSE_TIMEOUT_S = 5.0, 65.0
"""The request timeout of an API server is 60 s by default; its error response arrives before ours ends."""
MAX_CONNECTIONS = 256
_MAX_MESSAGE = 500
_WITH_BODY = ("POST", "PUT", "PATCH")


class _ThreadHook(threading.local):
    """The hook of the request that this thread sends."""

    before_send: Callable[[], None] | None = None


_hook = _ThreadHook()


class _HookMixin:
    """Connection that calls the hook right before it sends.

    Locks, handshakes and other threads may delay a write after the decision to write. A process that was
    suspended there must not write with outdated knowledge.
    """

    def send(self, data: Any) -> None:  # noqa: ANN401  # the signature of the connection class
        if _hook.before_send is not None:
            _hook.before_send()
        super().send(data)  # type: ignore[misc]  # of the connection class


class KubeClient:
    """Client of an API server. Thread-safe."""

    def __init__(self, configuration: client.Configuration, reload: Callable[[], client.Configuration]) -> None:
        self._reload = reload
        self._lock = threading.Lock()
        self._configure(configuration)

    def _configure(self, configuration: client.Configuration) -> None:
        configuration.retries = False
        configuration.connection_pool_maxsize = MAX_CONNECTIONS
        if not configuration.verify_ssl:  # insecure-skip-tls-verify of the kubeconfig; kubectl does not warn either
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        manager = client.ApiClient(configuration).rest_client.pool_manager
        self.host: str = configuration.host
        parts = urlsplit(self.host)
        self._prefix, self._netloc = parts.path.rstrip("/"), parts.netloc.rpartition("@")[2]
        self._pool = manager.connection_from_url(self.host)
        self._pool.ConnectionCls = type("HookedConnection", (_HookMixin, self._pool.ConnectionCls), {})
        self._connections = http_connection.ConnectionPool(self._pool)
        self._configuration = configuration
        self._has_token = bool(configuration.api_key)
        self._authorization: dict[str, str] = {}

    def send(
        self,
        request: Request,
        timeout_s: float = RESPONSE_TIMEOUT_S,
        before_send: Callable[[], None] | None = None,
    ) -> Response:
        """Send a request and return the response, whatever its status.

        *before_send* is called right before the bytes are sent; it raises to prevent that.
        """
        used = self._configuration
        exchange = self._exchange_by_proxy if self._pool.proxy is not None else self._exchange
        response = exchange(request, timeout_s, before_send)
        if response.status == HTTPStatus.UNAUTHORIZED and self._renew_credentials(used):
            response = exchange(request, timeout_s, before_send)
        return response

    def _exchange(self, request: Request, timeout_s: float, before_send: Callable[[], None] | None) -> Response:
        message = self._message(request)
        try:
            return Response(*self._connections.exchange(message, CONNECT_TIMEOUT_S, timeout_s, before_send))
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._unreachable(error) from error

    def _exchange_by_proxy(
        self, request: Request, timeout_s: float, before_send: Callable[[], None] | None
    ) -> Response:
        """Send through a proxy: urllib3 knows the proxy protocols."""
        _hook.before_send = before_send
        try:
            response = self._open(request, timeout_s, preload=True)
        finally:
            _hook.before_send = None
        return Response(response.status, response.data, response.headers)

    def _message(self, request: Request) -> bytes:
        """Return the bytes of an HTTP/1.1 request."""
        headers = self._headers(request) | {"Host": self._netloc}
        if request.body is not None or request.method in _WITH_BODY:
            headers["Content-Length"] = str(len(request.body or b""))
        lines = [f"{request.method} {self._prefix}{request.path} HTTP/1.1", *map(": ".join, headers.items())]
        if any("\n" in line or "\r" in line for line in lines):
            raise errors.ClusterError(
                "a request header contains a line break; the request was not sent",
                hint="check the token of the kubeconfig",
            )
        return "\r\n".join((*lines, "", "")).encode("latin-1") + (request.body or b"")

    def stream(self, request: Request, silence_s: float) -> HttpStream:
        """Open a watch; *silence_s* without a byte means a broken connection."""
        used = self._configuration
        response = self._open(request, silence_s, preload=False)
        if response.status == HTTPStatus.UNAUTHORIZED and self._renew_credentials(used):
            response.close()
            response = self._open(request, silence_s, preload=False)
        return HttpStream(self.host, response)

    def _open(self, request: Request, timeout_s: float, *, preload: bool) -> urllib3.BaseHTTPResponse:
        try:
            return self._pool.urlopen(
                request.method,
                f"{self._prefix}{request.path}",
                body=request.body,
                headers=self._headers(request),
                retries=False,
                redirect=False,
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=timeout_s),
                preload_content=preload,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> errors.UnreachableError:
        return errors.UnreachableError(
            f"no response from the API server at {self.host}: {http_connection.error_cause(error)}",
            hint="check `kubectl cluster-info` and the current context",
        )

    def _headers(self, request: Request) -> dict[str, str]:
        headers = {"Accept": request.accept, "User-Agent": f"kwokfleet/{kwokfleet.__version__}"}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        return headers | self._authorization_headers() if self._has_token else headers

    def _authorization_headers(self) -> dict[str, str]:
        """Return the credentials, read for each request: a token may expire and be replaced."""
        with suppress(config.ConfigException, OSError):  # the file is being written: keep the last token
            headers = self._configuration.auth_settings().values()
            self._authorization = {header["key"]: header["value"] or "" for header in headers}  # type: ignore[index]
        return self._authorization

    def _renew_credentials(self, used: client.Configuration) -> bool:
        """Read the credentials again; return whether they differ from the used ones."""
        with self._lock:
            if self._configuration is not used:  # another thread has renewed them
                return True
            try:
                configuration = self._reload()
            except errors.ClusterError:  # the file is being written
                return False
            if _credentials(configuration) == _credentials(self._configuration):
                return False
            old_connections = self._connections
            self._configure(configuration)
            old_connections.close()
            return True

    def close(self) -> None:
        """Close all idle connections."""
        self._connections.close()
        self._pool.close()


def _credentials(configuration: client.Configuration) -> tuple[Any, ...]:
    return dict(configuration.api_key), configuration.cert_file, configuration.key_file


def connect(context: str | None = None, kubeconfig: Path | None = None) -> KubeClient:
    """Return a client for a kubeconfig context, by default the current one; no request is sent."""

    def read() -> client.Configuration:
        return _configuration(context, str(kubeconfig) if kubeconfig else None)

    return KubeClient(read(), read)


def _configuration(context: str | None, kubeconfig: str | None) -> client.Configuration:
    configuration = client.Configuration()
    location = kubeconfig or settings.kubeconfig()
    in_pod = context is None and settings.is_in_pod() and not _exists(location)
    try:
        if in_pod:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            config.load_kube_config(location, context, client_configuration=configuration)  # type: ignore[no-untyped-call]
            _require_token(configuration, location, context)
    except Exception as error:  # the package raises many types for an invalid file
        source = "the pod's service account" if in_pod else f"the kubeconfig {location}"
        reason = " ".join(str(error).split()) if _exists(location) or in_pod else "file not found"
        raise errors.ClusterError(
            f"{source} cannot be used: {reason}",
            hint="set KUBECONFIG or --context; for the cluster of `kwokfleet up`: "
            "export KUBECONFIG=$(kwokfleet cluster kubeconfig --path)",
        ) from error
    return configuration


def _require_token(configuration: client.Configuration, location: str, context: str | None) -> None:
    """Reject an empty token file: requests would be anonymous, and fail with a misleading error."""
    if configuration.api_key or configuration.cert_file:
        return
    merged = kube_config.KubeConfigMerger(location).config.value  # type: ignore[no-untyped-call]
    context_name = context or merged["current-context"]
    contexts = (entry.value for entry in merged["contexts"])
    user = next(value["context"].get("user") for value in contexts if value["name"] == context_name)
    entry = next((entry for entry in merged["users"] if entry.value["name"] == user), None)
    if entry is not None and (name := (entry.value.get("user") or {}).get("tokenFile")):
        raise config.ConfigException(f"the token file {Path(entry.path).absolute().parent / name} is empty")


def write_kubeconfig(context: str | None, kubeconfig: Path | None, folder: Path) -> Path | None:
    """Write a kubeconfig for kwok and return its path; None in a pod.

    kwok reads one file and its current context.
    """
    location = str(kubeconfig) if kubeconfig else settings.kubeconfig()
    if not _exists(location):
        return None
    merged = kube_config.KubeConfigMerger(location).config.value  # type: ignore[no-untyped-call]
    file = folder / "kubeconfig.json"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # it may contain secrets
    content = {**merged, "current-context": context or merged.get("current-context", "")}
    for part in ("clusters", "contexts", "users"):
        content[part] = [_absolute(entry.value, Path(entry.path).absolute().parent) for entry in merged[part]]
    with os.fdopen(descriptor, "wb") as sink:
        sink.write(orjson.dumps(content))
    return file


_FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


def _absolute(entry: Manifest, folder: Path) -> Manifest:
    """Return an entry of a kubeconfig with absolute file paths."""
    return {
        name: {
            key: str(folder / value) if key in _FILES and isinstance(value, str) else value
            for key, value in inner.items()
        }
        if isinstance(inner, dict)
        else inner
        for name, inner in entry.items()
    }


def _exists(location: str) -> bool:
    return any(Path(path).expanduser().is_file() for path in location.split(os.pathsep) if path)


def list_nodes(context: str | None, current: RequestSender | None = None) -> list[Manifest]:
    """Return all nodes of the cluster of a kubeconfig context, by default of the current one."""
    if current is not None and context is None:
        return _nodes(current)
    cluster = connect(context)
    try:
        return _nodes(cluster)
    finally:
        cluster.close()


def _nodes(cluster: RequestSender) -> list[Manifest]:
    return [{"apiVersion": "v1", "kind": "Node", **item} for item in list_objects(cluster, requests.NODE)]


def list_objects(  # noqa: PLR0913  # the filters of a list
    cluster: RequestSender,
    kind: requests.Kind,
    selector: str = "",
    *,
    namespace: str = "",
    fields: str = "",
    metadata_only: bool = False,
) -> Iterator[Manifest]:
    """Yield all objects of a kind, page by page; raise if a page is rejected."""
    token = ""
    while True:
        page = requests.list_page(
            kind, selector, token, namespace=namespace, fields=fields, metadata_only=metadata_only
        )
        response = cluster.send(page)
        if response.status != HTTPStatus.OK:
            raise rejection_error(cluster, response, f"list {kind.plural}")
        body = response.json()
        yield from body.get("items") or []
        token = (body.get("metadata") or {}).get("continue") or ""
        if not token:
            return


def rejection_error(cluster: RequestSender, response: Response, action: str) -> errors.ClusterError:
    """Return the error for a rejected request; *action* is a verb and a resource for `kubectl auth can-i`."""
    if response.status == HTTPStatus.UNAUTHORIZED:
        error = errors.ClusterError(
            f"the API server at {cluster.host} does not accept the credentials: {response.status} Unauthorized",
            hint="log in again, or check `kubectl auth whoami`: the token or certificate may have expired",
        )
    else:
        phrase = HTTPStatus(response.status).phrase if response.status in HTTPStatus._value2member_map_ else ""
        reason = response.message[:_MAX_MESSAGE] or phrase
        error = errors.ClusterError(
            f"the API server at {cluster.host} refused to {action}: {response.status} {reason}",
            hint=f"check `kubectl auth can-i {action}`",
        )
    error.status = response.status
    return error
