"""Waves on a real cluster: shared budget, churn, clean-up, suspended, cancelled and retried Runs."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.harness import cli, daemon_testbed, waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.daemon_testbed import DaemonTestbed

Manifest = dict[str, Any]
MAP = "{apiVersion: v1, kind: ConfigMap, data: {index: '{{index}}'}}"


@pytest.fixture
def testbed(cluster: ControlPlane, kwokfleet: cli.Cli, tmp_path: Path) -> Iterator[DaemonTestbed]:
    """Return a testbed; delete the managed objects at the end."""
    yield from daemon_testbed.opened(cluster, kwokfleet, tmp_path)


def save(testbed: DaemonTestbed, *waves: str, suspend: bool = False) -> None:
    """Write a fleet with Waves, each a YAML mapping without braces."""
    lines = "".join(f"    - {{{wave}}}\n" for wave in waves)
    head = testbed.text(1).rstrip() + (f"\n  suspend: {str(suspend).lower()}" if suspend else "")
    draft = testbed.files / ".fleet.yaml"
    draft.write_text(f"{head}\n  waves:\n{lines}")
    draft.replace(testbed.files / "fleet.yaml")


def wave(name: str, more: str, namespace: str, template: str = MAP) -> str:
    """Return a Wave."""
    return f"name: {name}, namespace: {namespace!r}, {more}, template: {template}"


def wave_objects(testbed: DaemonTestbed, name: str, kind: str = "configmaps") -> list[Manifest]:
    """Return the objects of a Wave."""
    items: list[Manifest] = testbed.cluster.get(
        kind, "--all-namespaces", "-l", f"kwokfleet.dev/wave={name},kwokfleet.dev/fleet={testbed.name}"
    )["items"]
    return items


def runs(testbed: DaemonTestbed, name: str) -> list[Manifest]:
    """Return a Wave's Runs in the Ledger."""
    waves = (testbed.fleet().get("status") or {}).get("waves") or []
    return next((list(item.get("runs") or []) for item in waves if item["name"] == name), [])


def wait_for_run(testbed: DaemonTestbed, name: str, state: str = "Done") -> Manifest:
    """Wait until a Wave's only Run has a state, and return it."""
    waiting.until(lambda: [run["state"] for run in runs(testbed, name)] == [state])
    return runs(testbed, name)[0]


def indices(manifests: list[Manifest]) -> list[int]:
    """Return the indexes of a Run's objects."""
    return sorted(int(manifest["metadata"]["annotations"]["kwokfleet.dev/index"]) for manifest in manifests)


def test_two_waves_share_the_request_budget(testbed: DaemonTestbed) -> None:
    """A long queue of one does not delay the other; the limit is kept."""
    save(
        testbed,
        wave("flood", "count: 600", testbed.name),
        wave("drops", "count: 20, arrivals: {rate: 20/s}", testbed.name),
    )
    with testbed.run(str(testbed.files), "--qps", "100"):
        wait_for_run(testbed, "drops")
        assert len(wave_objects(testbed, "drops")) == 20
        assert [run["state"] for run in runs(testbed, "flood")] == ["Running"]
        wait_for_run(testbed, "flood")
        assert indices(wave_objects(testbed, "flood")) == list(range(600))


def test_churn_replaces_the_declared_percentage(testbed: DaemonTestbed) -> None:
    """In each round, under the same names; the other objects are not changed."""
    save(testbed, wave("load", "count: 20, churn: {percent: 25%, every: 1s, rounds: 3}", testbed.name))
    with testbed.run():
        waiting.until(lambda: len(wave_objects(testbed, "load")) == 20)
        before = {
            manifest["metadata"]["name"]: manifest["metadata"]["uid"] for manifest in wave_objects(testbed, "load")
        }
        run = wait_for_run(testbed, "load")
        assert (run["churned"], run["failed"]) == (3, 0)
        after = wave_objects(testbed, "load")
        assert indices(after) == list(range(20))
        renewed = [manifest for manifest in after if "kwokfleet.dev/round" in manifest["metadata"]["annotations"]]
        assert 5 <= len(renewed) <= 15
        same = [manifest for manifest in after if before[manifest["metadata"]["name"]] == manifest["metadata"]["uid"]]
        assert len(same) >= 20 - 15


def test_churn_continues_after_a_crash(testbed: DaemonTestbed) -> None:
    """Each round is finished once, and every object exists once."""
    save(testbed, wave("load", "count: 30, churn: {percent: 50%, every: 1s, rounds: 4}", testbed.name))
    with testbed.run() as daemon:
        waiting.until(lambda: [run.get("churned", 0) for run in runs(testbed, "load")] == [1])
        daemon.kill()
    with testbed.run():
        assert wait_for_run(testbed, "load")["churned"] == 4
        assert indices(wave_objects(testbed, "load")) == list(range(30))
        rounds = {
            manifest["metadata"]["annotations"].get("kwokfleet.dev/round", "0")
            for manifest in wave_objects(testbed, "load")
        }
        assert "4" in rounds


