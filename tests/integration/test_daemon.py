"""The daemon: commit or save a file, and the cluster follows; whatever happens to file, cluster or daemon."""

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
def lab(cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path) -> Iterator[DaemonTestbed]:
    """Give a test a folder, and leave nothing of ours in the cluster."""
    yield from daemon_testbed.opened(cluster, kwokfleet, tmp_path)


def test_a_commit_is_followed_a_bad_one_changes_nothing_and_a_revert_heals(lab: DaemonTestbed) -> None:
    """The commit is shown; what is wrong is said in the fleet, in Events, in metrics and in the log."""
    repository = git_repository.Repository(lab.folder / "repository")
    first = repository.commit(fleet=lab.text(3))
    with lab.run("--git-url", repository.url, "--git-ref", "main", "--git-interval", "200ms") as daemon:
        lab.wait_for_nodes(3)
        lab.wait_for_reason("Synced")
        assert first[:7] in lab.cluster.kubectl("get", "fleets")
        second = repository.commit(fleet=lab.text(5))
        lab.wait_for_nodes(5)
        waiting.until(lambda: lab.fleet()["status"]["source"]["revision"] == f"main@{second[:7]}")
        before = lab.nodes()
        repository.commit(fleet=lab.text(5).replace("replicas: 5", "replicas: many"))
        lab.wait_for_reason("InvalidSource")
        assert lab.nodes() == before
        assert "fleet.yaml:7" in json.dumps(lab.fleet()["status"])
        waiting.until(lambda: "InvalidSource" in lab.event_reasons())
        assert "kwokfleet_source_invalid_files 1.0" in daemon.text("/metrics")
        assert any("fleet.yaml:7" in each for line in daemon.events("source") for each in line["problems"])
        repository.git("revert", "--no-edit", "HEAD")
        lab.wait_for_reason("Synced")
        assert "kwokfleet_source_invalid_files 0.0" in daemon.text("/metrics")


def test_what_somebody_changes_is_repaired(lab: DaemonTestbed) -> None:
    """A node that was deleted is there again, a label that was changed is back."""
    lab.save(5, "labels: {tier: gold}")
    with lab.run() as daemon:
        lab.wait_for_nodes(5)
        daemon.wait_synced()
        lab.cluster.kubectl("delete", "node", f"{lab.name}-pool-2", "--wait=false")
        lab.cluster.kubectl("label", "node", f"{lab.name}-pool-3", "tier=tin", "--overwrite")
        lab.wait_for_nodes(5)
        waiting.until(lambda: {node["metadata"]["labels"]["tier"] for node in lab.nodes()} == {"gold"})
        waiting.until(lambda: daemon.events("drift"))
        assert len(daemon.get(f"/api/v1/nodes?fleet={lab.name}")) == 5
        assert daemon.get("/api/v1/nodes?fleet=nobody") == daemon.get("/api/v1/runs") == []
        assert daemon.get("/api/v1/stages")
        assert "kwokfleet_drift_total" in daemon.text("/metrics")


def test_a_folder_that_is_empty_or_gone_freezes_and_heals(lab: DaemonTestbed) -> None:
    """Nothing is deleted; it is said; and when the files are back, all goes on."""
    lab.save(4)
    aside = lab.folder / "aside"
    with lab.run() as daemon:
        lab.wait_for_nodes(4)
        daemon.wait_synced()
        for empty in (True, False):
            before = lab.nodes()
            lab.files.rename(aside)
            if empty:
                lab.files.mkdir()
            waiting.until(lambda: daemon.get("/api/v1/source")["frozen"])
            lab.wait_for_reason("InvalidSource")
            assert lab.nodes() == before
            if empty:
                lab.files.rmdir()
            aside.rename(lab.files)
            waiting.until(lambda: not daemon.get("/api/v1/source")["frozen"])
            lab.wait_for_reason("Synced")
        lab.save(2)
        lab.wait_for_nodes(2)


