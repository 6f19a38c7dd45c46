"""One run of every daemon feature that sends requests, to check the rights in the manifests.

Two daemons with exactly the ServiceAccount's rights sync, repair, prune, drain, run waves, run kwok and scale
another kwok down; one daemon is killed. At the end kwok runs in pods and then locally again. A viewer runs read-only
commands.
"""

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness import cli, daemon_process, daemon_testbed, kwok_pods, service_accounts, waiting
from tests.harness.control_plane import ControlPlane

Manifest = dict[str, Any]
OTHER_KWOK = "kube-system/kwok-controller"
LEASES = "10s"
"""Duration of node leases; short, because the scenario waits for them."""
CONFIG, SET, OURS = "kwok-provider-config", "kwokfleet.dev/stage-set", "app.kubernetes.io/managed-by=kwokfleet"

CONTROLLER = f"""
apiVersion: kwokfleet.dev/v1alpha1
kind: KwokController
metadata: {{name: default}}
spec: {{leaseDuration: {LEASES}, takeover: {{deployment: {OTHER_KWOK}, policy: scaleDown}}}}
"""
IN_PODS = CONTROLLER.replace("spec: {", f"spec: {{shards: 2, statefulSet: {kwok_pods.NAME}, ")

FLEET = """
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {name: lab}
spec:
  stages: [volume, {file: stages/told.yaml}]
  kwokResources: [{file: kwok/objects.yaml}]
  nodePools:
    - {name: general, replicas: 3, resources: {cpu: 32}, labels: {tier: gold}, lifecycle: slow}
    - {name: asked, replicas: 2, drain: {policy: evict, timeout: 30s}}
    - {name: told, replicas: 2, drain: {policy: delete, timeout: 30s}, scaleDown: emptiest}
    - {name: whole, replicas: 10}
    - {name: scaled, autoscaler: {min: 0, max: 5}}
  lifecycles: [{name: slow, node: {boot: 1s}}]
  waves:
"""
WAVE = """
    - name: {name}
      namespace: "{namespace}"
      pools: [{pool}]
      {more}
      template: {template}
"""
CHURN = "churn: {percent: 100%, every: 1s, rounds: 1}\n      cleanup: 1s"

STAGE = """
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: lab-told}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchLabels: {app: talks}
    matchExpressions:
      - jq: {key: .status.phase, operator: In, values: [Running]}
      - jq: {key: .metadata.deletionTimestamp, operator: DoesNotExist}
  delay: {durationMilliseconds: 500}
  steps:
    - event: {type: Normal, reason: Talks, message: the same again}
    - patch: {subresource: status, root: status, template: 'message: {{ Now | Quote }}'}
"""
"""Emits the same Event about a pod repeatedly."""

OBJECTS: dict[str, Manifest] = {
    "Attach": {"attaches": [{"logsFile": "/dev/null"}]},
    "ClusterAttach": {"attaches": [{"logsFile": "/dev/null"}]},
    "ClusterExec": {"execs": [{"local": {"workDir": "/"}}]},
    "ClusterLogs": {"logs": [{"logsFile": "/dev/null"}]},
    "ClusterPortForward": {"forwards": [{"ports": [80], "command": ["cat"]}]},
    "ClusterResourceUsage": {"usages": [{"usage": {"cpu": {"value": "1"}}}], "selector": {"matchNames": ["nobody"]}},
    "Exec": {"execs": [{"local": {"workDir": "/"}}]},
    "Logs": {"logs": [{"logsFile": "/dev/null"}]},
    "Metric": {"path": "/metrics/own", "metrics": [{"name": "own", "kind": "gauge", "value": "1.0"}]},
    "PortForward": {"forwards": [{"ports": [80], "command": ["cat"]}]},
    "ResourceUsage": {"usages": [{"usage": {"cpu": {"value": "1"}}}]},
}
"""One object of each kwok kind."""


OWN = ",".join(f"{kind}.kwok.x-k8s.io" for kind in OBJECTS)
EVERYTHING = f"stages,storageclasses,namespaces,{OWN}"
SMALLER = {
    "  stages: [volume, {file: stages/told.yaml}]\n": "",
    "  kwokResources: [{file: kwok/objects.yaml}]\n": "",
    "resources: {cpu: 32}": "resources: {cpu: 64}",
    "name: asked, replicas: 2": "name: asked, replicas: 1",
    "name: told, replicas: 2": "name: told, replicas: 1",
    "    - {name: whole, replicas: 10}\n": "",
    "    - {name: scaled, autoscaler: {min: 0, max: 5}}\n": "",
}
"""Replacements that give the smaller fleet file."""


def _pod(**spec: Any) -> Manifest:  # noqa: ANN401  # of a pod
    return {
        "metadata": {"labels": {"app": "talks"}},
        "spec": {"containers": [{"name": "main", "image": "none"}], **spec},
    }