def create_foreign_objects(testbed: DaemonTestbed, namespace: str) -> list[Manifest]:
    """Create foreign objects with labels similar to a Run's; return them."""
    near = {"app.kubernetes.io/managed-by": "kwokfleet", "kwokfleet.dev/fleet": testbed.name, "kwokfleet.dev/run": "0"}
    for name, labels in (("plain", {}), ("other-wave", {**near, "kwokfleet.dev/wave": "other"}), ("near", near)):
        metadata = {"name": name, "namespace": namespace, "labels": labels}
        testbed.cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    return foreign_objects(testbed, namespace)


def foreign_objects(testbed: DaemonTestbed, namespace: str) -> list[Manifest]:
    """Return the objects that do not belong to the Wave `load`."""
    items: list[Manifest] = testbed.cluster.get("configmaps", "-n", namespace, "-l", "kwokfleet.dev/wave!=load")[
        "items"
    ]
    return items


def test_ttl_deletes_only_objects_of_the_run(testbed: DaemonTestbed) -> None:
    """Foreign objects in the same namespace stay byte-identical."""
    testbed.cluster.kubectl("create", "namespace", testbed.name)
    foreign_before = create_foreign_objects(testbed, testbed.name)
    save(testbed, f"name: load, count: 5, ttl: 3s, template: {foreign_namespace_template(testbed)}")
    with testbed.run():
        waiting.until(lambda: len(wave_objects(testbed, "load")) == 5)
        waiting.until(lambda: [run.get("upkeep") for run in runs(testbed, "load")] == ["Done"])
        assert wave_objects(testbed, "load") == []
        assert foreign_objects(testbed, testbed.name) == foreign_before
    testbed.cluster.kubectl("delete", "namespace", testbed.name, "--wait=false")


def foreign_namespace_template(testbed: DaemonTestbed) -> str:
    """Return a template in a foreign namespace."""
    return f"{{apiVersion: v1, kind: ConfigMap, metadata: {{namespace: {testbed.name}}}}}"


def test_a_clean_up_deletes_a_run_and_its_namespaces(testbed: DaemonTestbed) -> None:
    """Except foreign objects and namespaces that contain them; also by the next daemon."""
    save(testbed, wave("load", "count: 4, cleanup: 3s", f"{testbed.name}-{{{{index}}}}"))
    with testbed.run() as daemon:
        waiting.until(lambda: len(wave_objects(testbed, "load")) == 4)
        daemon.kill()
    foreign_before = create_foreign_objects(testbed, f"{testbed.name}-2")
    with testbed.run():
        waiting.until(lambda: [run.get("upkeep") for run in runs(testbed, "load")] == ["Done"])
        assert wave_objects(testbed, "load") == []
        assert foreign_objects(testbed, f"{testbed.name}-2") == foreign_before
        waiting.until(lambda: namespaces(testbed) == [f"{testbed.name}-2"])
    testbed.cluster.kubectl("delete", "namespace", f"{testbed.name}-2", "--wait=false")


def namespaces(testbed: DaemonTestbed) -> list[str]:
    """Return the namespaces of a test."""
    names = [namespace["metadata"]["name"] for namespace in testbed.cluster.get("namespaces")["items"]]
    return [name for name in names if name.startswith(testbed.name)]


def test_a_suspended_run_continues_at_its_rate(testbed: DaemonTestbed) -> None:
    """Without a burst; a restart meanwhile changes nothing."""
    load = wave("load", "count: 60, arrivals: {rate: 10/s}", testbed.name)
    save(testbed, load)
    with testbed.run():
        waiting.until(lambda: len(wave_objects(testbed, "load")) > 10)
        save(testbed, load, suspend=True)
        waiting.until(lambda: [bool(run.get("paused")) for run in runs(testbed, "load")] == [True])
        before = indices(wave_objects(testbed, "load"))
        assert len(before) < 60
        assert "Suspended" in testbed.program.ok("get", "runs")
    with testbed.run():
        testbed.wait_for_reason("Suspended")
        assert indices(wave_objects(testbed, "load")) == before
        save(testbed, load)
        run = wait_for_run(testbed, "load")
        assert run["shiftSeconds"] > 0
        manifests = wave_objects(testbed, "load")
        assert indices(manifests) == list(range(60))
        later = [manifest for manifest in manifests if int(manifest["data"]["index"]) not in before]
        created = [datetime.fromisoformat(manifest["metadata"]["creationTimestamp"]) for manifest in later]
        assert (max(created) - min(created)).total_seconds() >= (len(later) - 1) / 10 - 1.5


def test_a_run_pauses_while_its_file_is_invalid(testbed: DaemonTestbed) -> None:
    """It continues when the file is fixed."""
    load = wave("load", "count: 60, arrivals: {rate: 10/s}", testbed.name)
    save(testbed, load)
    with testbed.run():
        waiting.until(lambda: len(wave_objects(testbed, "load")) > 10)
        save(testbed, load.replace("count: 60", "count: sixty"))
        testbed.wait_for_reason("InvalidSource")
        waiting.until(lambda: [bool(run.get("paused")) for run in runs(testbed, "load")] == [True])
        assert len(wave_objects(testbed, "load")) < 60
        save(testbed, load)
        assert wait_for_run(testbed, "load")["shiftSeconds"] > 0
        assert indices(wave_objects(testbed, "load")) == list(range(60))


