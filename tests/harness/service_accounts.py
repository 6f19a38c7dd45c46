"""kwokfleet's ServiceAccounts in a real cluster, with exactly the rights in the manifests."""

import json
import re
from pathlib import Path
from typing import Any

from tests.harness import kwok, rbac_grants, waiting
from tests.harness.control_plane import ControlPlane

NAMESPACE = "kwokfleet"
DAEMON = f"system:serviceaccount:{NAMESPACE}:kwokfleet"
VIEWER = f"system:serviceaccount:{NAMESPACE}:viewer"
BASE = rbac_grants.DEPLOY / "base"
PAGE = rbac_grants.DEPLOY.parent / "docs" / "rights.md"
Manifest = dict[str, Any]


def documented_manifests(title: str) -> str:
    """Return the manifests of one section of docs/rights.md."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    assert blocks, f"docs/rights.md has no manifests under {title!r}"
    return "---\n".join(blocks)


def install(cluster: ControlPlane) -> None:
    """Install everything except the daemon's Deployment."""
    kwok.install_crds(cluster)
    crd = rbac_grants.DEPLOY / "crds" / "kwokfleet.dev_fleets.yaml"
    files = [
        crd,
        BASE / "namespace.yaml",
        BASE / "serviceaccount.yaml",
        rbac_grants.RIGHTS,
        rbac_grants.VIEWER,
        rbac_grants.KWOK_PODS,
    ]
    cluster.kubectl(
        "apply", *(word for file in (*files, BASE / "admission.yaml") for word in ("--filename", str(file)))
    )
    cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "viewer", "namespace": NAMESPACE}}
    )
    cluster.apply(binding("ClusterRole", "kwokfleet-viewer", "", [subject("viewer")], "kwokfleet-viewer"))
    # Role aggregation and admission policies take effect with a delay.
    waiting.until(lambda: is_allowed(cluster, DAEMON, "create", "jobs.batch"))
    waiting.until(lambda: _rejects_real_nodes(cluster))


def remove(cluster: ControlPlane) -> None:
    """Remove the installation, except the CRDs."""
    named = _named(rbac_grants.RIGHTS, rbac_grants.VIEWER, BASE / "admission.yaml", BASE / "namespace.yaml")
    cluster.kubectl("delete", "clusterrolebinding", "kwokfleet-viewer", "--ignore-not-found")
    cluster.kubectl("delete", "--ignore-not-found", "--wait=false", *named)


def _named(*files: Path) -> list[str]:
    return [word for file in files for word in ("--filename", str(file))]


def subject(name: str) -> Manifest:
    """Return a ServiceAccount as the subject of a binding."""
    return {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}


def binding(kind: str, role: str, namespace: str, subjects: list[Manifest], name: str) -> Manifest:
    """Return a RoleBinding or ClusterRoleBinding."""
    group = "rbac.authorization.k8s.io"
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {
        "apiVersion": f"{group}/v1",
        "kind": f"{kind}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": kind, "name": role},
        "subjects": subjects,
    }


def kubeconfig(cluster: ControlPlane, folder: Path, name: str = "kwokfleet") -> Path:
    """Write a kubeconfig with a token of a ServiceAccount; return its path."""
    return cluster.kubeconfig_of(name, folder / f"{name}.kubeconfig", NAMESPACE)


def is_allowed(cluster: ControlPlane, user: str, verb: str, resource: str) -> bool:
    """Return whether the API server allows *user* a verb on a resource."""
    return cluster.try_kubectl("auth", "can-i", verb, resource, "--as", user).returncode == 0


def _rejects_real_nodes(cluster: ControlPlane) -> bool:
    """Return whether the admission policy is in effect."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "probe"}}
    flags = ("create", "--dry-run=server", "--as", DAEMON, "--filename", "-")
    return "kwok.x-k8s.io/node" in cluster.try_kubectl(*flags, stdin=json.dumps(node)).stderr
