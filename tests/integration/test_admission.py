"""Writes and reads that the API server rejects for kwokfleet's ServiceAccount."""

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
REJECTION = "kwokfleet may write only nodes with the annotation kwok.x-k8s.io/node: fake"


@pytest.fixture(scope="module")
def installed(session_cluster: ControlPlane) -> Iterator[ControlPlane]:
    """Install the ServiceAccounts, their roles and the admission policy; remove them at the end."""
    service_accounts.install(session_cluster)
    yield session_cluster
    service_accounts.remove(session_cluster)
    get_namespace = ("get", "namespace", service_accounts.NAMESPACE)
    waiting.until(lambda: session_cluster.try_kubectl(*get_namespace).returncode != 0)


@pytest.fixture
def daemon_token(installed: ControlPlane, tmp_path: Path) -> "Token":
    """Return the daemon's token."""
    return Token(installed, service_accounts.kubeconfig(installed, tmp_path))


class Token:
    """Client that authenticates with a ServiceAccount token."""

    def __init__(self, cluster: ControlPlane, kubeconfig: Path) -> None:
        self._cluster, self._kubeconfig = cluster, kubeconfig

    def kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl with this token."""
        command = [str(self._cluster.tools.path("kubectl")), "--kubeconfig", str(self._kubeconfig), *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)

    def patch_status(self, name: str, status: object) -> requests.Response:
        """Patch a node's status without reading it first, as kwok does."""
        api = client.connect(kubeconfig=self._kubeconfig)
        body = json.dumps({"status": status}).encode()
        try:
            return api.send(requests.Request("PATCH", f"/api/v1/nodes/{name}/status", body, requests.MERGE_PATCH))
        finally:
            api.close()

    def assert_rejected(self, *arguments: str, stdin: str | None = None) -> None:
        """Run a command that the policy rejects, with a hint in the message."""
        completed = self.kubectl(*arguments, stdin=stdin)
        assert completed.returncode != 0, completed.stdout
        assert REJECTION in completed.stderr, completed.stderr
        assert f"kubectl annotate node NAME {FAKE}=fake" in completed.stderr

    def assert_accepted(self, *arguments: str, stdin: str | None = None) -> None:
        """Run a command that succeeds."""
        completed = self.kubectl(*arguments, stdin=stdin)
        assert completed.returncode == 0, completed.stderr


def node(box: Sandbox, name: str, **annotations: str) -> dict[str, Any]:
    """Return a node manifest."""
    manifest = box.manifest("v1", "Node", name, spec={"taints": []})
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": annotations}}


@pytest.fixture
def real_node(box: Sandbox) -> str:
    """Create a node without the fake annotation value."""
    box.cluster.apply(node(box, "real", **{FAKE: "real"}))
    return f"{box.name}-real"


@pytest.fixture
def fake_node(box: Sandbox) -> str:
    """Create a fake node."""
    box.cluster.apply(node(box, "fake", **{FAKE: "fake"}))
    return f"{box.name}-fake"


def merge_patch(name: str, patch: object) -> tuple[str, ...]:
    """Return the kubectl arguments of a merge patch of a node."""
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
def test_a_real_node_cannot_be_changed(daemon_token: Token, real_node: str, what: str) -> None:
    """Not even by adding the fake annotation."""
    daemon_token.assert_rejected(*merge_patch(real_node, CHANGES[what]))


def test_a_node_without_annotations_cannot_be_changed(daemon_token: Token, box: Sandbox) -> None:
    """Real nodes of a bare cluster often have none."""
    box.cluster.kubectl("create", "--filename", "-", stdin=json.dumps(node(box, "bare")))
    box.cluster.try_kubectl("annotate", "node", f"{box.name}-bare", "node.alpha.kubernetes.io/ttl-")
    daemon_token.assert_rejected(*merge_patch(f"{box.name}-bare", CHANGES["patch"]))


def test_the_status_of_a_real_node_cannot_be_changed(daemon_token: Token, real_node: str) -> None:
    """A real node that is reported NotReady loses its pods."""
    response = daemon_token.patch_status(real_node, {"conditions": [{"type": "Ready", "status": "Unknown"}]})
    assert (response.status, REJECTION in response.message) == (403, True), response.message


