"""Leader election faults: there is always one leader, and never two daemons write."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from kwokfleet import errors
from kwokfleet.kube import client, requests
from tests.harness import cli, daemon_process, daemon_testbed, faulty_proxy, waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.daemon_testbed import DaemonTestbed
from tests.harness.faulty_proxy import ProxiedRequest, Reset

KILLS = 10
STOPS = 3
MANY = 1500
"""Number of nodes; a leader is stopped while it creates them."""
LEASE_S = 15


@pytest.fixture
def testbed(cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path, untouched: None) -> Iterator[DaemonTestbed]:
    """Return a testbed in a cluster with foreign objects only."""
    yield from daemon_testbed.opened(cluster, kwokfleet, tmp_path)


@dataclass
class Candidate:
    """A daemon and its proxy to the cluster."""

    daemon: daemon_process.DaemonProcess
    proxy: faulty_proxy.FaultyProxy

    @property
    def pid(self) -> int:
        """Process id."""
        return self.daemon.process.pid

    def writes(self, since: float = 0.0) -> list[ProxiedRequest]:
        """Return its writes, except of its Lease: late Lease writes are rejected by the API server."""
        return [
            request
            for request in list(self.proxy.requests)
            if request.method != "GET" and request.at >= since and not request.resource.endswith("/leases/kwokfleet")
        ]


@pytest.fixture
def two(testbed: DaemonTestbed, tmp_path: Path) -> Iterator[list[Candidate]]:
    """Run two daemons on one folder; the first is the leader."""
    with ExitStack() as stack:
        candidates: list[Candidate] = []
        for name in ("first", "second"):
            proxy = stack.enter_context(faulty_proxy.proxy_to(testbed.cluster))
            kubeconfig = proxy.kubeconfig(tmp_path / f"{name}.json")
            candidates.append(Candidate(stack.enter_context(testbed.run(through={"KUBECONFIG": kubeconfig})), proxy))
            waiting.until(lambda: candidates[0].daemon.is_leader)
        yield candidates


def test_a_stopped_leader_writes_nothing_after_the_next_one_started(
    testbed: DaemonTestbed, two: list[Candidate]
) -> None:
    """SIGSTOP for longer than the lease duration during its work, then SIGCONT."""
    lead, other = two
    for number in range(STOPS):
        before = len(lead.writes())
        testbed.save(MANY, f"labels: {{round: r{number}}}")  # creates the nodes first, then changes all of them
        waiting.until(lambda before=before, lead=lead: len(lead.writes()) > before + MANY // 8)  # type: ignore[misc]
        os.kill(lead.pid, signal.SIGSTOP)
        try:
            stopped = time.monotonic()
            waiting.until(lambda other=other: other.writes())  # type: ignore[misc]
            time.sleep(max(0.0, stopped + LEASE_S + 1 - time.monotonic()))
        finally:
            os.kill(lead.pid, signal.SIGCONT)
        labels = [f"r{number}"] * MANY
        waiting.until(lambda labels=labels: [node["metadata"]["labels"]["round"] for node in testbed.nodes()] == labels)  # type: ignore[misc]
        waiting.until(lambda lead=lead: not lead.daemon.is_leader)  # type: ignore[misc]
        began = other.writes(stopped)[0].at
        assert began > max(request.at for request in lead.writes()), lead.writes(began)
        lead, other = other, lead
        lead.proxy.requests.clear()
        other.proxy.requests.clear()


BODY = b'{"metadata": {"name": "late"}, "data": {"text": "%s"}}' % (b"a" * 100_000)
"""More than one send."""


@pytest.mark.parametrize("pieces", [0, 1])
def test_a_write_can_be_aborted_until_its_last_byte(
    testbed: DaemonTestbed, proxy: faulty_proxy.FaultyProxy, tmp_path: Path, pieces: int
) -> None:
    """A daemon that loses the lease during a request does not send the rest of it."""
    api = client.connect(kubeconfig=Path(proxy.kubeconfig(tmp_path / "through.json")))
    sent: list[None] = []

    def check_lease() -> None:
        if len(sent) == pieces:
            raise errors.NotLeadingError("another daemon leads")
        sent.append(None)

    write = requests.Request("POST", "/api/v1/namespaces/default/configmaps", BODY)
    with pytest.raises(errors.NotLeadingError):
        api.send(write, before_send=check_lease)
    api.close()
    assert proxy.requests == []
    assert testbed.cluster.try_kubectl("get", "configmap", "late").returncode != 0


def test_a_disconnected_leader_steps_down_before_the_next_one_starts(
    testbed: DaemonTestbed, two: list[Candidate]
) -> None:
    """It steps down by itself, and follows when the connection is back."""
    lead, other = two
    testbed.save(3)
    testbed.wait_for_nodes(3)
    lead.proxy.rule = lambda _asked: Reset()
    lead.proxy.reset_all()
    cut = time.monotonic()
    testbed.save(5)
    waiting.until(lambda: not lead.daemon.is_leader)
    assert not other.writes()
    left = time.monotonic()
    waiting.until(other.writes)
    assert cut < left < other.writes()[0].at
    testbed.wait_for_nodes(5)
    lead.proxy.rule = faulty_proxy.pass_through
    testbed.save(7)
    testbed.wait_for_nodes(7)
    waiting.until(lambda: lead.daemon.get("/api/v1/status")["leader"] == other.daemon.get("/api/v1/status")["leader"])
    assert not lead.writes(left)


def test_leaders_are_killed_one_after_the_other(testbed: DaemonTestbed) -> None:
    """The next leader continues, and no existing object is created again."""
    with ExitStack() as stack:
        daemons = [stack.enter_context(testbed.run()), stack.enter_context(testbed.run())]
        uids: dict[str, str] = {}
        for number in range(KILLS):
            testbed.save(5 + number)
            testbed.wait_for_nodes(5 + number)
            current = {node["metadata"]["name"]: node["metadata"]["uid"] for node in testbed.nodes()}
            assert uids.items() <= current.items()
            uids = current
            [lead] = waiting.until(lambda: [daemon for daemon in daemons if daemon.is_leader])
            daemons.remove(lead)
            lead.kill()
            daemons.append(stack.enter_context(testbed.run()))
            waiting.until(lambda: sum(daemon.is_leader for daemon in daemons) == 1)
