"""The daemon against a real control plane: files, git, drift, schedules, leaders, waves, start and stop."""

import hashlib
import hmac
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kwokfleet import errors
from tests.harness import cli, daemon_process, daemon_testbed, git_repository, waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.daemon_testbed import DaemonTestbed

Manifest = dict[str, Any]


@pytest.fixture
def testbed(cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path) -> Iterator[DaemonTestbed]:
    """Return a testbed; remove our objects from the cluster afterwards."""
    yield from daemon_testbed.opened(cluster, kwokfleet, tmp_path)


def test_a_commit_is_applied_an_invalid_one_is_not_and_a_revert_recovers(testbed: DaemonTestbed) -> None:
    """The problem is in the status, in Events, in metrics and in the log."""
    repository = git_repository.Repository(testbed.folder / "repository")
    first = repository.commit(fleet=testbed.text(3))
    with testbed.run("--git-url", repository.url, "--git-ref", "main", "--git-interval", "200ms") as daemon:
        testbed.wait_for_nodes(3)
        testbed.wait_for_reason("Synced")
        assert first[:7] in testbed.cluster.kubectl("get", "fleets")
        second = repository.commit(fleet=testbed.text(5))
        testbed.wait_for_nodes(5)
        waiting.until(lambda: testbed.fleet()["status"]["source"]["revision"] == f"main@{second[:7]}")
        before = testbed.nodes()
        repository.commit(fleet=testbed.text(5).replace("replicas: 5", "replicas: many"))
        testbed.wait_for_reason("InvalidSource")
        assert testbed.nodes() == before
        assert "fleet.yaml:7" in json.dumps(testbed.fleet()["status"])
        waiting.until(lambda: "InvalidSource" in testbed.event_reasons())
        assert "kwokfleet_source_invalid_files 1.0" in daemon.text("/metrics")
        assert any("fleet.yaml:7" in problem for line in daemon.events("source") for problem in line["problems"])
        repository.git("revert", "--no-edit", "HEAD")
        testbed.wait_for_reason("Synced")
        assert "kwokfleet_source_invalid_files 0.0" in daemon.text("/metrics")


def test_drift_is_repaired(testbed: DaemonTestbed) -> None:
    """A deleted node is created again, and a changed label is restored."""
    testbed.save(5, "labels: {tier: gold}")
    with testbed.run() as daemon:
        testbed.wait_for_nodes(5)
        daemon.wait_synced()
        testbed.cluster.kubectl("delete", "node", f"{testbed.name}-pool-2", "--wait=false")
        testbed.cluster.kubectl("label", "node", f"{testbed.name}-pool-3", "tier=tin", "--overwrite")
        testbed.wait_for_nodes(5)
        waiting.until(lambda: {node["metadata"]["labels"]["tier"] for node in testbed.nodes()} == {"gold"})
        waiting.until(lambda: daemon.events("drift"))
        assert len(daemon.get(f"/api/v1/nodes?fleet={testbed.name}")) == 5
        assert daemon.get("/api/v1/nodes?fleet=unknown") == daemon.get("/api/v1/runs") == []
        assert daemon.get("/api/v1/stages")
        metrics = daemon.text("/metrics")
        assert "kwokfleet_drift_total" in metrics
        assert "kwokfleet_trigger_latency_seconds_count" in metrics
        assert "kwokfleet_trigger_latency_seconds_count 0.0" not in metrics


def test_an_empty_or_missing_folder_freezes_the_source(testbed: DaemonTestbed) -> None:
    """Nothing is deleted, it is reported, and the daemon continues when the files are back."""
    testbed.save(4)
    aside = testbed.folder / "aside"
    with testbed.run() as daemon:
        testbed.wait_for_nodes(4)
        daemon.wait_synced()
        for empty in (True, False):
            before = testbed.nodes()
            testbed.files.rename(aside)
            if empty:
                testbed.files.mkdir()
            waiting.until(lambda: daemon.get("/api/v1/source")["frozen"])
            testbed.wait_for_reason("InvalidSource")
            assert testbed.nodes() == before
            if empty:
                testbed.files.rmdir()
            aside.rename(testbed.files)
            waiting.until(lambda: not daemon.get("/api/v1/source")["frozen"])
            testbed.wait_for_reason("Synced")
        testbed.save(2)
        testbed.wait_for_nodes(2)


