"""Waves on a real cluster: budgets shared, objects renewed and removed, Runs suspended, cancelled and retried."""

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
    """Give a test a folder, and leave nothing of ours in the cluster."""
    yield from daemon_testbed.opened(cluster, kwokfleet, tmp_path)


def save(testbed: DaemonTestbed, *waves: str, suspend: bool = False) -> None:
    """Write a fleet with these Waves; each is a YAML mapping, without its braces."""
    lines = "".join(f"    - {{{wave}}}\n" for wave in waves)
    head = testbed.text(1).rstrip() + (f"\n  suspend: {str(suspend).lower()}" if suspend else "")
    draft = testbed.files / ".fleet.yaml"
    draft.write_text(f"{head}\n  waves:\n{lines}")
    draft.replace(testbed.files / "fleet.yaml")


def wave(name: str, more: str, namespace: str, template: str = MAP) -> str:
    """Return a Wave."""
    return f"name: {name}, namespace: {namespace!r}, {more}, template: {template}"


def made(testbed: DaemonTestbed, name: str, kind: str = "configmaps") -> list[Manifest]:
    """Return the objects of a Wave."""
    found: list[Manifest] = testbed.cluster.get(
        kind, "--all-namespaces", "-l", f"kwokfleet.dev/wave={name},kwokfleet.dev/fleet={testbed.name}"
    )["items"]
    return found


def runs(testbed: DaemonTestbed, name: str) -> list[Manifest]:
    """Return what the Ledger knows of a Wave's Runs."""
    waves = (testbed.fleet().get("status") or {}).get("waves") or []
    return next((list(each.get("runs") or []) for each in waves if each["name"] == name), [])


def over(testbed: DaemonTestbed, name: str, state: str = "Done") -> Manifest:
    """Wait until a Wave's only Run is in a state, and return it."""
    waiting.until(lambda: [each["state"] for each in runs(testbed, name)] == [state])
    return runs(testbed, name)[0]


def indices(found: list[Manifest]) -> list[int]:
    """Return which objects of a Run these are."""
    return sorted(int(each["metadata"]["annotations"]["kwokfleet.dev/index"]) for each in found)


def test_two_waves_at_once_share_what_the_api_server_is_given(testbed: DaemonTestbed) -> None:
    """However long the line of one is, the other one's objects come through; no more are sent than allowed."""
    save(
        testbed,
        wave("flood", "count: 600", testbed.name),
        wave("drops", "count: 20, arrivals: {rate: 20/s}", testbed.name),
    )
    with testbed.run(str(testbed.files), "--qps", "100"):
        over(testbed, "drops")
        assert len(made(testbed, "drops")) == 20
        assert [each["state"] for each in runs(testbed, "flood")] == ["Running"]
        over(testbed, "flood")
        assert indices(made(testbed, "flood")) == list(range(600))


def test_churn_renews_exactly_what_it_should(testbed: DaemonTestbed) -> None:
    """The same share in each round, under the same names; all others are never touched, and none is missing."""
    save(testbed, wave("load", "count: 20, churn: {percent: 25%, every: 1s, rounds: 3}", testbed.name))
    with testbed.run():
        waiting.until(lambda: len(made(testbed, "load")) == 20)
        before = {each["metadata"]["name"]: each["metadata"]["uid"] for each in made(testbed, "load")}
        run = over(testbed, "load")
        assert (run["churned"], run["failed"]) == (3, 0)
        after = made(testbed, "load")
        assert indices(after) == list(range(20))
        renewed = [each for each in after if "kwokfleet.dev/round" in each["metadata"]["annotations"]]
        assert 5 <= len(renewed) <= 15
        same = [each for each in after if before[each["metadata"]["name"]] == each["metadata"]["uid"]]
        assert len(same) >= 20 - 15


def test_churn_goes_on_after_a_crash(testbed: DaemonTestbed) -> None:
    """Killed in the middle of the rounds, each round is finished once: every object is there exactly once."""
    save(testbed, wave("load", "count: 30, churn: {percent: 50%, every: 1s, rounds: 4}", testbed.name))
    with testbed.run() as daemon:
        waiting.until(lambda: [each.get("churned", 0) for each in runs(testbed, "load")] == [1])
        daemon.kill()
    with testbed.run():
        assert over(testbed, "load")["churned"] == 4
        assert indices(made(testbed, "load")) == list(range(30))
        rounds = {each["metadata"]["annotations"].get("kwokfleet.dev/round", "0") for each in made(testbed, "load")}
        assert "4" in rounds


