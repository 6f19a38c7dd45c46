"""The cluster behind a kubeconfig or, in a pod, behind its service account: requests out, answers in.

The `kubernetes` package reads the configuration (contexts, certificates, tokens that expire,
credential plug-ins, proxies) and opens connections. Requests are sent as they are: its typed
methods cost three times the CPU of a plain request, which on one machine the API server needs.
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
"""The API server gives a request 60 s by default; we give it a little longer to say so."""
MAX_CONNECTIONS = 256
_WORDS = 500
_WITH_BODY = ("POST", "PUT", "PATCH")


class _Waiting(threading.local):
    """What is asked before each piece of this thread's request goes out."""

    ask: Callable[[], None] | None = None


_waiting = _Waiting()


class _Checked:
    """A connection that asks once more right before it sends.

    Between a decision to write and the write lie locks, handshakes and other threads' turns. A process that
    is stopped there and goes on later must not write by what it knew before.
    """

    def send(self, data: Any) -> None:  # noqa: ANN401  # as the class that this is mixed into has it
        if _waiting.ask is not None:
            _waiting.ask()
        super().send(data)  # type: ignore[misc]  # of the class that this is mixed into


class KubeClient:
    """A way to an API server; any number of threads may use it at once."""

    def __init__(self, configuration: client.Configuration, reload: Any) -> None:  # noqa: ANN401  # makes another one
        self._reload = reload
        self._lock = threading.Lock()
        self._configure(configuration)

    def _configure(self, configuration: client.Configuration) -> None:
        configuration.retries = False
        configuration.connection_pool_maxsize = MAX_CONNECTIONS
        if not configuration.verify_ssl:  # the kubeconfig says so; kubectl does not warn of it either
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        manager = client.ApiClient(configuration).rest_client.pool_manager
        self.host: str = configuration.host
        parts = urlsplit(self.host)
        self._prefix, self._netloc = parts.path.rstrip("/"), parts.netloc.rpartition("@")[2]
        self._pool = manager.connection_from_url(self.host)
        self._pool.ConnectionCls = type("Checked", (_Checked, self._pool.ConnectionCls), {})
        self._wire = http_connection.ConnectionPool(self._pool)
        self._configuration = configuration
        self._by_token = bool(configuration.api_key)
        self._authorization: dict[str, str] = {}

    def send(
        self, request: Request, timeout_s: float = RESPONSE_TIMEOUT_S, ask: Callable[[], None] | None = None
    ) -> Response:
        """Send a request and return the answer, whatever it says.

        *ask* is called at the last moment, and raises if nothing may be sent any more.
        """
        used = self._configuration
        exchange = self._by_proxy if self._pool.proxy is not None else self._exchange
        answer = exchange(request, timeout_s, ask)
        if answer.status == HTTPStatus.UNAUTHORIZED and self._renew(used):
            answer = exchange(request, timeout_s, ask)
        return answer

    def _exchange(self, request: Request, timeout_s: float, ask: Callable[[], None] | None) -> Response:
        try:
            return Response(*self._wire.exchange(self._message(request), CONNECT_TIMEOUT_S, timeout_s, ask))
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._unreachable(error) from error

    def _by_proxy(self, request: Request, timeout_s: float, ask: Callable[[], None] | None) -> Response:
        """Send by a proxy: how to ask one to pass something on is urllib3's business."""
        _waiting.ask = ask
        try:
            response = self._open(request, timeout_s, preload=True)
        finally:
            _waiting.ask = None
        return Response(response.status, response.data, response.headers)

    def _message(self, request: Request) -> bytes:
        """Return a request as it goes over the wire."""
        headers = self._headers(request) | {"Host": self._netloc}
        if request.body is not None or request.method in _WITH_BODY:
            headers["Content-Length"] = str(len(request.body or b""))
        lines = [f"{request.method} {self._prefix}{request.path} HTTP/1.1", *map(": ".join, headers.items())]
        if any("\n" in line or "\r" in line for line in lines):
            raise errors.ClusterError(
                "a request with a line break in its first lines is not sent", hint="look at the token of the kubeconfig"
            )
        return "\r\n".join((*lines, "", "")).encode("latin-1") + (request.body or b"")

    def stream(self, request: Request, silence_s: float) -> HttpStream:
        """Send a request whose answer goes on; *silence_s* without a byte of it is a broken connection."""
        used = self._configuration
        response = self._open(request, silence_s, preload=False)
        if response.status == HTTPStatus.UNAUTHORIZED and self._renew(used):
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
            f"the API server at {self.host} does not answer: {http_connection.error_cause(error)}",
            hint="see `kubectl cluster-info`; is the right context set?",
        )

    def _headers(self, request: Request) -> dict[str, str]:
        headers = {"Accept": request.accept, "User-Agent": f"kwokfleet/{kwokfleet.__version__}"}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        return headers | self._authorized() if self._by_token else headers

    def _authorized(self) -> dict[str, str]:
        """Return who we are, asked each time: a token may expire, and who made it knows how to make another."""
        with suppress(config.ConfigException, OSError):  # a file that is just being written: the last token is good
            given = self._configuration.auth_settings().values()
            self._authorization = {each["key"]: each["value"] or "" for each in given}  # type: ignore[index]  # a mapping
        return self._authorization

    def _renew(self, used: client.Configuration) -> bool:
        """Read the credentials once more; return whether they are others than those that were used."""
        with self._lock:
            if self._configuration is not used:  # another thread was refused too, and came first
                return True
            try:
                fresh = self._reload()
            except errors.ClusterError:  # a file that is just being written: without it we would be nobody
                return False
            if _credentials(fresh) == _credentials(self._configuration):
                return False
            former = self._wire
            self._configure(fresh)
            former.close()
            return True

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._wire.close()
        self._pool.close()


