"""Free loopback ports."""

import dataclasses
import errno
import socket
import zlib
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

import psutil

from kwokfleet import errors
from kwokfleet.embedded import state

LOOPBACK = "127.0.0.1"
HIGHEST, LOWEST = 32767, 10000
"""Below the ephemeral ports of outgoing connections."""


def choose(apiserver: int, taken: AbstractSet[int], seed: str) -> state.Ports:
    """Choose a free port for every socket of a cluster; *apiserver* is used unchanged unless it is 0.

    The search starts at a port that depends on *seed*, the cluster's folder. A cluster gets the same ports each
    time it is created, and two clusters that start at the same time search in different ranges.
    """
    if apiserver:
        require_free(apiserver, "kube-apiserver", "end that program, or use another port: --port")
    free = _free(taken | {apiserver}, zlib.crc32(seed.encode()))
    names = [field.name for field in dataclasses.fields(state.Ports)]
    fixed = {"kube_apiserver": apiserver} if apiserver else {}
    return state.Ports(**{name: fixed.get(name) or next(free) for name in names})


def require_free(port: int, component: str, hint: str) -> None:
    """Raise, with *hint*, if *component* cannot listen on *port*; name the process that uses it."""
    try:
        _try_to_listen(port)
    except OSError as exc:
        in_use = exc.errno == errno.EADDRINUSE
        reason = f"is in use{_owner(port)}" if in_use else f"cannot be used: {exc.strerror}"
        raise errors.HostError(
            f"port {port}, needed by {component}, {reason}", hint=hint if in_use else "use another port: --port"
        ) from exc


def _try_to_listen(port: int) -> None:
    with socket.socket() as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Go: closing connections do not block it
        attempt.bind((LOOPBACK, port))


def _is_free(port: int) -> bool:
    try:
        _try_to_listen(port)
    except OSError:
        return False
    return True


def _free(taken: AbstractSet[int], start: int) -> Iterator[int]:
    size = HIGHEST - LOWEST
    for step in range(size):
        port = LOWEST + (start + step) % size
        if port not in taken and _is_free(port):
            yield port
    raise errors.HostError("no loopback port is free", hint="end some of the programs that listen on loopback")


def _owner(port: int) -> str:
    try:
        for socket_ in psutil.net_connections("tcp"):
            if socket_.status == psutil.CONN_LISTEN and socket_.laddr and socket_.laddr.port == port and socket_.pid:
                return f" by {psutil.Process(socket_.pid).name()} (process {socket_.pid})"
    except psutil.Error:  # macOS: only root may see it
        pass
    return ""