def test_a_link_that_is_swapped_is_followed(lab: DaemonTestbed) -> None:
    """As ConfigMaps and git-sync do it: files are links into a folder whose link is replaced."""
    for number, nodes in (("1", 3), ("2", 6)):
        (lab.files / f"..{number}").mkdir()
        (lab.files / f"..{number}" / "fleet.yaml").write_text(lab.text(nodes))
    (lab.files / "..data").symlink_to("..1")
    (lab.files / "fleet.yaml").symlink_to("..data/fleet.yaml")
    with lab.run():
        lab.wait_for_nodes(3)
        (lab.files / "..next").symlink_to("..2")
        (lab.files / "..next").rename(lab.files / "..data")
        lab.wait_for_nodes(6)


def test_a_push_is_fetched_at_the_git_hosts_word(lab: DaemonTestbed) -> None:
    """Nobody waits for the interval; a word with a wrong signature counts for nothing."""
    repository = git_repository.Repository(lab.folder / "repository")
    repository.commit(fleet=lab.text(2))
    secret = lab.folder / "secret"
    secret.write_text("the hook's secret")
    git = ("--git-url", repository.url, "--git-ref", "main", "--git-interval", "1h", "--hook-secret-file", str(secret))
    with lab.run(*git) as daemon:
        lab.wait_for_nodes(2)
        repository.commit(fleet=lab.text(4))
        body = json.dumps({"ref": "refs/heads/main"}).encode()
        for key, status in (("wrong", 401), ("the hook's secret", 202)):
            signature = hmac.new(key.encode(), body, hashlib.sha256).hexdigest()
            headers = {"X-GitHub-Event": "push", "X-Hub-Signature-256": f"sha256={signature}"}
            assert daemon.send("/hooks/git", body, headers) == status
        lab.wait_for_nodes(4)
        assert "the hook's secret" not in "\n".join(daemon.lines)


def test_before_a_repository_was_fetched_nothing_is_synced(lab: DaemonTestbed) -> None:
    """Who waits for the daemon to be ready must not take "there is nothing to do" for it."""
    repository = git_repository.Repository(lab.folder / "repository")
    with lab.run("--git-url", repository.url, "--git-ref", "main", "--git-interval", "200ms") as daemon:
        waiting.until(lambda: daemon.get("/api/v1/source")["frozen"])
        assert not daemon.is_synced
        repository.commit(fleet=lab.text(2))
        lab.wait_for_nodes(2)
        waiting.until(lambda: daemon.is_synced)


def test_a_hangup_reads_the_files_again(lab: DaemonTestbed) -> None:
    """As operators expect of SIGHUP; it goes on."""
    lab.save(2)
    with lab.run() as daemon:
        lab.wait_for_nodes(2)
        before = daemon.get("/api/v1/source")["succeeded"]
        daemon.process.send_signal(signal.SIGHUP)
        waiting.until(lambda: daemon.get("/api/v1/source")["succeeded"] != before)
        assert daemon.process.poll() is None


def test_one_of_two_leads_and_the_other_takes_over(lab: DaemonTestbed) -> None:
    """The second one only looks on; when the first is killed, it goes on, and kwok goes along."""
    lab.save(3)
    with lab.run(kwok=True) as first:
        lab.wait_for_nodes(3)
        waiting.until(lambda: first.is_leader)
        with lab.run(kwok=True) as second:
            waiting.until(lambda: second.get("/api/v1/status")["source"]["revision"])
            assert not second.is_leader
            assert second.text("/readyz")
            lab.save(5)
            lab.wait_for_nodes(5)
            assert second.get("/api/v1/passes") == second.get("/api/v1/kwok") == []
            first.kill()
            waiting.until(lambda: second.is_leader)
            waiting.until(lambda: [each["state"] for each in second.get("/api/v1/kwok")] == ["ready"])
            lab.save(7)
            lab.wait_for_nodes(7)


