"""What the API server keeps kwokfleet from, whatever goes wrong in us: real nodes, and what it may not look into."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kwokfleet.kube import client, discovery, requests
from tests.harness import service_accounts, waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.sandbox import Sandbox

FAKE = "kwok.x-k8s.io/node"
SAYS = "kwokfleet may write only nodes with the annotation kwok.x-k8s.io/node: fake"


@pytest.fixture(scope="module")
def installed(session_cluster: ControlPlane) -> Iterator[ControlPlane]:
    """Give the session's cluster the ServiceAccounts, their rights and the policy, and take them away again."""
    service_accounts.install(session_cluster)
    yield session_cluster
    service_accounts.remove(session_cluster)
    # Other tests have their own ways to write nodes; none of them is kwokfleet's ServiceAccount.
    gone = ("get", "namespace", service_accounts.NAMESPACE)
    waiting.until(lambda: session_cluster.try_kubectl(*gone).returncode != 0)


@pytest.fixture
def us(installed: ControlPlane, tmp_path: Path) -> "Token":
    """Return kwokfleet's own token, and what it can do."""
    return Token(installed, service_accounts.kubeconfig(installed, tmp_path))


class Token:
    """Somebody who asks the API server for something by a token."""

    def __init__(self, cluster: ControlPlane, kubeconfig: Path) -> None:
        self._cluster, self._kubeconfig = cluster, kubeconfig

    def ask(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl with this token."""
        command = [str(self._cluster.tools.path("kubectl")), "--kubeconfig", str(self._kubeconfig), *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)

    def patch_status(self, name: str, status: object) -> requests.Response:
        """Patch a node's status, as kwok does; kubectl would read it first."""
        api = client.connect(kubeconfig=self._kubeconfig)
        body = json.dumps({"status": status}).encode()
        try:
            return api.send(requests.Request("PATCH", f"/api/v1/nodes/{name}/status", body, requests.MERGE_PATCH))
        finally:
            api.close()

    def refused(self, *arguments: str, stdin: str | None = None) -> None:
        """Ask for something that the policy must refuse, in words that tell what to do."""
        done = self.ask(*arguments, stdin=stdin)
        assert done.returncode != 0, done.stdout
        assert SAYS in done.stderr, done.stderr
        assert f"kubectl annotate node NAME {FAKE}=fake" in done.stderr

    def ok(self, *arguments: str, stdin: str | None = None) -> None:
        """Ask for something that must succeed."""
        done = self.ask(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr


def node(box: Sandbox, name: str, **annotations: str) -> dict[str, Any]:
    """Write a node of a test."""
    made = box.manifest("v1", "Node", name, spec={"taints": []})
    return {**made, "metadata": {**made["metadata"], "annotations": annotations}}


@pytest.fixture
def real(box: Sandbox) -> str:
    """Put a node into the cluster that does not say that it is fake."""
    box.cluster.apply(node(box, "real", **{FAKE: "real"}))
    return f"{box.name}-real"


@pytest.fixture
def fake(box: Sandbox) -> str:
    """Put a fake node into the cluster."""
    box.cluster.apply(node(box, "fake", **{FAKE: "fake"}))
    return f"{box.name}-fake"


def merge(name: str, patch: object) -> tuple[str, ...]:
    """Return the words that patch a node."""
    return ("patch", "node", name, "--type=merge", f"--patch={json.dumps(patch)}")


CHANGES = {
    "patch": {"spec": {"unschedulable": True}},
    "label": {"metadata": {"labels": {"app.kubernetes.io/managed-by": "kwokfleet"}}},
    "taint": {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
    "annotate it as fake": {"metadata": {"annotations": {FAKE: "fake"}}},
    "annotate it as fake and change it": {
        "metadata": {"annotations": {FAKE: "fake"}},
        "spec": {"unschedulable": True},
    },
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_node_that_is_not_fake_cannot_be_changed(us: Token, real: str, what: str) -> None:
    """Not even so that it says it is."""
    us.refused(*merge(real, CHANGES[what]))


def test_a_node_without_any_annotation_cannot_be_changed(us: Token, box: Sandbox) -> None:
    """As most real ones of a bare cluster."""
    box.cluster.kubectl("create", "--filename", "-", stdin=json.dumps(node(box, "bare")))
    box.cluster.try_kubectl("annotate", "node", f"{box.name}-bare", "node.alpha.kubernetes.io/ttl-")
    us.refused(*merge(f"{box.name}-bare", CHANGES["patch"]))


def test_the_status_of_a_node_that_is_not_fake_cannot_be_changed(us: Token, real: str) -> None:
    """A real node that is said to be away loses its pods."""
    answer = us.patch_status(real, {"conditions": [{"type": "Ready", "status": "Unknown"}]})
    assert (answer.status, SAYS in answer.message) == (403, True), answer.message


def test_a_node_that_is_not_fake_cannot_be_deleted(us: Token, box: Sandbox, real: str, fake: str) -> None:
    """Neither by name nor among others: of a whole collection, the fake ones go and it stays."""
    us.refused("delete", "node", real, "--wait=false")
    collection = f"/api/v1/nodes?labelSelector={box.selector}"
    us.refused("delete", "--raw", collection)
    assert [each["metadata"]["name"] for each in box.cluster.get("nodes", "-l", box.selector)["items"]] in (
        [real],
        [fake, real],
    )


def test_a_node_that_is_not_fake_cannot_be_made(us: Token, box: Sandbox) -> None:
    """Or it would be somebody's real one when its kubelet comes."""
    us.refused("create", "--filename", "-", stdin=json.dumps(node(box, "made")))


def test_a_fake_node_cannot_be_made_a_real_one(us: Token, fake: str) -> None:
    """Nobody could change it back."""
    us.refused(*merge(fake, {"metadata": {"annotations": {FAKE: None}}}))


def test_everything_can_be_done_to_fake_nodes(us: Token, box: Sandbox) -> None:
    """What a sync does, and kwok."""
    name = f"{box.name}-made"
    us.ok("create", "--filename", "-", stdin=json.dumps(node(box, "made", **{FAKE: "fake"})))
    for what in ("patch", "label", "taint"):
        us.ok(*merge(name, CHANGES[what]))
    assert us.patch_status(name, {"capacity": {"cpu": "9"}}).status == 200
    us.ok("delete", "node", name, "--wait=false")
    us.ok("create", "--filename", "-", stdin=json.dumps(node(box, "made", **{FAKE: "fake"})))
    us.ok("delete", "--raw", f"/api/v1/nodes?labelSelector={box.selector}")
    assert box.cluster.get("nodes", "-l", box.selector)["items"] == []


def test_nobody_else_is_concerned(us: Token, box: Sandbox, real: str, fake: str) -> None:
    """Whoever has rights of their own to nodes keeps them."""
    for what in CHANGES.values():
        box.cluster.kubectl(*merge(real, what))
    box.cluster.kubectl(*merge(fake, {"metadata": {"annotations": {FAKE: None}}}))
    box.cluster.kubectl("delete", "node", real, fake, "--wait=false")


def test_a_namespace_that_cannot_be_looked_into_is_not_taken_for_empty(
    installed: ControlPlane, box: Sandbox, tmp_path: Path
) -> None:
    """Until somebody lets us look, as docs/rights.md tells; then it is found to be empty."""
    api = client.connect(kubeconfig=service_accounts.kubeconfig(installed, tmp_path))
    more = service_accounts.documented_manifests("Let it remove namespaces")
    try:
        assert discovery.occupied_namespaces(api, {box.name}) == {box.name: "secrets/(may not be listed)"}
        installed.kubectl("apply", "--filename", "-", stdin=more)
        waiting.until(lambda: discovery.occupied_namespaces(api, {box.name}) == {})
    finally:
        installed.kubectl("delete", "--filename", "-", stdin=more)
        api.close()


def test_kinds_are_added_to_waves_by_a_label(installed: ControlPlane) -> None:
    """As docs/rights.md tells: the daemon may make them soon, and no longer once the role is gone."""
    more = service_accounts.documented_manifests("More kinds for waves")
    assert not service_accounts.is_allowed(installed, service_accounts.DAEMON, "create", "services")
    installed.kubectl("apply", "--filename", "-", stdin=more)
    try:
        waiting.until(lambda: service_accounts.is_allowed(installed, service_accounts.DAEMON, "create", "services"))
    finally:
        installed.kubectl("delete", "--filename", "-", stdin=more)
    waiting.until(lambda: not service_accounts.is_allowed(installed, service_accounts.DAEMON, "create", "services"))
