"""Words to whoever syncs, and what is seen of them: suspend, resume, status --watch, waves and runs, the commit."""

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


class Desk:
    """A folder with one fleet, and the program."""

    def __init__(self, cluster: ControlPlane, program: cli.Cli, folder: Path) -> None:
        self.cluster, self.program = cluster, program
        self.name = f"o-{secrets.token_hex(3)}"
        self.repository = git_repository.Repository(folder / "repository")

    def text(self, nodes: int, more: str = "") -> str:
        """Return a file."""
        return (FLEET + more).format(name=self.name, nodes=nodes)

    @property
    def path(self) -> str:
        """Where the files are."""
        return str(self.repository.root)

    def status(self) -> Any:  # noqa: ANN401  # JSON
        """Return what the cluster was told."""
        return self.cluster.get("fleet", self.name)["status"]


@pytest.fixture
def desk(cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path) -> Iterator[Desk]:
    """Give a test a folder, and leave nothing of ours in the cluster."""
    kwok.install_crds(cluster)
    in_process_sync.delete_managed_objects(cluster)
    program = cli.Cli(kwokfleet.data_dir, kwokfleet.environment | {"KUBECONFIG": str(cluster.kubeconfig)})
    yield Desk(cluster, program, tmp_path)
    in_process_sync.delete_managed_objects(cluster)


def test_a_suspended_fleet_is_left_alone_by_sync_until_it_is_resumed(desk: Desk) -> None:
    """A diff says so, and what it says is what sync does."""
    desk.repository.commit(fleet=desk.text(2))
    desk.program.ok("sync", desk.path)
    desk.program.ok("suspend", desk.name)
    desk.repository.commit(fleet=desk.text(5))
    held = json.loads(desk.program.run("diff", desk.path, "-o", "json").stdout)
    assert held["changes"] == []
    assert [each["cause"] for each in held["withheld"]] == ["suspended"]
    desk.program.run("sync", desk.path, "--yes")
    assert desk.status()["nodes"]["present"] == 2
    desk.program.ok("resume", desk.name)
    desk.program.ok("sync", desk.path)
    assert desk.status()["nodes"]["present"] == 5


def test_a_daemon_that_starts_knows_who_is_suspended_before_it_changes_anything(desk: Desk) -> None:
    """The order was given while nobody was there."""
    desk.repository.commit(fleet=desk.text(2))
    desk.program.ok("sync", desk.path)
    desk.program.ok("suspend", desk.name)
    commit = desk.repository.commit(fleet=desk.text(5))
    with daemon_process.running(desk.program, desk.path, kwok=False) as daemon:
        waiting.until(lambda: commit[:7] in desk.status()["source"]["revision"])
        assert [each["cause"] for each in desk.status()["withheld"]] == ["suspended"]
        assert desk.status()["nodes"]["present"] == 2
        assert daemon.get("/api/v1/plan")["changes"] == []
        desk.program.ok("resume", desk.name)
        waiting.until(lambda: desk.status()["nodes"]["present"] == 5)


def test_who_may_not_see_fleets_or_leases_is_told_so(desk: Desk, tmp_path: Path) -> None:
    """An answer that was refused is not taken for an empty one, and a daemon that can never lead says why."""
    desk.cluster.kubectl("create", "serviceaccount", desk.name, "--namespace=default")
    who = desk.cluster.kubeconfig_of(desk.name, tmp_path / "nobody.json")
    desk.repository.commit(fleet=desk.text(2))
    desk.program.ok("sync", desk.path)
    for arguments in (("get", "runs"), ("suspend", desk.name), ("approve", "0")):
        done = desk.program.run(*arguments, KUBECONFIG=str(who))
        assert (done.returncode, done.stdout) == (4, "")
        assert "403" in done.stderr
    nobody = cli.Cli(desk.program.data_dir, desk.program.environment | {"KUBECONFIG": str(who)})
    with daemon_process.running(nobody, desk.path, kwok=False) as daemon:
        said = waiting.until(lambda: daemon.events("lease_not_accessible"))
        assert "leases" in said[0]["error"]
    desk.cluster.kubectl("delete", "serviceaccount", desk.name, "--namespace=default")


