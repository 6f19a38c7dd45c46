"""Free loopback ports, and who sits on one that is not free."""

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
"""Below the range from which systems hand out ports to outgoing connections."""


def choose(apiserver: int, taken: AbstractSet[int], seed: str) -> state.Ports:
    """Choose a free port for every socket of a cluster; *apiserver* is used as it is unless 0.

    The search starts at a place that depends on *seed*, the cluster's folder: the same cluster gets
    the same ports each time it is made, and two that start at the same moment, unknown to each
    other, look in different places.
    """
    if apiserver:
        require_free(apiserver, "kube-apiserver", "end that program, or choose another port: --port")
    free = _free(taken | {apiserver}, zlib.crc32(seed.encode()))
    return state.Ports(
        kube_apiserver=apiserver or next(free),
        kube_controller_manager=next(free),
        kube_scheduler=next(free),
        etcd=next(free),
        etcd_peer=next(free),
        kwok=next(free),
    )


def require_free(port: int, component: str, hint: str) -> None:
    """Raise, with *hint*, if *component* cannot listen on *port*; name who has it."""
    try:
        _try_to_listen(port)
    except OSError as exc:
        in_use = exc.errno == errno.EADDRINUSE
        why = f"is in use{_by_whom(port)}" if in_use else f"cannot be used: {exc.strerror}"
        raise errors.HostError(
            f"port {port}, needed by {component}, {why}", hint=hint if in_use else "choose another port: --port"
        ) from exc


def _try_to_listen(port: int) -> None:
    with socket.socket() as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # Go does; old connections do not matter
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
    raise errors.HostError("no free port on loopback", hint="end some of the programs that listen there")


def _by_whom(port: int) -> str:
    try:
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port and each.pid:
                return f" by {psutil.Process(each.pid).name()} (process {each.pid})"
    except psutil.Error:  # macOS tells only root
        pass
    return ""