def _credentials(configuration: client.Configuration) -> tuple[Any, ...]:
    return dict(configuration.api_key), configuration.cert_file, configuration.key_file


def connect(context: str | None = None, kubeconfig: Path | None = None) -> KubeClient:
    """Return a way to the cluster that a kubeconfig context names, or to the current one; nothing is sent yet."""

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
    except Exception as error:  # the client lets out whatever it stumbles over in such a file
        what = "the pod's service account" if in_pod else f"the kubeconfig {location}"
        why = " ".join(str(error).split()) if _exists(location) or in_pod else "there is no such file"
        raise errors.ClusterError(
            f"{what} cannot be used: {why}",
            hint="set KUBECONFIG or --context; for a cluster of `kwokfleet up`: "
            "export KUBECONFIG=$(kwokfleet cluster kubeconfig --path)",
        ) from error
    return configuration


def _require_token(configuration: client.Configuration, location: str, context: str | None) -> None:
    """Refuse a token file that holds none: the client would go on as nobody, and be told what nobody may not do."""
    if configuration.api_key or configuration.cert_file:
        return
    merged = kube_config.KubeConfigMerger(location).config.value  # type: ignore[no-untyped-call]
    named = context or merged["current-context"]
    user = next(each.value["context"].get("user") for each in merged["contexts"] if each.value["name"] == named)
    entry = next((each for each in merged["users"] if each.value["name"] == user), None)
    if entry is not None and (name := (entry.value.get("user") or {}).get("tokenFile")):
        raise config.ConfigException(f"the token file {Path(entry.path).absolute().parent / name} is empty")


def write_kubeconfig(context: str | None, kubeconfig: Path | None, folder: Path) -> Path | None:
    """Write a kubeconfig for other programs: one file, the chosen context the current one; None in a pod.

    kwok takes a list of files for one name, and knows no contexts.
    """
    location = str(kubeconfig) if kubeconfig else settings.kubeconfig()
    if not _exists(location):
        return None
    merged = kube_config.KubeConfigMerger(location).config.value  # type: ignore[no-untyped-call]
    file = folder / "kubeconfig.json"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # it may hold secrets
    whole = {**merged, "current-context": context or merged.get("current-context", "")}
    for part in ("clusters", "contexts", "users"):
        whole[part] = [_absolute(entry.value, Path(entry.path).absolute().parent) for entry in merged[part]]
    with os.fdopen(descriptor, "wb") as sink:
        sink.write(orjson.dumps(whole))
    return file


_FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


def _absolute(entry: Manifest, folder: Path) -> Manifest:
    """Return an entry of a kubeconfig with the files it names found from anywhere."""
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
    """Return all nodes of the cluster that a kubeconfig context names, or of the current one."""
    if current is not None and context is None:
        return _nodes(current)
    cluster = connect(context)
    try:
        return _nodes(cluster)
    finally:
        cluster.close()


def _nodes(cluster: RequestSender) -> list[Manifest]:
    return [{"apiVersion": "v1", "kind": "Node", **item} for item in list_objects(cluster, requests.NODE)]


def list_objects(  # noqa: PLR0913  # what a list can be narrowed by
    cluster: RequestSender,
    kind: requests.Kind,
    selector: str = "",
    *,
    namespace: str = "",
    fields: str = "",
    metadata_only: bool = False,
) -> Iterator[Manifest]:
    """Yield all objects of a kind, page by page; raise if not all of them could be had."""
    token = ""
    while True:
        page = requests.list_page(
            kind, selector, token, namespace=namespace, fields=fields, metadata_only=metadata_only
        )
        answer = cluster.send(page)
        if answer.status != HTTPStatus.OK:
            raise rejection_error(cluster, answer, f"list {kind.plural}")
        found = answer.json()
        yield from found.get("items") or []
        token = (found.get("metadata") or {}).get("continue") or ""
        if not token:
            return


def rejection_error(cluster: RequestSender, answer: Response, what: str) -> errors.ClusterError:
    """Return the error for an answer that is a no."""
    error = _refusal(cluster, answer, what)
    error.status = answer.status
    return error


def _refusal(cluster: RequestSender, answer: Response, what: str) -> errors.ClusterError:
    if answer.status == HTTPStatus.UNAUTHORIZED:
        return errors.ClusterError(
            f"the API server at {cluster.host} does not accept the credentials: {answer.status} Unauthorized",
            hint="log in again, or see `kubectl auth whoami`: the token or certificate may have expired",
        )
    reason = HTTPStatus(answer.status).phrase if answer.status in HTTPStatus._value2member_map_ else ""
    return errors.ClusterError(
        f"the API server at {cluster.host} refused to {what}: {answer.status} {answer.message[:_WORDS] or reason}",
        hint=f"see `kubectl auth can-i {what}`",
    )
