import os
import socket
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from kwokfleet import errors
from kwokfleet.embedded import ports


@pytest.fixture
def taken() -> Iterator[int]:
    """Listen on a port."""
    with socket.create_server((ports.LOOPBACK, 0)) as server:
        yield server.getsockname()[1]


def test_every_socket_gets_another_free_port() -> None:
    """Six different ports, none of them reserved."""
    first = asdict(ports.choose(0, frozenset(), "same")).values()
    second = asdict(ports.choose(0, frozenset(first), "same")).values()
    assert len({*first, *second}) == 12


def test_clusters_in_different_data_folders_prefer_different_ports() -> None:
    """Two that start at the same time must not compete for a port."""
    ada, bob = (ports.choose(0, frozenset(), seed) for seed in ("/home/ada/demo", "/home/bob/demo"))
    assert not set(asdict(ada).values()) & set(asdict(bob).values())
    assert ports.choose(0, frozenset(), "/home/ada/demo") == ada


def test_a_port_in_use_names_its_user(taken: int) -> None:
    """The message has the port, its purpose and the process that uses it."""
    with pytest.raises(errors.HostError, match=f"port {taken}, needed by kube-apiserver, is in use by") as caught:
        ports.choose(taken, frozenset(), "any")
    assert f"process {os.getpid()}" in str(caught.value)
    assert caught.value.hint
