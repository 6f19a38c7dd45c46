"""The first request of a command: retried for a moment, then an error."""

import json
import socket
from pathlib import Path

import pytest

from tests.harness import cli, faulty_proxy
from tests.harness.control_plane import ControlPlane
from tests.harness.faulty_proxy import Reset


@pytest.mark.parametrize("fault", [Reset(), Reset(0)], ids=["unheard", "unanswered"])
def test_a_broken_first_connection_is_retried(
    cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path, fault: Reset
) -> None:
    """It is reported once, and the command continues."""
    with faulty_proxy.proxy_to(cluster) as proxy:
        proxy.rule = lambda request: fault if request.number <= 3 else None
        done = kwokfleet.run("get", "nodes", "-o", "json", KUBECONFIG=proxy.kubeconfig(tmp_path / "through.json"))
    assert done.returncode == 0, done.stderr
    assert [request.resource for request in proxy.requests[:4]] == ["/version"] * 4
    assert json.loads(done.stdout) == []
    assert done.stderr.count("retrying") == 1


def test_an_unreachable_server_is_an_error_with_its_address(kwokfleet: cli.Cli, tmp_path: Path) -> None:
    """Exit code 4, the address, and the next step."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    done = kwokfleet.run("get", KUBECONFIG=faulty_proxy.FaultyProxy(port).kubeconfig(tmp_path / "nowhere.json"))
    assert (done.returncode, done.stdout) == (4, "")
    note, error, following = done.stderr.splitlines()
    assert note.startswith("note: ")
    assert error.startswith(f"error: no response from the API server at http://127.0.0.1:{port}: ")
    assert error.endswith("Connection refused")
    assert following.startswith(" next: ")
