"""API server faults: restarts and kills during a sync, and no streaming lists."""

import os
import signal
from pathlib import Path

import pytest

from kwokfleet import settings
from kwokfleet.embedded import binaries, progress
from kwokfleet.kube import requests
from tests.harness import cli, control_plane, faulty_proxy, foreign_objects, supervised_kwok, sync_testbed, waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.faulty_proxy import Fault, ProxiedRequest, Reject
from tests.harness.sync_testbed import SyncTestbed, output

SIZE = 400
PAGES = 1200
"""More nodes than two pages of a list."""


def restart(program: cli.Cli, cluster: ControlPlane) -> None:
    """Restart the API server with SIGTERM."""
    program.ok("cluster", "restart", "kube-apiserver", "--name", cluster.where.name)


def kill(program: cli.Cli, cluster: ControlPlane) -> None:
    """Kill the API server and start it again."""
    pid = int(cluster.where.pid_file("kube-apiserver").read_text())
    os.kill(pid, signal.SIGKILL)
    waiting.until(lambda: not supervised_kwok.process_exists(pid))  # it holds its port until it has exited
    program.ok("cluster", "up", "--name", cluster.where.name)


@pytest.mark.parametrize("fail", [restart, kill])
def test_a_sync_survives_an_api_server_restart(testbed: SyncTestbed, fail: object) -> None:
    """During creation, change and deletion of nodes: the sync continues and no change is lost."""
    operator = cli.Cli(
        control_plane.STATE, testbed.program.environment | {"KWOKFLEET_DATA_DIR": str(control_plane.STATE)}
    )
    testbed.write({"name": "a", "replicas": SIZE})
    process = testbed.start("--qps", "80")
    waiting.until(lambda: len(testbed.names()) > SIZE / 4)
    fail(operator, testbed.cluster)  # type: ignore[operator]  # one of the two above
    done = sync_testbed.wait_for_exit(process)
    assert done.returncode == 0, output(done)
    testbed.assert_settled(a=SIZE)
    testbed.write({"name": "a", "replicas": SIZE - 100, "labels": {"tier": "gold"}})
    process = testbed.start("--qps", "80")
    gold = ("get", "nodes", "--selector", "tier=gold", "--output", "name")
    waiting.until(lambda: len(testbed.cluster.kubectl(*gold).splitlines()) > SIZE / 4)
    fail(operator, testbed.cluster)  # type: ignore[operator]  # one of the two above
    done = sync_testbed.wait_for_exit(process)
    assert done.returncode == 0, output(done)
    testbed.assert_settled(a=SIZE - 100)


def test_paged_lists_give_the_same_diff_as_streaming_lists(
    testbed: SyncTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str]
) -> None:
    """Without streaming lists, paged lists give a byte-identical diff."""

    def rule(request: ProxiedRequest) -> Fault | None:
        return Reject(422, "sendInitialEvents: Forbidden") if "sendInitialEvents" in request.path else None

    testbed.write({"name": "a", "replicas": PAGES}, {"name": "b", "replicas": 20})
    assert testbed.sync().returncode == 0
    testbed.write({"name": "a", "replicas": PAGES + 5, "labels": {"tier": "gold"}}, {"name": "b", "replicas": 10})
    proxy.rule = rule
    streamed, paged = (testbed.diff("--output", "json", "--details", **variables) for variables in ({}, through))
    assert (paged.returncode, paged.stdout) == (1, streamed.stdout)
    always = len(requests.MANAGED_KINDS) - len(requests.KWOK_KINDS)
    assert len(proxy.faults) == always, "every kind was first requested as a stream"


def test_an_api_server_without_streaming_lists(kwokfleet: cli.Cli, tmp_path: Path) -> None:
    """With the feature gate off, sync and diff work."""
    flags = (
        "kube-apiserver=feature-gates=WatchList=false",
        *("=".join(argument) for argument in foreign_objects.QUIET.extra_args),
    )
    kwokfleet.ok("cluster", "up", *(argument for flag in flags for argument in ("--extra-args", flag)))
    tools = binaries.ensure(settings.from_environment(os.environ), progress.discard)
    cluster = ControlPlane(kwokfleet.where(), tools)
    with foreign_objects.assert_unchanged(cluster):
        for testbed in sync_testbed.opened(cluster, kwokfleet, tmp_path):
            testbed.write({"name": "a", "replicas": PAGES})
            done = testbed.sync()
            assert done.returncode == 0, output(done)
            testbed.assert_settled(a=PAGES)
            testbed.write({"name": "a", "replicas": PAGES - 100, "labels": {"tier": "gold"}})
            assert testbed.diff().returncode == 1
            done = testbed.sync()
            assert done.returncode == 0, output(done)
            testbed.assert_settled(a=PAGES - 100)