def test_a_replaced_symlink_is_followed(testbed: DaemonTestbed) -> None:
    """As with ConfigMaps and git-sync: files are links into a folder whose link is replaced."""
    for number, nodes in (("1", 3), ("2", 6)):
        (testbed.files / f"..{number}").mkdir()
        (testbed.files / f"..{number}" / "fleet.yaml").write_text(testbed.text(nodes))
    (testbed.files / "..data").symlink_to("..1")
    (testbed.files / "fleet.yaml").symlink_to("..data/fleet.yaml")
    with testbed.run():
        testbed.wait_for_nodes(3)
        (testbed.files / "..next").symlink_to("..2")
        (testbed.files / "..next").rename(testbed.files / "..data")
        testbed.wait_for_nodes(6)


def test_a_webhook_triggers_a_fetch(testbed: DaemonTestbed) -> None:
    """Before the interval ends; a wrong signature is rejected."""
    repository = git_repository.Repository(testbed.folder / "repository")
    repository.commit(fleet=testbed.text(2))
    secret = testbed.folder / "secret"
    secret.write_text("the hook's secret")
    git = ("--git-url", repository.url, "--git-ref", "main", "--git-interval", "1h", "--hook-secret-file", str(secret))
    with testbed.run(*git) as daemon:
        testbed.wait_for_nodes(2)
        repository.commit(fleet=testbed.text(4))
        body = json.dumps({"ref": "refs/heads/main"}).encode()
        for key, status in (("wrong", 401), ("the hook's secret", 202)):
            signature = hmac.new(key.encode(), body, hashlib.sha256).hexdigest()
            headers = {"X-GitHub-Event": "push", "X-Hub-Signature-256": f"sha256={signature}"}
            assert daemon.send("/hooks/git", body, headers) == status
        testbed.wait_for_nodes(4)
        assert "the hook's secret" not in "\n".join(daemon.lines)


def test_a_daemon_is_not_synced_before_the_first_fetch(testbed: DaemonTestbed) -> None:
    """An empty Plan without files does not count."""
    repository = git_repository.Repository(testbed.folder / "repository")
    with testbed.run("--git-url", repository.url, "--git-ref", "main", "--git-interval", "200ms") as daemon:
        waiting.until(lambda: daemon.get("/api/v1/source")["frozen"])
        assert not daemon.is_synced
        repository.commit(fleet=testbed.text(2))
        testbed.wait_for_nodes(2)
        waiting.until(lambda: daemon.is_synced)


def test_sighup_reloads_the_files(testbed: DaemonTestbed) -> None:
    """The daemon continues."""
    testbed.save(2)
    with testbed.run() as daemon:
        testbed.wait_for_nodes(2)
        before = daemon.get("/api/v1/source")["succeeded"]
        daemon.process.send_signal(signal.SIGHUP)
        waiting.until(lambda: daemon.get("/api/v1/source")["succeeded"] != before)
        assert daemon.process.poll() is None


def test_a_standby_takes_over_when_the_leader_is_killed(testbed: DaemonTestbed) -> None:
    """It makes no pass before, and runs kwok afterwards."""
    testbed.save(3)
    with testbed.run(kwok=True) as first:
        testbed.wait_for_nodes(3)
        waiting.until(lambda: first.is_leader)
        with testbed.run(kwok=True) as second:
            waiting.until(lambda: second.get("/api/v1/status")["source"]["revision"])
            assert not second.is_leader
            assert second.text("/readyz")
            testbed.save(5)
            testbed.wait_for_nodes(5)
            assert second.get("/api/v1/passes") == second.get("/api/v1/kwok") == []
            first.kill()
            waiting.until(lambda: second.is_leader)
            waiting.until(lambda: [shard["state"] for shard in second.get("/api/v1/kwok")] == ["ready"])
            testbed.save(7)
            testbed.wait_for_nodes(7)


