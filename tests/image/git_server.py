"""Git server over https with basic authentication, based on git http-backend."""

import base64
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

NAME, PASSWORD = "reader", "a-password-for-tests"  # not secret
_EXPECTED = "Basic " + base64.b64encode(f"{NAME}:{PASSWORD}".encode()).decode()


class _Server(ThreadingHTTPServer):
    def __init__(self, root: Path, certificate: Path, key: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.socket = context.wrap_socket(self.socket, server_side=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Authorization") != _EXPECTED:
            self.send_response(HTTPStatus.UNAUTHORIZED)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self._finish(b"")
            return
        head, _, content = self._backend(body).partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
        self.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in headers.items():
            self.send_header(name, value)
        self._finish(content)

    def _finish(self, content: bytes) -> None:
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _backend(self, body: bytes) -> bytes:
        path, _, query = self.path.partition("?")
        variables = {
            "GIT_PROJECT_ROOT": str(self.server.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": NAME,
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
        }
        command = ["/usr/bin/git", "http-backend"]
        return subprocess.run(command, input=body, env=variables, capture_output=True, check=True).stdout

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as the base class has it
        """Do not log."""


@contextmanager
def serving(root: Path, certificate: Path, key: Path) -> Iterator[str]:
    """Serve the repositories in a folder; yield their base URL."""
    with _Server(root, certificate, key) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