def test_one_fleet_that_cannot_be_done_delays_no_other(lab: DaemonTestbed) -> None:
    """A node that cannot be emptied for a budget's sake keeps its fleet waiting, and nobody else."""
    slow = f"{lab.name}-slow"
    lab.save(1, "drain: {policy: evict, timeout: 10m}, taint: false", slow)
    lab.save(1)
    namespace = lab.name
    with lab.run() as daemon:
        lab.wait_for_nodes(1, slow)
        daemon.wait_synced()
        lab.cluster.kubectl("create", "namespace", namespace)
        waiting.until(
            lambda: lab.cluster.try_kubectl("get", "serviceaccount", "default", "-n", namespace).returncode == 0
        )
        labels = {"app": "held"}
        spec = {"nodeName": f"{slow}-pool-0", "containers": [{"name": "main", "image": "busybox"}]}
        metadata = {"name": "held", "namespace": namespace, "labels": labels}
        lab.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        budget = {"maxUnavailable": 0, "selector": {"matchLabels": labels}}
        metadata = {"name": "held", "namespace": namespace}
        lab.cluster.apply(
            {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": budget}
        )
        lab.save(0, "drain: {policy: evict, timeout: 10m}, taint: false", slow)
        waiting.until(lambda: lab.nodes(slow)[0]["spec"].get("unschedulable"))
        lab.save(4)
        lab.wait_for_nodes(4)
        assert len(lab.nodes(slow)) == 1
        lab.save(1, "drain: {policy: evict, timeout: 10m}, taint: false", slow)  # a new file ends the wait
        waiting.until(lambda: not lab.nodes(slow)[0]["spec"].get("unschedulable"))
    lab.cluster.kubectl("delete", "pods", "--all", "-n", namespace, "--force", "--grace-period=0")
    lab.cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def test_many_saves_in_a_row_end_with_the_last(lab: DaemonTestbed) -> None:
    """However quickly a file is saved, what is there in the end is what was saved last."""
    lab.save(1)
    with lab.run() as daemon:
        lab.wait_for_nodes(1)
        for number in range(60):
            lab.save(2 + number % 7)
            time.sleep(0.01)
        lab.save(9)
        lab.wait_for_nodes(9)
        waiting.until(lambda: daemon.get("/api/v1/plan")["changes"] == [])


def test_a_schedule_comes_true_by_itself(lab: DaemonTestbed) -> None:
    """A pool has the size that its schedule says, when it says so."""
    lab.save(2)
    with lab.run():
        lab.wait_for_nodes(2)
        at = datetime.now(UTC) + timedelta(seconds=3)
        lab.save(2, f"schedule: [{{at: '{at.isoformat()}', replicas: 5}}]")
        lab.wait_for_nodes(5)
        assert datetime.now(UTC) >= at


def test_what_is_suspended_stays_as_it_is_until_it_is_resumed(lab: DaemonTestbed) -> None:
    """One fleet by its name, and everything; only with the token."""
    lab.save(2)
    with lab.run() as daemon:
        lab.wait_for_nodes(2)
        daemon.wait_synced()
        assert daemon.post("/api/v1/suspend", {"fleet": lab.name}, token="") == 401  # none
        assert daemon.post("/api/v1/suspend", {"fleet": lab.name}, token="wrong") == 401  # noqa: S106  # wrong
        assert daemon.post("/api/v1/suspend", {"fleet": lab.name}) == 200
        lab.wait_for_reason("Suspended")
        lab.save(4)
        waiting.until(lambda: "suspended" in json.dumps(lab.fleet()["status"]["withheld"]))
        assert len(lab.nodes()) == 2
        assert daemon.post("/api/v1/resume", {"fleet": lab.name}) == 200
        lab.wait_for_nodes(4)
        assert daemon.post("/api/v1/suspend") == 200
        lab.cluster.kubectl("delete", "node", f"{lab.name}-pool-1", "--wait=false")
        waiting.until(lambda: daemon.get("/api/v1/plan")["changes"])
        assert len(lab.nodes()) == 3
        assert daemon.post("/api/v1/resume") == 200
        lab.wait_for_nodes(4)
        assert daemon_process.TOKEN not in "\n".join(daemon.lines)


def test_a_withheld_plan_is_released_by_its_digest(lab: DaemonTestbed) -> None:
    """A fleet whose file vanished beside another one stays until exactly that plan is approved."""
    other = f"{lab.name}-other"
    lab.save(3)
    lab.save(1, name=other)
    with lab.run() as daemon:
        lab.wait_for_nodes(3)
        lab.wait_for_nodes(1, other)
        daemon.wait_synced()
        (lab.files / f"{lab.name}.yaml").unlink()
        lab.wait_for_reason("PruneWithheld")
        assert "kwokfleet_prune_blocked" in daemon.text("/metrics")
        digest = lab.fleet()["status"]["withheld"][0]["digest"]
        assert daemon.post("/api/v1/approve", {"digest": "0" * 16}) == 404
        assert len(lab.nodes()) == 3
        assert daemon.post("/api/v1/approve", {"digest": digest}) == 200
        lab.wait_for_nodes(0)
        waiting.until(lambda: not lab.fleet())


WAVE = """
  waves:
    - name: load
      count: {count}
      arrivals: {{rate: 100/s}}
      namespace: {name}
      template: {{apiVersion: v1, kind: ConfigMap, data: {{index: "{{{{index}}}}"}}}}
"""


def test_a_run_is_played_once_whoever_plays_it(lab: DaemonTestbed) -> None:
    """A daemon is killed in the middle of a Run; the next one goes on, and each object is there once."""
    (lab.files / "fleet.yaml").write_text(lab.text(1) + WAVE.format(name=lab.name, count=400))
    made = ("configmaps", "-n", lab.name, "-l", "kwokfleet.dev/wave=load")
    with lab.run() as daemon:
        waiting.until(lambda: len(lab.cluster.get(*made)["items"]) > 50)
        daemon.kill()
    before = lab.cluster.get(*made)["items"]
    assert len(before) < 400
    with lab.run() as daemon:
        waiting.until(lambda: [run["state"] for run in _runs(lab)] == ["Done"])
        [run] = _runs(lab)
        assert (run["submitted"], run["total"], run["failed"]) == (400, 400, 0)
        after = {each["metadata"]["uid"]: each for each in lab.cluster.get(*made)["items"]}
        assert sorted(int(each["data"]["index"]) for each in after.values()) == list(range(400))
        assert {each["metadata"]["uid"] for each in before} <= after.keys()


def _runs(lab: DaemonTestbed) -> list[Manifest]:
    waves = (lab.fleet().get("status") or {}).get("waves") or [{}]
    found: list[Manifest] = waves[0].get("runs") or []
    return found


def test_it_stops_in_order_and_leaves_nothing(lab: DaemonTestbed) -> None:
    """A kwok runs along with it; after a stop there is no kwok, and the Lease is free."""
    lab.save(3)
    with lab.run(kwok=True) as daemon:
        lab.wait_for_nodes(3)
        waiting.until(lambda: [each["state"] for each in daemon.get("/api/v1/kwok")] == ["ready"])
        [shard] = daemon.get("/api/v1/kwok")
        assert 'kwokfleet_kwok_up{shard="0"} 1.0' in daemon.text("/metrics")
        assert daemon.stop() == 0
        with pytest.raises(ProcessLookupError):
            os.kill(shard["pid"], 0)
    lease = lab.cluster.get("lease", "kwokfleet", "-n", "kube-system")
    assert not lease["spec"].get("holderIdentity")


def test_whoever_stops_it_while_it_starts_is_heard(lab: DaemonTestbed) -> None:
    """At any moment from the first on: no signal is lost, however early it comes."""
    lab.save(1)
    for number in range(10):
        with lab.run() as daemon:
            time.sleep(0.12 * (number + 1))
            assert daemon.stop() in (0, errors.ExitCode.TERMINATED, -signal.SIGTERM)


def test_whoever_asks_for_a_pass_that_has_something_to_do_gets_it(lab: DaemonTestbed) -> None:
    """Over HTTP, again and again, while nodes are deleted: all are made again, and no pass fails."""
    lab.save(3)
    with lab.run() as daemon:
        lab.wait_for_nodes(3)
        daemon.wait_synced()
        names = [each["metadata"]["name"] for each in lab.nodes()]
        with ThreadPoolExecutor() as pool:
            for name in names * 3:
                deleting = pool.submit(lab.cluster.kubectl, "delete", "node", name)
                while not deleting.done():
                    assert daemon.post("/api/v1/sync") == 202
                lab.wait_for_nodes(3)
        assert not daemon.events("pass_failed")