def test_a_blocked_fleet_delays_no_other(testbed: DaemonTestbed) -> None:
    """A PodDisruptionBudget blocks the drain of a node."""
    slow = f"{testbed.name}-slow"
    testbed.save(1, "drain: {policy: evict, timeout: 10m}, taint: false", slow)
    testbed.save(1)
    namespace = testbed.name
    with testbed.run() as daemon:
        testbed.wait_for_nodes(1, slow)
        daemon.wait_synced()
        testbed.cluster.kubectl("create", "namespace", namespace)
        waiting.until(
            lambda: testbed.cluster.try_kubectl("get", "serviceaccount", "default", "-n", namespace).returncode == 0
        )
        labels = {"app": "held"}
        spec = {"nodeName": f"{slow}-pool-0", "containers": [{"name": "main", "image": "busybox"}]}
        metadata = {"name": "held", "namespace": namespace, "labels": labels}
        testbed.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        budget = {"maxUnavailable": 0, "selector": {"matchLabels": labels}}
        metadata = {"name": "held", "namespace": namespace}
        testbed.cluster.apply(
            {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": budget}
        )
        testbed.save(0, "drain: {policy: evict, timeout: 10m}, taint: false", slow)
        waiting.until(lambda: testbed.nodes(slow)[0]["spec"].get("unschedulable"))
        testbed.save(4)
        testbed.wait_for_nodes(4)
        assert len(testbed.nodes(slow)) == 1
        testbed.save(1, "drain: {policy: evict, timeout: 10m}, taint: false", slow)  # a new file ends the drain
        waiting.until(lambda: not testbed.nodes(slow)[0]["spec"].get("unschedulable"))
    testbed.cluster.kubectl("delete", "pods", "--all", "-n", namespace, "--force", "--grace-period=0")
    testbed.cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def test_the_last_of_many_saves_is_applied(testbed: DaemonTestbed) -> None:
    """However quickly they follow each other."""
    testbed.save(1)
    with testbed.run() as daemon:
        testbed.wait_for_nodes(1)
        for number in range(60):
            testbed.save(2 + number % 7)
            time.sleep(0.01)
        testbed.save(9)
        testbed.wait_for_nodes(9)
        waiting.until(lambda: daemon.get("/api/v1/plan")["changes"] == [])


def test_a_scheduled_size_is_applied_at_its_time(testbed: DaemonTestbed) -> None:
    """Without a change of a file or of the cluster."""
    testbed.save(2)
    with testbed.run():
        testbed.wait_for_nodes(2)
        at = datetime.now(UTC) + timedelta(seconds=3)
        testbed.save(2, f"schedule: [{{at: '{at.isoformat()}', replicas: 5}}]")
        testbed.wait_for_nodes(5)
        assert datetime.now(UTC) >= at


def test_suspended_fleets_are_not_changed_until_resumed(testbed: DaemonTestbed) -> None:
    """One fleet, or the whole daemon; only with the token."""
    testbed.save(2)
    with testbed.run() as daemon:
        testbed.wait_for_nodes(2)
        daemon.wait_synced()
        assert daemon.post("/api/v1/suspend", {"fleet": testbed.name}, token="") == 401
        assert daemon.post("/api/v1/suspend", {"fleet": testbed.name}, token="wrong") == 401  # noqa: S106  # wrong
        assert daemon.post("/api/v1/suspend", {"fleet": testbed.name}) == 200
        testbed.wait_for_reason("Suspended")
        testbed.save(4)
        waiting.until(lambda: "suspended" in json.dumps(testbed.fleet()["status"]["withheld"]))
        assert len(testbed.nodes()) == 2
        assert daemon.post("/api/v1/resume", {"fleet": testbed.name}) == 200
        testbed.wait_for_nodes(4)
        assert daemon.post("/api/v1/suspend") == 200
        testbed.cluster.kubectl("delete", "node", f"{testbed.name}-pool-1", "--wait=false")
        waiting.until(lambda: daemon.get("/api/v1/plan")["changes"])
        assert len(testbed.nodes()) == 3
        assert daemon.post("/api/v1/resume") == 200
        testbed.wait_for_nodes(4)
        assert daemon_process.TOKEN not in "\n".join(daemon.lines)


def test_a_withheld_plan_is_approved_by_its_digest(testbed: DaemonTestbed) -> None:
    """A fleet whose file was deleted stays until exactly this plan is approved."""
    other = f"{testbed.name}-other"
    testbed.save(3)
    testbed.save(1, name=other)
    with testbed.run() as daemon:
        testbed.wait_for_nodes(3)
        testbed.wait_for_nodes(1, other)
        daemon.wait_synced()
        (testbed.files / f"{testbed.name}.yaml").unlink()
        testbed.wait_for_reason("PruneWithheld")
        assert "kwokfleet_prune_blocked" in daemon.text("/metrics")
        digest = testbed.fleet()["status"]["withheld"][0]["digest"]
        assert daemon.post("/api/v1/approve", {"digest": "0" * 16}) == 404
        assert len(testbed.nodes()) == 3
        assert daemon.post("/api/v1/approve", {"digest": digest}) == 200
        testbed.wait_for_nodes(0)
        waiting.until(lambda: not testbed.fleet())


WAVE = """
  waves:
    - name: load
      count: {count}
      arrivals: {{rate: 100/s}}
      namespace: {name}
      template: {{apiVersion: v1, kind: ConfigMap, data: {{index: "{{{{index}}}}"}}}}
"""


def test_a_run_is_executed_once_across_daemons(testbed: DaemonTestbed) -> None:
    """A daemon is killed during a Run; the next one continues, and every object exists once."""
    (testbed.files / "fleet.yaml").write_text(testbed.text(1) + WAVE.format(name=testbed.name, count=400))
    submitted = ("configmaps", "-n", testbed.name, "-l", "kwokfleet.dev/wave=load")
    with testbed.run() as daemon:
        waiting.until(lambda: len(testbed.cluster.get(*submitted)["items"]) > 50)
        daemon.kill()
    before = testbed.cluster.get(*submitted)["items"]
    assert len(before) < 400
    with testbed.run() as daemon:
        waiting.until(lambda: [run["state"] for run in _runs(testbed)] == ["Done"])
        [run] = _runs(testbed)
        assert (run["submitted"], run["total"], run["failed"]) == (400, 400, 0)
        after = {item["metadata"]["uid"]: item for item in testbed.cluster.get(*submitted)["items"]}
        assert sorted(int(item["data"]["index"]) for item in after.values()) == list(range(400))
        assert {item["metadata"]["uid"] for item in before} <= after.keys()


def _runs(testbed: DaemonTestbed) -> list[Manifest]:
    waves = (testbed.fleet().get("status") or {}).get("waves") or [{}]
    runs: list[Manifest] = waves[0].get("runs") or []
    return runs


def test_a_stop_ends_kwok_and_releases_the_lease(testbed: DaemonTestbed) -> None:
    """The exit code is 0."""
    testbed.save(3)
    with testbed.run(kwok=True) as daemon:
        testbed.wait_for_nodes(3)
        waiting.until(lambda: [shard["state"] for shard in daemon.get("/api/v1/kwok")] == ["ready"])
        [shard] = daemon.get("/api/v1/kwok")
        assert 'kwokfleet_kwok_up{shard="0"} 1.0' in daemon.text("/metrics")
        assert daemon.stop() == 0
        with pytest.raises(ProcessLookupError):
            os.kill(shard["pid"], 0)
    lease = testbed.cluster.get("lease", "kwokfleet", "-n", "kube-system")
    assert not lease["spec"].get("holderIdentity")


def test_a_signal_during_the_start_stops_the_daemon(testbed: DaemonTestbed) -> None:
    """At any time: no signal is lost."""
    testbed.save(1)
    for number in range(10):
        with testbed.run() as daemon:
            time.sleep(0.12 * (number + 1))
            assert daemon.stop() in (0, errors.ExitCode.TERMINATED, -signal.SIGTERM)


def test_requested_passes_do_not_fail_while_nodes_are_deleted(testbed: DaemonTestbed) -> None:
    """Passes are requested repeatedly over HTTP; all nodes are created again."""
    testbed.save(3)
    with testbed.run() as daemon:
        testbed.wait_for_nodes(3)
        daemon.wait_synced()
        names = [node["metadata"]["name"] for node in testbed.nodes()]
        with ThreadPoolExecutor() as pool:
            for name in names * 3:
                deleting = pool.submit(testbed.cluster.kubectl, "delete", "node", name)
                while not deleting.done():
                    assert daemon.post("/api/v1/sync") == 202
                testbed.wait_for_nodes(3)
        assert not daemon.events("pass_failed")