def foreign(testbed: DaemonTestbed, namespace: str) -> list[Manifest]:
    """Put things of somebody else beside those of a Run, as like them as may be; return them as they are."""
    near = {"app.kubernetes.io/managed-by": "kwokfleet", "kwokfleet.dev/fleet": testbed.name, "kwokfleet.dev/run": "0"}
    for name, labels in (("plain", {}), ("other-wave", {**near, "kwokfleet.dev/wave": "other"}), ("near", near)):
        metadata = {"name": name, "namespace": namespace, "labels": labels}
        testbed.cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    return strangers(testbed, namespace)


def strangers(testbed: DaemonTestbed, namespace: str) -> list[Manifest]:
    """Return what is not of the Wave called load."""
    found: list[Manifest] = testbed.cluster.get("configmaps", "-n", namespace, "-l", "kwokfleet.dev/wave!=load")[
        "items"
    ]
    return found


def test_what_is_over_is_removed_and_nothing_else(testbed: DaemonTestbed) -> None:
    """By its ttl each object goes; what others have beside it stays as it is, to the byte."""
    testbed.cluster.kubectl("create", "namespace", testbed.name)
    theirs = foreign(testbed, testbed.name)
    save(testbed, f"name: load, count: 5, ttl: 3s, template: {template(testbed)}")
    with testbed.run():
        waiting.until(lambda: len(made(testbed, "load")) == 5)
        waiting.until(lambda: [each.get("upkeep") for each in runs(testbed, "load")] == ["Done"])
        assert made(testbed, "load") == []
        assert strangers(testbed, testbed.name) == theirs
    testbed.cluster.kubectl("delete", "namespace", testbed.name, "--wait=false")


def template(testbed: DaemonTestbed) -> str:
    """Return a template whose namespace is somebody else's."""
    return f"{{apiVersion: v1, kind: ConfigMap, metadata: {{namespace: {testbed.name}}}}}"


def test_a_clean_up_removes_a_run_and_the_namespaces_made_for_it(testbed: DaemonTestbed) -> None:
    """But no namespace in which anything else is, and nothing of anybody else; whichever daemon does it."""
    save(testbed, wave("load", "count: 4, cleanup: 3s", f"{testbed.name}-{{{{index}}}}"))
    with testbed.run() as daemon:
        waiting.until(lambda: len(made(testbed, "load")) == 4)
        daemon.kill()
    theirs = foreign(testbed, f"{testbed.name}-2")
    with testbed.run():
        waiting.until(lambda: [each.get("upkeep") for each in runs(testbed, "load")] == ["Done"])
        assert made(testbed, "load") == []
        assert strangers(testbed, f"{testbed.name}-2") == theirs
        waiting.until(lambda: left(testbed) == [f"{testbed.name}-2"])
    testbed.cluster.kubectl("delete", "namespace", f"{testbed.name}-2", "--wait=false")


def left(testbed: DaemonTestbed) -> list[str]:
    """Return the namespaces of a test."""
    names = [each["metadata"]["name"] for each in testbed.cluster.get("namespaces")["items"]]
    return [name for name in names if name.startswith(testbed.name)]


def test_a_suspended_run_rests_and_goes_on_at_its_pace(testbed: DaemonTestbed) -> None:
    """What would have been due meanwhile is not made up for in a burst; a restart in between changes nothing."""
    load = wave("load", "count: 60, arrivals: {rate: 10/s}", testbed.name)
    save(testbed, load)
    with testbed.run():
        waiting.until(lambda: len(made(testbed, "load")) > 10)
        save(testbed, load, suspend=True)
        waiting.until(lambda: [bool(each.get("paused")) for each in runs(testbed, "load")] == [True])
        resting = indices(made(testbed, "load"))
        assert len(resting) < 60
        assert "Suspended" in testbed.program.ok("get", "runs")
    with testbed.run():
        testbed.wait_for_reason("Suspended")
        assert indices(made(testbed, "load")) == resting
        save(testbed, load)
        run = over(testbed, "load")
        assert run["shiftSeconds"] > 0
        found = made(testbed, "load")
        assert indices(found) == list(range(60))
        later = [each for each in found if int(each["data"]["index"]) not in resting]
        born = [datetime.fromisoformat(each["metadata"]["creationTimestamp"]) for each in later]
        assert (max(born) - min(born)).total_seconds() >= (len(later) - 1) / 10 - 1.5


def test_a_run_rests_while_its_file_cannot_be_read(testbed: DaemonTestbed) -> None:
    """A mistake in the middle of a Run costs nothing but the time until it is mended."""
    load = wave("load", "count: 60, arrivals: {rate: 10/s}", testbed.name)
    save(testbed, load)
    with testbed.run():
        waiting.until(lambda: len(made(testbed, "load")) > 10)
        save(testbed, load.replace("count: 60", "count: sixty"))
        testbed.wait_for_reason("InvalidSource")
        waiting.until(lambda: [bool(each.get("paused")) for each in runs(testbed, "load")] == [True])
        assert len(made(testbed, "load")) < 60
        save(testbed, load)
        assert over(testbed, "load")["shiftSeconds"] > 0
        assert indices(made(testbed, "load")) == list(range(60))


