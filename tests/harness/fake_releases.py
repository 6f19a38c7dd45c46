"""Fake release servers and a fake Go compiler: real builds take nine minutes.

The API server, etcd and kwok are always real.
"""

import hashlib
import http.server
import io
import json
import socket
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from kwokfleet.embedded import binaries, versions

PROGRAM = b"#!/bin/sh\necho stand-in\n"

COMPILER = """\
#!/bin/sh
# Fake Go compiler: prints its version, writes a program as the build result, and records each build.
here=$(dirname "$0")
case "$1" in
  env) echo "${FAKE_GO_VERSION:-go1.26.8}"; exit ;;
esac
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
mkdir -p "$GOCACHE" && echo "$1" >> "$GOCACHE/compiled"
echo "example.com/some/package" >&2
if [ -n "$FAKE_GO_FAILS" ]; then echo "$FAKE_GO_FAILS" >&2; exit 1; fi
if [ -n "$FAKE_GO_WAITS_FOR" ]; then while [ ! -e "$FAKE_GO_WAITS_FOR" ]; do sleep 0.1; done; fi
echo "$1" >> "$here/built"
printf '#!/bin/sh\\necho built\\n' > "$out" && chmod +x "$out"
"""


def write_compiler(folder: Path) -> Path:
    """Write the fake compiler as `go` into *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "go"
    program.write_text(COMPILER)
    program.chmod(0o755)
    return program


def release_files() -> dict[str, bytes]:
    """Return the release files of the three projects for this platform, with digests."""
    system, machine = binaries.this_platform()
    files: dict[str, bytes] = {}
    for binary in versions.BINARIES:
        body = PROGRAM + binary.name.encode()
        if binary.project == "kubernetes":
            path = f"/k8s/{binary.version}/bin/{system}/{machine}/{binary.name}"
            files |= {path: body, f"{path}.sha256": hashlib.sha256(body).hexdigest().encode()}
    archive = f"etcd-{versions.ETCD}-{system}-{machine}"
    tar = _tar({f"{archive}/etcd": PROGRAM + b"etcd", f"{archive}/etcdctl": b"not this one"})
    files[f"/etcd/{versions.ETCD}/{archive}.tar.gz"] = tar
    files[f"/etcd/{versions.ETCD}/SHA256SUMS"] = f"{hashlib.sha256(tar).hexdigest()}  {archive}.tar.gz\n".encode()
    kwok = {f"{name}-{system}-{machine}": PROGRAM + name.encode() for name in ("kwok", "kwokctl")}
    files |= {f"/kwok/{versions.KWOK}/{name}": body for name, body in kwok.items()}
    assets = [{"name": name, "digest": f"sha256:{hashlib.sha256(body).hexdigest()}"} for name, body in kwok.items()]
    files[f"/kwok-digests/{versions.KWOK}"] = json.dumps({"assets": assets}).encode()
    return files


def _tar(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, body in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return buffer.getvalue()


class ReleaseServer:
    """Serves files and records the requested paths."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.requested_paths: list[str] = []
        self.connections = 0
        self.port = 0

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that make kwokfleet download from this server."""
        base = f"http://127.0.0.1:{self.port}"
        return {
            "KWOKFLEET_KUBERNETES_RELEASES": f"{base}/k8s",
            "KWOKFLEET_ETCD_RELEASES": f"{base}/etcd",
            "KWOKFLEET_KWOK_RELEASES": f"{base}/kwok",
            "KWOKFLEET_KWOK_DIGESTS": f"{base}/kwok-digests",
        }


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[ReleaseServer]:
    """Serve *files* on loopback until the block ends."""
    server = ReleaseServer(files)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.requested_paths.append(self.path)
            body = server.files.get(self.path)
            self.send_response(200 if body is not None else 404)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            """Stay silent."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        server.port = httpd.server_address[1]
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            httpd.shutdown()
            thread.join()


RESPONSE_START = b"HTTP/1.1 200 OK\r\nContent-Length: 64\r\n\r\nabc"


@contextmanager
def stalling_server(first_bytes: bytes) -> Iterator[ReleaseServer]:
    """Accept connections, send *first_bytes* on each, and then nothing more."""
    server = ReleaseServer({})
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.port = listener.getsockname()[1]

        def accept() -> None:
            with suppress(OSError):  # the listener was shut down: the block has ended
                while True:
                    connection, _ = listener.accept()
                    held.append(connection)
                    connection.sendall(first_bytes)
                    server.connections += 1

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in held:
                connection.close()


UNREACHABLE = dict.fromkeys(ReleaseServer({}).variables, "http://127.0.0.1:9/nothing")
"""Environment variables that make every release unreachable."""