def _workload(api_version: str, kind: str, **spec: Any) -> Manifest:  # noqa: ANN401  # of the kind
    selected = {} if kind == "Job" else {"selector": {"matchLabels": {"app": "talks"}}}
    template = _pod(restartPolicy="Never") if kind == "Job" else _pod()
    return {"apiVersion": api_version, "kind": kind, "spec": {**selected, **spec, "template": template}}


def _waves() -> str:
    apps = "apps/v1"
    kinds = [
        _workload("batch/v1", "Job"),
        _workload(apps, "Deployment"),
        _workload(apps, "ReplicaSet"),
        _workload(apps, "StatefulSet", serviceName="none"),
        _workload(apps, "DaemonSet"),
        {"apiVersion": "v1", "kind": "Pod", **_pod()},
    ]
    pod = kinds[-1]
    waves = [(manifest["kind"].lower(), "played", "general", CHURN, manifest) for manifest in kinds]
    waves += [(pool, "staying", pool, "count: 4", pod) for pool in ("asked", "told")]
    waves += [("varied", "varied-{{index}}", "general", "cleanup: 1s", pod)]
    return "".join(
        WAVE.format(name=name, namespace=place, pool=pool, more=more, template=json.dumps(template))
        for name, place, pool, more, template in waves
    )


def _smaller_fleet() -> str:
    text = FLEET.replace("  waves:\n", "")
    for part, instead in SMALLER.items():
        assert part in text
        text = text.replace(part, instead)
    return text


