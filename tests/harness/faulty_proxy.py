"""Proxy to the real API server that injects faults: rejected requests and reset connections.

A test sets one rule, which maps a request to a fault or None. Requests without a fault are forwarded unchanged.
Rejections look like a `Status` of the API server. Every request is recorded with its time.
"""

import http.client
import http.server
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.harness import control_plane

UPSTREAM_S = 300
CHUNK = 1 << 16
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length", "accept-encoding"}


@dataclass(frozen=True)
class ProxiedRequest:
    """One request to the proxy."""

    number: int
    """Sequence number, from 1."""
    method: str
    path: str
    """Includes the query."""
    body: bytes
    headers: Mapping[str, str]
    """Names are in lower case."""
    at: float

    @property
    def resource(self) -> str:
        """The path without its query."""
        return self.path.partition("?")[0]

    @property
    def is_watch(self) -> bool:
        """Whether it is a watch."""
        return "watch=1" in self.path


@dataclass(frozen=True)
class Reject:
    """Rejects the request without forwarding it."""

    status: int
    message: str = "injected by a test"
    retry_after: int = 0
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reset:
    """Resets the connection, before the request is forwarded or after some bytes of the response."""

    after: int | None = None
    """Bytes of the response. None: the request is not forwarded."""


@dataclass(frozen=True)
class Respond:
    """Responds with these bytes without forwarding the request."""

    body: bytes


@dataclass(frozen=True)
class ForwardThen:
    """Forwards the request and calls *act* before it returns the response."""

    act: Callable[[], object]


Fault = Reject | Reset | Respond | ForwardThen
Rule = Callable[[ProxiedRequest], Fault | None]


def pass_through(_request: ProxiedRequest) -> Fault | None:
    """Forward every request."""
    return None


class FaultyProxy:
    """Controls the proxy: its rule and its records."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.rule: Rule = pass_through
        self.requests: list[ProxiedRequest] = []
        self.faults: list[tuple[float, ProxiedRequest, Fault]] = []
        """Injected faults and their times."""
        self.rule_errors: list[Exception] = []
        self._lock = threading.Lock()
        self._open: set[_Handler] = set()

    def record_request(
        self, handler: http.server.BaseHTTPRequestHandler, body: bytes
    ) -> tuple[ProxiedRequest, Fault | None]:
        """Record a request; return it with its fault."""
        with self._lock:
            at = time.monotonic()
            headers = {name.lower(): value for name, value in handler.headers.items()}
            number = len(self.requests) + 1
            request = ProxiedRequest(number, handler.command or "", handler.path, body, headers, at)
            self.requests.append(request)
            try:
                return request, self.rule(request)
            except Exception as error:
                self.rule_errors.append(error)
                raise

    def record_fault(self, request: ProxiedRequest, fault: Fault) -> None:
        """Record an injected fault."""
        with self._lock:
            self.faults.append((time.monotonic(), request, fault))

    def opened(self, connection: "_Handler") -> None:
        """Register a connection."""
        with self._lock:
            self._open.add(connection)

    def closed(self, connection: "_Handler") -> None:
        """Unregister a connection."""
        with self._lock:
            self._open.discard(connection)

    def reset_all(self) -> None:
        """Reset every open connection."""
        with self._lock:
            for connection in self._open:
                connection.interrupt()

    def kubeconfig(self, path: Path, **user: str) -> str:
        """Write a kubeconfig for the proxy; without *user*, requests have administrator rights."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "me", "user": user}],
        }
        path.write_text(json.dumps(content))
        return str(path)


@contextmanager
def proxy_to(cluster: control_plane.ControlPlane) -> Iterator[FaultyProxy]:
    """Run a proxy to *cluster* until the block ends."""
    upstream = _Upstream(cluster)

    class Handler(_Handler):
        proxy: FaultyProxy

        def connect(self, *, anonymous: bool) -> http.client.HTTPSConnection:
            return upstream.connect(anonymous=anonymous)

    with _Server(("127.0.0.1", 0), Handler) as httpd:
        proxy = Handler.proxy = FaultyProxy(httpd.server_address[1])
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.rule = pass_through
            httpd.shutdown()
            proxy.reset_all()
            thread.join()
    assert proxy.rule_errors == []


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """Ignore errors: broken connections are expected."""


