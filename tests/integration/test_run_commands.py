"""Commands for fleets and Runs: suspend, resume, status --watch, get waves and runs."""

import json
import re
import secrets
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import cli, daemon_process, git_repository, in_process_sync, kwok, waiting
from tests.harness.control_plane import ControlPlane

EXAMPLE = Path(__file__).parents[2] / "fleets" / "quickstart.yaml"
FLEET = """
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {{name: {name}}}
spec:
  nodePools: [{{name: pool, replicas: {nodes}}}]
"""
WAVE = """
  waves:
    - {{name: load, count: 20, namespace: {name}, template: {{apiVersion: v1, kind: ConfigMap}}}}
    - {{name: later, start: 1h, namespace: {name}, template: {{apiVersion: v1, kind: ConfigMap}}}}
"""


class GitTestbed:
    """A git repository with one fleet, and the CLI."""

    def __init__(self, cluster: ControlPlane, program: cli.Cli, folder: Path) -> None:
        self.cluster, self.program = cluster, program
        self.name = f"o-{secrets.token_hex(3)}"
        self.repository = git_repository.Repository(folder / "repository")

    def text(self, nodes: int, more: str = "") -> str:
        """Return a fleet file."""
        return (FLEET + more).format(name=self.name, nodes=nodes)

    @property
    def path(self) -> str:
        """Folder of the repository."""
        return str(self.repository.root)

    def status(self) -> Any:  # noqa: ANN401  # JSON
        """Return the Fleet's status."""
        return self.cluster.get("fleet", self.name)["status"]


@pytest.fixture
def testbed(cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path) -> Iterator[GitTestbed]:
    """Return a testbed; delete the managed objects before and after."""
    kwok.install_crds(cluster)
    in_process_sync.delete_managed_objects(cluster)
    program = cli.Cli(kwokfleet.data_dir, kwokfleet.environment | {"KUBECONFIG": str(cluster.kubeconfig)})
    yield GitTestbed(cluster, program, tmp_path)
    in_process_sync.delete_managed_objects(cluster)


def test_sync_does_not_change_a_suspended_fleet_until_resumed(testbed: GitTestbed) -> None:
    """Diff shows the same plan as sync applies."""
    testbed.repository.commit(fleet=testbed.text(2))
    testbed.program.ok("sync", testbed.path)
    testbed.program.ok("suspend", testbed.name)
    testbed.repository.commit(fleet=testbed.text(5))
    plan = json.loads(testbed.program.run("diff", testbed.path, "-o", "json").stdout)
    assert plan["changes"] == []
    assert [item["cause"] for item in plan["withheld"]] == ["suspended"]
    testbed.program.run("sync", testbed.path, "--yes")
    assert testbed.status()["nodes"]["present"] == 2
    testbed.program.ok("resume", testbed.name)
    testbed.program.ok("sync", testbed.path)
    assert testbed.status()["nodes"]["present"] == 5


def test_a_daemon_respects_a_suspension_from_before_its_start(testbed: GitTestbed) -> None:
    """Nothing is changed before it has read the Fleet."""
    testbed.repository.commit(fleet=testbed.text(2))
    testbed.program.ok("sync", testbed.path)
    testbed.program.ok("suspend", testbed.name)
    commit = testbed.repository.commit(fleet=testbed.text(5))
    with daemon_process.running(testbed.program, testbed.path, kwok=False) as daemon:
        waiting.until(lambda: commit[:7] in testbed.status()["source"]["revision"])
        assert [item["cause"] for item in testbed.status()["withheld"]] == ["suspended"]
        assert testbed.status()["nodes"]["present"] == 2
        assert daemon.get("/api/v1/plan")["changes"] == []
        testbed.program.ok("resume", testbed.name)
        waiting.until(lambda: testbed.status()["nodes"]["present"] == 5)


def test_missing_rights_for_fleets_and_leases_are_reported(testbed: GitTestbed, tmp_path: Path) -> None:
    """A rejected list is not an empty one; a daemon that cannot read the Lease reports why."""
    testbed.cluster.kubectl("create", "serviceaccount", testbed.name, "--namespace=default")
    kubeconfig = testbed.cluster.kubeconfig_of(testbed.name, tmp_path / "no-rights.json")
    testbed.repository.commit(fleet=testbed.text(2))
    testbed.program.ok("sync", testbed.path)
    for arguments in (("get", "runs"), ("suspend", testbed.name), ("approve", "0")):
        done = testbed.program.run(*arguments, KUBECONFIG=str(kubeconfig))
        assert (done.returncode, done.stdout) == (4, "")
        assert "403" in done.stderr
    program = cli.Cli(testbed.program.data_dir, testbed.program.environment | {"KUBECONFIG": str(kubeconfig)})
    with daemon_process.running(program, testbed.path, kwok=False) as daemon:
        events = waiting.until(lambda: daemon.events("lease_not_accessible"))
        assert "leases" in events[0]["error"]
    testbed.cluster.kubectl("delete", "serviceaccount", testbed.name, "--namespace=default")