def test_who_names_no_fleet_or_an_unknown_one_is_told_what_to_do(desk: Desk) -> None:
    """Nothing is changed."""
    desk.repository.commit(fleet=desk.text(1))
    desk.program.ok("sync", desk.path)
    for command in ("suspend", "resume"):
        done = desk.program.run(command)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"POST /api/v1/{command}" in done.stderr
        done = desk.program.run(command, "nobody")
        assert (done.returncode, done.stdout) == (2, "")
        assert "'nobody'" in done.stderr


def test_a_sync_tells_the_cluster_its_commit(desk: Desk) -> None:
    """As the daemon does; files that were changed since are told from it."""
    commit = desk.repository.commit(fleet=desk.text(1))
    desk.program.ok("sync", desk.path)
    assert commit[:7] in desk.cluster.kubectl("get", "fleets")
    first = desk.status()["source"]
    assert (first["kind"], first["where"]) == ("folder", desk.path)
    next(desk.repository.root.glob("*.yaml")).write_text(desk.text(2))
    desk.program.ok("sync", desk.path)
    second = desk.status()["source"]
    assert commit[:7] in second["revision"]
    assert second["revision"] != first["revision"]
    assert second["digest"] != first["digest"]


def test_watching_shows_each_change_as_it_comes_and_ends_with_ctrl_c(desk: Desk) -> None:
    """In a pipe, as lines."""
    desk.repository.commit(fleet=desk.text(2))
    desk.program.ok("sync", desk.path)
    lines: list[str] = []
    with desk.program.start("status", "--watch") as process:
        out = process.stdout
        assert out is not None
        reader = threading.Thread(target=lambda: lines.extend(out))
        reader.start()
        pool = f"pool {desk.name}/pool:"
        try:
            waiting.until(lambda: any(f"{pool} 2 desired, 2 nodes" in line for line in lines))
            desk.repository.commit(fleet=desk.text(3))
            desk.program.ok("sync", desk.path)
            waiting.until(lambda: any(f"{pool} 3 desired, 3 nodes" in line for line in lines))
            desk.program.ok("suspend", desk.name)
            waiting.until(lambda: any(f"fleet {desk.name}: " in line and "Suspended" in line for line in lines))
            desk.program.ok("delete", desk.name, "--yes")
            waiting.until(lambda: any(f"fleet {desk.name}: deleted" in line for line in lines))
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
            reader.join()


def test_watching_survives_a_cluster_that_goes_away(kwokfleet: cli.Cli) -> None:
    """It says so once, in its own words and no log's, and ends as ever."""
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


def test_watching_refuses_what_it_cannot_do(desk: Desk) -> None:
    """It reads no files and prints no JSON."""
    for arguments in ([desk.path], ["-o", "json"]):
        done = desk.program.run("status", "--watch", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "next:" in done.stderr


def test_waves_and_runs_are_listed(desk: Desk) -> None:
    """What was played, and what waits."""
    assert "kwokfleet run" in desk.program.run("get", "waves").stderr
    desk.repository.commit(fleet=desk.text(1, WAVE))
    with daemon_process.running(desk.program, desk.path, kwok=False):
        waiting.until(lambda: '"Done"' in desk.program.ok("get", "runs", "-o", "json"))
    waves = json.loads(desk.program.ok("get", "waves", "-o", "json", "--fleet", desk.name))
    assert [(row["wave"], row["state"], row["submitted"], row["total"]) for row in waves] == [
        ("later", "Waiting", 0, 0),
        ("load", "Done", 20, 20),
    ]
    assert desk.program.ok("get", "runs", "-o", "name") == f"{desk.name}/load/0\n"
