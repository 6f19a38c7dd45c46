import os
import socket
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from kwokfleet import errors
from kwokfleet.embedded import ports


@pytest.fixture
def taken() -> Iterator[int]:
    """Listen on some port."""
    with socket.create_server((ports.LOOPBACK, 0)) as server:
        yield server.getsockname()[1]


def test_every_socket_gets_a_free_port_of_its_own() -> None:
    """Six different ones, none of those that others count on."""
    first = asdict(ports.choose(0, frozenset(), "same")).values()
    second = asdict(ports.choose(0, frozenset(first), "same")).values()
    assert len({*first, *second}) == 12


def test_clusters_that_do_not_know_each_other_look_in_different_places() -> None:
    """Two that start at once in two data folders do not race for the same port; one keeps its own."""
    here, there = (ports.choose(0, frozenset(), seed) for seed in ("/home/ada/demo", "/home/bob/demo"))
    assert not set(asdict(here).values()) & set(asdict(there).values())
    assert ports.choose(0, frozenset(), "/home/ada/demo") == here


def test_a_port_in_use_names_its_user(taken: int) -> None:
    """The sentence says which port, for what, and who has it."""
    with pytest.raises(errors.HostError, match=f"port {taken}, needed by kube-apiserver, is in use by") as caught:
        ports.choose(taken, frozenset(), "any")
    assert f"process {os.getpid()}" in str(caught.value)
    assert caught.value.hint