def test_a_missing_or_unknown_fleet_name_is_an_error_with_a_hint(testbed: GitTestbed) -> None:
    """Nothing is changed."""
    testbed.repository.commit(fleet=testbed.text(1))
    testbed.program.ok("sync", testbed.path)
    for command in ("suspend", "resume"):
        done = testbed.program.run(command)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"POST /api/v1/{command}" in done.stderr
        done = testbed.program.run(command, "nobody")
        assert (done.returncode, done.stdout) == (2, "")
        assert "'nobody'" in done.stderr


def test_a_sync_writes_its_commit_to_the_status(testbed: GitTestbed) -> None:
    """Like the daemon; changed files get another revision."""
    commit = testbed.repository.commit(fleet=testbed.text(1))
    testbed.program.ok("sync", testbed.path)
    assert commit[:7] in testbed.cluster.kubectl("get", "fleets")
    first = testbed.status()["source"]
    assert (first["kind"], first["where"]) == ("folder", testbed.path)
    next(testbed.repository.root.glob("*.yaml")).write_text(testbed.text(2))
    testbed.program.ok("sync", testbed.path)
    second = testbed.status()["source"]
    assert commit[:7] in second["revision"]
    assert second["revision"] != first["revision"]
    assert second["digest"] != first["digest"]


def test_status_watch_prints_each_change_until_ctrl_c(testbed: GitTestbed) -> None:
    """As lines, because standard output is a pipe."""
    testbed.repository.commit(fleet=testbed.text(2))
    testbed.program.ok("sync", testbed.path)
    lines: list[str] = []
    with testbed.program.start("status", "--watch") as process:
        out = process.stdout
        assert out is not None
        reader = threading.Thread(target=lambda: lines.extend(out))
        reader.start()
        pool = f"pool {testbed.name}/pool:"
        try:
            waiting.until(lambda: any(f"{pool} 2 desired, 2 nodes" in line for line in lines))
            testbed.repository.commit(fleet=testbed.text(3))
            testbed.program.ok("sync", testbed.path)
            waiting.until(lambda: any(f"{pool} 3 desired, 3 nodes" in line for line in lines))
            testbed.program.ok("suspend", testbed.name)
            waiting.until(lambda: any(f"fleet {testbed.name}: " in line and "Suspended" in line for line in lines))
            testbed.program.ok("delete", testbed.name, "--yes")
            waiting.until(lambda: any(f"fleet {testbed.name}: deleted" in line for line in lines))
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
            reader.join()


def test_status_watch_survives_an_outage(kwokfleet: cli.Cli) -> None:
    """It is reported once; no log line is printed."""
    kwokfleet.ok("cluster", "up")
    kubeconfig = kwokfleet.ok("cluster", "kubeconfig", "--path").strip()
    lines: list[str] = []
    with kwokfleet.start("status", "--watch", KUBECONFIG=kubeconfig) as process:
        out = process.stdout
        assert out is not None
        reader = threading.Thread(target=lambda: lines.extend(out))
        reader.start()
        try:
            kwokfleet.ok("sync", str(EXAMPLE), KUBECONFIG=kubeconfig)
            waiting.until(lambda: any("pool quickstart/general: 10 desired, 10 nodes" in line for line in lines))
            kwokfleet.ok("cluster", "down")
            waiting.until(lambda: any("cluster: no response from the API server" in line for line in lines))
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
            reader.join()
    assert not [line for line in lines if not re.match(r"[-0-9T:]+Z (cluster|fleet|pool|run|withheld)\b", line)]


def test_status_watch_rejects_files_and_json(testbed: GitTestbed) -> None:
    """Exit code 2 with a hint."""
    for arguments in ([testbed.path], ["-o", "json"]):
        done = testbed.program.run("status", "--watch", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "next:" in done.stderr


def test_waves_and_runs_are_listed(testbed: GitTestbed) -> None:
    """Finished and waiting waves."""
    assert "kwokfleet run" in testbed.program.run("get", "waves").stderr
    testbed.repository.commit(fleet=testbed.text(1, WAVE))
    with daemon_process.running(testbed.program, testbed.path, kwok=False):
        waiting.until(lambda: '"Done"' in testbed.program.ok("get", "runs", "-o", "json"))
    waves = json.loads(testbed.program.ok("get", "waves", "-o", "json", "--fleet", testbed.name))
    assert [(row["wave"], row["state"], row["submitted"], row["total"]) for row in waves] == [
        ("later", "Waiting", 0, 0),
        ("load", "Done", 20, 20),
    ]
    assert testbed.program.ok("get", "runs", "-o", "name") == f"{testbed.name}/load/0\n"