def _objects() -> str:
    def render(kind: str, spec: Manifest) -> str:
        cluster_scoped = kind.startswith("Cluster") or kind == "Metric"
        metadata = {"name": "own", "labels": {"tier": "gold"}} | ({} if cluster_scoped else {"namespace": "played"})
        return json.dumps({"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})

    return "\n---\n".join(render(*item) for item in OBJECTS.items())


@dataclass
class RightsScenario:
    """Runs the scenario."""

    cluster: ControlPlane
    program: cli.Cli
    folder: Path

    def __post_init__(self) -> None:
        """Write kubeconfigs."""
        self.testbed = daemon_testbed.DaemonTestbed(self.cluster, self.program, self.folder)
        self.files, self.fleet = self.testbed.files, self.testbed.files / "lab.yaml"
        self.small = self.folder / "small.yaml"
        self.daemon = {
            "KUBECONFIG": str(service_accounts.kubeconfig(self.cluster, self.folder)),
            "POD_NAMESPACE": "kwokfleet",
        }
        self.viewer = {"KUBECONFIG": str(service_accounts.kubeconfig(self.cluster, self.folder, "viewer"))}

    def run(self) -> None:
        """Run all steps."""
        self._create_other_kwok()
        self._write()
        self._run_viewer_commands(self.files)
        self._run_viewer_commands(self.files / "other.yaml")
        with ExitStack() as stack:
            first, second = (stack.enter_context(self._running(name)) for name in ("first", "second"))
            waiting.until(lambda: first.is_leader or second.is_leader)
            lead, other = (first, second) if first.is_leader else (second, first)
            lead.wait_synced()
            self._wait_for_waves()
            self._run_viewer_commands(self.small)
            self._repair_drift()
            self._suspend(lead)
            lead.kill()
            waiting.until(lambda: other.is_leader)
            self._shrink(other)
            self._run_viewer_commands(self.files)
            self._move_kwok_to_pods_and_back()
        waiting.until(lambda: self._other_kwok_has(1))

    # set-up

    def _running(self, name: str) -> Any:  # noqa: ANN401  # a context manager
        variables = self.daemon | {"POD_NAME": name}
        return daemon_process.running(self.program, str(self.files), kwok=True, variables=variables)

    def _create_other_kwok(self) -> None:
        """Create another kwok Deployment, with the name in kwok's own manifests."""
        namespace, _, name = OTHER_KWOK.partition("/")
        self.cluster.kubectl("create", "deployment", name, "--image=none", "--namespace", namespace)

    def _other_kwok_has(self, replicas: int) -> bool:
        namespace, _, name = OTHER_KWOK.partition("/")
        return bool(self.cluster.get("deployment", name, "--namespace", namespace)["spec"]["replicas"] == replicas)

    def _write(self) -> None:
        for name, text in (("stages/told.yaml", STAGE), ("kwok/objects.yaml", _objects())):
            (self.files / name).parent.mkdir(exist_ok=True)
            (self.files / name).write_text(text)
        (self.files / "controller.yaml").write_text(CONTROLLER)
        (self.files / "other.yaml").write_text(self.testbed.text(1, name="other"))
        self.fleet.write_text(FLEET + _waves())
        self.small.write_text(_smaller_fleet())

    def _run_viewer_commands(self, path: Path) -> None:
        """Run read-only commands as the viewer; each must exit with 0 or 1."""
        for words in (("diff", str(path)), ("status", str(path)), ("get", "nodes"), ("get", "runs")):
            done = self.program.run(*words, **self.viewer)
            assert done.returncode in (0, 1), f"{words}: {done.returncode}: {done.stdout}{done.stderr}"

    def _list(self, what: str, *more: str) -> list[Manifest]:
        items: list[Manifest] = self.cluster.get(what, *more)["items"]
        return items

    # steps

    def _wait_for_waves(self) -> None:
        """Wait for the waves, their churn and clean-up, and for kwok's Events."""
        waiting.until(lambda: self._other_kwok_has(0))
        waiting.until(lambda: {run["state"] for run in self._runs()} == {"Done"} and len(self._runs()) == 9)
        waiting.until(lambda: not self._list("pods", "--namespace", "played"))
        repeated = ("events", "--namespace", "staying", "--field-selector", "reason=Talks")
        waiting.until(lambda: any(event.get("count", 1) > 1 for event in self._list(*repeated)))

    def _runs(self) -> list[Manifest]:
        runs = json.loads(self.program.ok("get", "runs", "--output", "json", **self.viewer))
        return [dict(run) for run in runs]

    def _repair_drift(self) -> None:
        """Change one object of each kind; wait until it is repaired."""
        kubectl = self.cluster.kubectl
        kubectl("delete", "node", "lab-general-0", "--wait=false")
        kubectl("label", "node", "lab-general-1", "tier=tin", "--overwrite")
        less = _merge_patch_options({"status": {"capacity": {"cpu": "1"}}})
        kubectl("patch", "node", "lab-general-2", "--subresource=status", *less)
        kubectl("label", "storageclass", "kwok-volume", f"{SET}=none", "--overwrite")
        kubectl("delete", "stage", "volume-delete")
        kubectl("patch", "stage", "lab-told", *_merge_patch_options({"spec": {"delay": {"durationMilliseconds": 900}}}))
        kubectl("patch", "configmap", CONFIG, *_merge_patch_options({"data": {"config": "none"}}))
        kubectl("label", OWN, "own", "--namespace=played", "tier=tin", "--overwrite")
        waiting.until(lambda: len(self._list("nodes", "-l", "tier=gold")) == 3)
        waiting.until(lambda: self.cluster.get("configmap", CONFIG)["data"]["config"] != "none")
        waiting.until(lambda: self.cluster.get("stage", "lab-told")["spec"]["delay"]["durationMilliseconds"] == 500)
        waiting.until(lambda: not self._list(EVERYTHING, "--namespace=played", "-l", f"{SET}=none"))
        waiting.until(lambda: self.cluster.try_kubectl("get", "stage", "volume-delete").returncode == 0)
        waiting.until(lambda: not self._list(EVERYTHING, "--namespace=played", "-l", "tier=tin"))
        waiting.until(lambda: self.cluster.get("node", "lab-general-2")["status"]["capacity"]["cpu"] == "32")

    def _suspend(self, lead: daemon_process.DaemonProcess) -> None:
        for path in ("suspend", "resume"):
            assert lead.post(f"/api/v1/{path}", {"fleet": "lab"}) == 200

    def _shrink(self, lead: daemon_process.DaemonProcess) -> None:
        """Shrink the files and approve the deletions."""
        self.small.replace(self.fleet)
        (self.files / "other.yaml").unlink()
        waiting.until(lambda: self._is_shrunk(lead))

    def _is_shrunk(self, lead: daemon_process.DaemonProcess) -> bool:
        """Approve withheld changes; return whether all removed objects are deleted."""
        for fleet in self._list("fleets"):
            for withheld in fleet["status"].get("withheld") or ():
                if withheld.get("digest"):
                    lead.post("/api/v1/approve", {"digest": withheld["digest"]})
        left = [manifest["metadata"]["name"] for manifest in self._list(EVERYTHING, "--namespace=played", "-l", OURS)]
        pools = sorted(node["metadata"]["name"][:-2] for node in self._list("nodes", "-l", OURS))
        fleets = [fleet["metadata"]["name"] for fleet in self._list("fleets")]
        configured = self.cluster.try_kubectl("get", "configmap", CONFIG).returncode == 0
        return (
            fleets == ["lab"]
            and pools == ["lab-asked", *["lab-general"] * 3, "lab-told"]
            and not {"own", "kwok-volume", "lab-told"} & set(left)
            and not configured
        )

    def _move_kwok_to_pods_and_back(self) -> None:
        """Move kwok to pods and back to the daemon; the pods themselves do not run."""
        kwok_pods.install_statefulset(self.cluster, service_accounts.NAMESPACE)
        (self.files / "controller.yaml").write_text(IN_PODS)
        waiting.until(lambda: self._statefulset_replicas() == 2)
        (self.files / "controller.yaml").write_text(CONTROLLER)
        waiting.until(lambda: self._statefulset_replicas() == 0)

    def _statefulset_replicas(self) -> int:
        statefulset = self.cluster.get("statefulset", kwok_pods.NAME, "--namespace", service_accounts.NAMESPACE)
        return int(statefulset["spec"]["replicas"])


def _merge_patch_options(patch: Manifest) -> tuple[str, str]:
    return "--type=merge", f"--patch={json.dumps(patch)}"