def test_a_real_node_cannot_be_deleted(daemon_token: Token, box: Sandbox, real_node: str, fake_node: str) -> None:
    """Neither by name nor by deletecollection, which deletes only the fake nodes."""
    daemon_token.assert_rejected("delete", "node", real_node, "--wait=false")
    collection = f"/api/v1/nodes?labelSelector={box.selector}"
    daemon_token.assert_rejected("delete", "--raw", collection)
    assert [node["metadata"]["name"] for node in box.cluster.get("nodes", "-l", box.selector)["items"]] in (
        [real_node],
        [fake_node, real_node],
    )


def test_a_real_node_cannot_be_created(daemon_token: Token, box: Sandbox) -> None:
    """A kubelet with this name would register as that node."""
    daemon_token.assert_rejected("create", "--filename", "-", stdin=json.dumps(node(box, "made")))


def test_the_fake_annotation_cannot_be_removed(daemon_token: Token, fake_node: str) -> None:
    """The daemon could not add it again."""
    daemon_token.assert_rejected(*merge_patch(fake_node, {"metadata": {"annotations": {FAKE: None}}}))


def test_fake_nodes_can_be_created_changed_and_deleted(daemon_token: Token, box: Sandbox) -> None:
    """All writes of a sync and of kwok."""
    name = f"{box.name}-made"
    daemon_token.assert_accepted("create", "--filename", "-", stdin=json.dumps(node(box, "made", **{FAKE: "fake"})))
    for what in ("patch", "label", "taint"):
        daemon_token.assert_accepted(*merge_patch(name, CHANGES[what]))
    assert daemon_token.patch_status(name, {"capacity": {"cpu": "9"}}).status == 200
    daemon_token.assert_accepted("delete", "node", name, "--wait=false")
    daemon_token.assert_accepted("create", "--filename", "-", stdin=json.dumps(node(box, "made", **{FAKE: "fake"})))
    daemon_token.assert_accepted("delete", "--raw", f"/api/v1/nodes?labelSelector={box.selector}")
    assert box.cluster.get("nodes", "-l", box.selector)["items"] == []


def test_other_users_are_not_restricted(daemon_token: Token, box: Sandbox, real_node: str, fake_node: str) -> None:
    """The policy applies only to kwokfleet's ServiceAccounts."""
    for what in CHANGES.values():
        box.cluster.kubectl(*merge_patch(real_node, what))
    box.cluster.kubectl(*merge_patch(fake_node, {"metadata": {"annotations": {FAKE: None}}}))
    box.cluster.kubectl("delete", "node", real_node, fake_node, "--wait=false")


def test_a_namespace_that_cannot_be_listed_is_not_empty(installed: ControlPlane, box: Sandbox, tmp_path: Path) -> None:
    """With the role of docs/rights.md it can be listed, and is empty."""
    api = client.connect(kubeconfig=service_accounts.kubeconfig(installed, tmp_path))
    extra_roles = service_accounts.documented_manifests("Let it remove namespaces")
    try:
        assert discovery.occupied_namespaces(api, {box.name}) == {box.name: "secrets/(may not be listed)"}
        installed.kubectl("apply", "--filename", "-", stdin=extra_roles)
        waiting.until(lambda: discovery.occupied_namespaces(api, {box.name}) == {})
    finally:
        installed.kubectl("delete", "--filename", "-", stdin=extra_roles)
        api.close()


def test_a_labelled_role_adds_kinds_to_waves(installed: ControlPlane) -> None:
    """The role of docs/rights.md; without it the daemon loses the right again."""
    extra_roles = service_accounts.documented_manifests("More kinds for waves")
    assert not service_accounts.is_allowed(installed, service_accounts.DAEMON, "create", "services")
    installed.kubectl("apply", "--filename", "-", stdin=extra_roles)
    try:
        waiting.until(lambda: service_accounts.is_allowed(installed, service_accounts.DAEMON, "create", "services"))
    finally:
        installed.kubectl("delete", "--filename", "-", stdin=extra_roles)
    waiting.until(lambda: not service_accounts.is_allowed(installed, service_accounts.DAEMON, "create", "services"))
