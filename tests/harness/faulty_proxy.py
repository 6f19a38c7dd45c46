"""A way to the real API server on which things go wrong: some requests are refused, some connections die.

It stands between kwokfleet and the API server. A test gives it one rule, which looks at each request
and says what happens to it; everything else passes through, both ways, unchanged. What a rule answers
by itself looks like the API server's own `Status`. Every request is noted, with the time it came.
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
    """A request, as a rule sees it."""

    number: int
    """Counts all requests, from 1."""
    method: str
    path: str
    """With its query."""
    body: bytes
    headers: Mapping[str, str]
    """By their names in lower case."""
    at: float

    @property
    def resource(self) -> str:
        """The path without its query."""
        return self.path.partition("?")[0]

    @property
    def is_watch(self) -> bool:
        """Whether the answer goes on."""
        return "watch=1" in self.path


@dataclass(frozen=True)
class Reject:
    """The API server is not asked; this is the answer."""

    status: int
    message: str = "injected by a test"
    retry_after: int = 0
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reset:
    """The connection is reset: before the API server is asked, or after so many bytes of its answer."""

    after: int | None = None
    """None: it never hears of the request. 0: it does, and nobody hears what it says."""


@dataclass(frozen=True)
class Respond:
    """The API server is not asked; these bytes are the answer, and its end."""

    body: bytes


@dataclass(frozen=True)
class ForwardThen:
    """The API server is asked; something happens before anybody hears its answer."""

    act: Callable[[], object]


Fault = Reject | Reset | Respond | ForwardThen
Rule = Callable[[ProxiedRequest], Fault | None]


def pass_through(_asked: ProxiedRequest) -> Fault | None:
    """Let everything pass."""
    return None


class FaultyProxy:
    """What a test sees of it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.rule: Rule = pass_through
        self.asked: list[ProxiedRequest] = []
        self.faults: list[tuple[float, ProxiedRequest, Fault]] = []
        """What went wrong on purpose, and when that was on its way."""
        self.mistakes: list[Exception] = []
        """What went wrong in a rule."""
        self._lock = threading.Lock()
        self._open: set[_Handler] = set()

    def judge(self, request: http.server.BaseHTTPRequestHandler, body: bytes) -> tuple[ProxiedRequest, Fault | None]:
        """Note a request, and say what happens to it."""
        with self._lock:
            at = time.monotonic()
            headers = {name.lower(): value for name, value in request.headers.items()}
            asked = ProxiedRequest(len(self.asked) + 1, request.command or "", request.path, body, headers, at)
            self.asked.append(asked)
            try:
                return asked, self.rule(asked)
            except Exception as error:
                self.mistakes.append(error)
                raise

    def note(self, asked: ProxiedRequest, fault: Fault) -> None:
        """Note that something went wrong on purpose."""
        with self._lock:
            self.faults.append((time.monotonic(), asked, fault))

    def opened(self, connection: "_Handler") -> None:
        """Note a connection."""
        with self._lock:
            self._open.add(connection)

    def closed(self, connection: "_Handler") -> None:
        """Forget a connection."""
        with self._lock:
            self._open.discard(connection)

    def cut_all(self) -> None:
        """Reset every connection there is."""
        with self._lock:
            for each in self._open:
                each.interrupt()

    def kubeconfig(self, path: Path, **user: str) -> str:
        """Write a kubeconfig that leads here; without a user, all that passes is the cluster's administrator's."""
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
    """Stand between whoever comes and *cluster*, until the block ends."""
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
            proxy.cut_all()
            thread.join()
    assert proxy.mistakes == []


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """Stay silent: connections that break are what this is for."""


class _Upstream:
    """The way to the API server: as its administrator, or, with a token, as whoever that is."""

    def __init__(self, cluster: control_plane.ControlPlane) -> None:
        address = cluster.kubectl("config", "view", "--output", "jsonpath={.clusters[0].cluster.server}")
        self._address = urlsplit(address)
        authority = str(cluster.where.pki("ca.crt"))
        self._nobody = ssl.create_default_context(cafile=authority)
        self._admin = ssl.create_default_context(cafile=authority)
        self._admin.load_cert_chain(cluster.where.pki("admin.crt"), cluster.where.pki("admin.key"))

    def connect(self, *, anonymous: bool) -> http.client.HTTPSConnection:
        context = self._nobody if anonymous else self._admin
        host, port = self._address.hostname or "", self._address.port
        return http.client.HTTPSConnection(host, port, timeout=UPSTREAM_S, context=context)


class _Handler(http.server.BaseHTTPRequestHandler):
    """One connection of a client, with one of its own to the API server."""

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
        """Break it, from another thread."""
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
        if len(body) < length:  # whoever sent the head has gone: to an API server that is no request
            self.close_connection = True
            return
        asked, fault = self.proxy.judge(self, body)
        if fault is not None and not isinstance(fault, ForwardThen):
            self.proxy.note(asked, fault)
        match fault:
            case Reject():
                self._refuse(fault)
            case Respond():
                self._say(HTTPStatus.OK, fault.body)
            case Reset(after=None):
                self._cut()
            case _:
                self._pass(asked, fault)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the library asks for these names

    def _refuse(self, fault: Reject) -> None:
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": fault.status,
            "message": fault.message,
            "details": fault.details,
        }
        headers = {"Retry-After": str(fault.retry_after)} if fault.retry_after else {}
        self._say(fault.status, json.dumps(status).encode(), **headers)

    def _say(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _cut(self) -> None:
        self.close_connection = True
        _reset_connection(self.connection)

    def _pass(self, asked: ProxiedRequest, fault: Reset | ForwardThen | None) -> None:
        """Ask the API server, and hand on what it says, as it comes."""
        try:
            answer = self._asked_upstream(asked)
        except (OSError, http.client.HTTPException):  # the API server is away: so is this way to it
            self._cut()
            return
        if isinstance(fault, ForwardThen):
            fault.act()
            self.proxy.note(asked, fault)
        left = fault.after if isinstance(fault, Reset) else None
        if left == 0:
            self._cut()
            return
        self._hand_on(answer, left)

    def _asked_upstream(self, asked: ProxiedRequest) -> http.client.HTTPResponse:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
        if self.upstream is None:
            self.upstream = self.connect(anonymous="Authorization" in self.headers)
        try:
            self.upstream.request(asked.method, asked.path, body=asked.body or None, headers=headers)
            return self.upstream.getresponse()
        except (OSError, http.client.HTTPException):
            self.upstream.close()
            self.upstream = None
            raise

    def _hand_on(self, answer: http.client.HTTPResponse, left: int | None) -> None:
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP_BY_HOP | {"date", "server"}:
                self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()  # a watch may have nothing else to say for a minute
        try:
            while data := answer.read1(CHUNK):
                if left is not None:
                    data = data[:left]
                    left -= len(data)
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()
                if left == 0:
                    self._cut()
                    return
        except (OSError, http.client.HTTPException):  # either side is gone
            self._cut()
            return
        answer.close()  # read to its end; else the connection could not be used again
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Stay silent."""


def _reset_connection(connection: socket.socket) -> None:
    """End a connection as a crash or a firewall would: no goodbye."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)