def test_a_run_is_cancelled_retried_and_started_by_command(testbed: DaemonTestbed) -> None:
    """Each command takes effect once, also after a restart."""
    save(
        testbed,
        wave("load", "count: 100, arrivals: {rate: 20/s}", testbed.name),
        wave("idle", "start: 1h", testbed.name),
    )
    with testbed.run():
        waiting.until(lambda: len(wave_objects(testbed, "load")) > 5)
        testbed.program.ok("wave", "cancel", testbed.name, "load")
        wait_for_run(testbed, "load", "Cancelled")
        submitted = indices(wave_objects(testbed, "load"))
        assert len(submitted) < 100
        assert testbed.program.run("wave", "retry", testbed.name, "load", "7").returncode == 2
        assert "not found in the status" in testbed.program.run("wave", "run", testbed.name, "lod").stderr
        testbed.program.ok("wave", "retry", testbed.name, "load", "0")
        assert wait_for_run(testbed, "load")["submitted"] == 100
        assert indices(wave_objects(testbed, "load")) == list(range(100))
        output = testbed.program.ok("wave", "run", testbed.name, "idle")
        name = output.split()[1]
        waiting.until(lambda: [(run["name"], run["state"]) for run in runs(testbed, "idle")] == [(name, "Done")])
    with testbed.run() as daemon:
        daemon.wait_synced()
        assert [run["name"] for run in runs(testbed, "idle")] == [name]
        assert [run["state"] for run in runs(testbed, "load")] == ["Done"]


def set_quota(testbed: DaemonTestbed, count: int) -> None:
    """Limit the ConfigMaps of the namespace; each namespace already has one."""
    metadata = {"name": "few", "namespace": testbed.name}
    spec = {"hard": {"count/configmaps": str(count + 1)}}
    testbed.cluster.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec})
    waiting.until(
        lambda: (
            testbed.cluster.get("resourcequota", "few", "-n", testbed.name).get("status", {}).get("hard")
            == spec["hard"]
        )
    )


def test_objects_rejected_by_a_quota_are_reported_and_retried(testbed: DaemonTestbed) -> None:
    """They do not delay others; after the deadline a retry creates them."""
    testbed.cluster.kubectl("create", "namespace", testbed.name)
    waiting.until(
        lambda: testbed.cluster.try_kubectl("get", "cm", "kube-root-ca.crt", "-n", testbed.name).returncode == 0
    )
    set_quota(testbed, 5)
    limited = f"name: load, count: 8, expect: {{deadline: 3s}}, template: {foreign_namespace_template(testbed)}"
    save(testbed, limited, wave("free", "count: 3", f"{testbed.name}-free"))
    with testbed.run():
        assert wait_for_run(testbed, "free")["submitted"] == 3
        run = wait_for_run(testbed, "load")
        assert (run["submitted"], run["failed"], len(wave_objects(testbed, "load"))) == (8, 3, 5)
        assert "exceeded quota" in run["why"]
        assert "and 2 more" in run["why"]
        set_quota(testbed, 100)
        testbed.program.ok("wave", "retry", testbed.name, "load", "0")
        waiting.until(lambda: [(run["state"], run["failed"]) for run in runs(testbed, "load")] == [("Done", 0)])
        assert indices(wave_objects(testbed, "load")) == list(range(8))
    testbed.cluster.kubectl("delete", "namespace", testbed.name, "--wait=false")


def test_a_terminating_namespace_delays_only_its_objects(testbed: DaemonTestbed) -> None:
    """They are created after the namespace is created again."""
    held = f"{testbed.name}-1"
    testbed.cluster.kubectl("create", "namespace", held)
    finalizer = {"metadata": {"name": "held", "namespace": held, "finalizers": ["kwokfleet.test/held"]}}
    testbed.cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", **finalizer})
    testbed.cluster.kubectl("delete", "namespace", held, "--wait=false")
    save(testbed, wave("load", "count: 3, expect: {deadline: 2m}", f"{testbed.name}-{{{{index}}}}"))
    with testbed.run():
        waiting.until(lambda: indices(wave_objects(testbed, "load")) == [0, 2])
        waiting.until(lambda: [run["failed"] for run in runs(testbed, "load")] == [1])
        patch = json.dumps({"metadata": {"finalizers": None}})
        testbed.cluster.kubectl("patch", "configmap", "held", "-n", held, "--type=merge", "--patch", patch)
        assert wait_for_run(testbed, "load")["failed"] == 0
        assert indices(wave_objects(testbed, "load")) == [0, 1, 2]
    for name in namespaces(testbed):
        testbed.cluster.kubectl("delete", "namespace", name, "--wait=false")