def test_a_run_is_cancelled_goes_on_and_another_is_started_by_hand(testbed: DaemonTestbed) -> None:
    """By words that are written into the cluster; each counts once, however often it is read."""
    save(
        testbed,
        wave("load", "count: 100, arrivals: {rate: 20/s}", testbed.name),
        wave("idle", "start: 1h", testbed.name),
    )
    with testbed.run():
        waiting.until(lambda: len(made(testbed, "load")) > 5)
        testbed.program.ok("wave", "cancel", testbed.name, "load")
        over(testbed, "load", "Cancelled")
        there = indices(made(testbed, "load"))
        assert len(there) < 100
        assert testbed.program.run("wave", "retry", testbed.name, "load", "7").returncode == 2
        assert "not found in the status" in testbed.program.run("wave", "run", testbed.name, "lod").stderr
        testbed.program.ok("wave", "retry", testbed.name, "load", "0")
        assert over(testbed, "load")["submitted"] == 100
        assert indices(made(testbed, "load")) == list(range(100))
        said = testbed.program.ok("wave", "run", testbed.name, "idle")
        name = said.split()[1]
        waiting.until(lambda: [(each["name"], each["state"]) for each in runs(testbed, "idle")] == [(name, "Done")])
    with testbed.run() as daemon:
        daemon.wait_synced()
        assert [each["name"] for each in runs(testbed, "idle")] == [name]
        assert [each["state"] for each in runs(testbed, "load")] == ["Done"]


def quota(testbed: DaemonTestbed, count: int) -> None:
    """Allow so many ConfigMaps in the test's namespace; every namespace has one of its own."""
    metadata = {"name": "few", "namespace": testbed.name}
    spec = {"hard": {"count/configmaps": str(count + 1)}}
    testbed.cluster.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec})
    waiting.until(
        lambda: (
            testbed.cluster.get("resourcequota", "few", "-n", testbed.name).get("status", {}).get("hard")
            == spec["hard"]
        )
    )


def test_what_a_quota_refuses_is_said_and_comes_when_there_is_room(testbed: DaemonTestbed) -> None:
    """Other objects are not kept waiting; when nobody waits any longer, a retry brings the rest."""
    testbed.cluster.kubectl("create", "namespace", testbed.name)
    waiting.until(
        lambda: testbed.cluster.try_kubectl("get", "cm", "kube-root-ca.crt", "-n", testbed.name).returncode == 0
    )
    quota(testbed, 5)
    limited = f"name: load, count: 8, expect: {{deadline: 3s}}, template: {template(testbed)}"
    save(testbed, limited, wave("free", "count: 3", f"{testbed.name}-free"))
    with testbed.run():
        assert over(testbed, "free")["submitted"] == 3
        run = over(testbed, "load")
        assert (run["submitted"], run["failed"], len(made(testbed, "load"))) == (8, 3, 5)
        assert "exceeded quota" in run["why"]
        assert "and 2 more" in run["why"]
        quota(testbed, 100)
        testbed.program.ok("wave", "retry", testbed.name, "load", "0")
        waiting.until(lambda: [(each["state"], each["failed"]) for each in runs(testbed, "load")] == [("Done", 0)])
        assert indices(made(testbed, "load")) == list(range(8))
    testbed.cluster.kubectl("delete", "namespace", testbed.name, "--wait=false")


def test_a_namespace_that_is_being_deleted_delays_only_its_objects(testbed: DaemonTestbed) -> None:
    """They come when it is there again; those of other namespaces do not wait for it."""
    held = f"{testbed.name}-1"
    testbed.cluster.kubectl("create", "namespace", held)
    finalizer = {"metadata": {"name": "held", "namespace": held, "finalizers": ["kwokfleet.test/held"]}}
    testbed.cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", **finalizer})
    testbed.cluster.kubectl("delete", "namespace", held, "--wait=false")
    save(testbed, wave("load", "count: 3, expect: {deadline: 2m}", f"{testbed.name}-{{{{index}}}}"))
    with testbed.run():
        waiting.until(lambda: indices(made(testbed, "load")) == [0, 2])
        waiting.until(lambda: [each["failed"] for each in runs(testbed, "load")] == [1])
        patch = json.dumps({"metadata": {"finalizers": None}})
        testbed.cluster.kubectl("patch", "configmap", "held", "-n", held, "--type=merge", "--patch", patch)
        assert over(testbed, "load")["failed"] == 0
        assert indices(made(testbed, "load")) == [0, 1, 2]
    for name in left(testbed):
        testbed.cluster.kubectl("delete", "namespace", name, "--wait=false")