class _Upstream:
    """Connections to the API server: as administrator, or without a client certificate for requests with a token."""

    def __init__(self, cluster: control_plane.ControlPlane) -> None:
        address = cluster.kubectl("config", "view", "--output", "jsonpath={.clusters[0].cluster.server}")
        self._address = urlsplit(address)
        authority = str(cluster.where.pki("ca.crt"))
        self._anonymous = ssl.create_default_context(cafile=authority)
        self._admin = ssl.create_default_context(cafile=authority)
        self._admin.load_cert_chain(cluster.where.pki("admin.crt"), cluster.where.pki("admin.key"))

    def connect(self, *, anonymous: bool) -> http.client.HTTPSConnection:
        context = self._anonymous if anonymous else self._admin
        host, port = self._address.hostname or "", self._address.port
        return http.client.HTTPSConnection(host, port, timeout=UPSTREAM_S, context=context)


class _Handler(http.server.BaseHTTPRequestHandler):
    """One client connection and its connection to the API server."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    proxy: FaultyProxy

    def connect(self, *, anonymous: bool) -> http.client.HTTPSConnection:
        raise NotImplementedError

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.upstream: http.client.HTTPSConnection | None = None
        self.proxy.opened(self)

    def interrupt(self) -> None:
        """Reset both connections; called from another thread."""
        _reset_connection(self.connection)
        upstream = self.upstream
        if upstream is not None and upstream.sock is not None:
            _reset_connection(upstream.sock)

    def finish(self) -> None:
        self.proxy.closed(self)
        if self.upstream is not None:
            self.upstream.close()
        with suppress(OSError, ValueError):
            super().finish()

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:  # the client disconnected before the body was complete
            self.close_connection = True
            return
        request, fault = self.proxy.record_request(self, body)
        if fault is not None and not isinstance(fault, ForwardThen):
            self.proxy.record_fault(request, fault)
        match fault:
            case Reject():
                self._reject(fault)
            case Respond():
                self._respond(HTTPStatus.OK, fault.body)
            case Reset(after=None):
                self._disconnect()
            case _:
                self._forward(request, fault)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the library asks for these names

    def _reject(self, fault: Reject) -> None:
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": fault.status,
            "message": fault.message,
            "details": fault.details,
        }
        headers = {"Retry-After": str(fault.retry_after)} if fault.retry_after else {}
        self._respond(fault.status, json.dumps(status).encode(), **headers)

    def _respond(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _disconnect(self) -> None:
        self.close_connection = True
        _reset_connection(self.connection)

    def _forward(self, request: ProxiedRequest, fault: Reset | ForwardThen | None) -> None:
        """Forward the request and stream the response."""
        try:
            response = self._send_upstream(request)
        except (OSError, http.client.HTTPException):  # the API server is unavailable
            self._disconnect()
            return
        if isinstance(fault, ForwardThen):
            fault.act()
            self.proxy.record_fault(request, fault)
        left = fault.after if isinstance(fault, Reset) else None
        if left == 0:
            self._disconnect()
            return
        self._stream_response(response, left)

    def _send_upstream(self, request: ProxiedRequest) -> http.client.HTTPResponse:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
        if self.upstream is None:
            self.upstream = self.connect(anonymous="Authorization" in self.headers)
        try:
            self.upstream.request(request.method, request.path, body=request.body or None, headers=headers)
            return self.upstream.getresponse()
        except (OSError, http.client.HTTPException):
            self.upstream.close()
            self.upstream = None
            raise

    def _stream_response(self, response: http.client.HTTPResponse, left: int | None) -> None:
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in _HOP_BY_HOP | {"date", "server"}:
                self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()  # a watch may send nothing else for a minute
        try:
            while data := response.read1(CHUNK):
                if left is not None:
                    data = data[:left]
                    left -= len(data)
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()
                if left == 0:
                    self._disconnect()
                    return
        except (OSError, http.client.HTTPException):  # one side disconnected
            self._disconnect()
            return
        response.close()  # required before the connection is reused
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Stay silent."""


def _reset_connection(connection: socket.socket) -> None:
    """Reset a connection, as after a crash."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)
