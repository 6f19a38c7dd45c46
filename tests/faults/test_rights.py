"""Authentication and authorization faults: invalid, expired and renewed tokens, and missing rights."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import faulty_proxy, sync_testbed, waiting
from tests.harness.faulty_proxy import Fault, ProxiedRequest, Reject
from tests.harness.sync_testbed import SyncTestbed, output

SIZE = 100
NAMESPACE = "accounts"
READ, WRITE = ("get", "list", "watch"), ("get", "list", "watch", "create", "update", "patch", "delete")
Rules = list[dict[str, Any]]
NODES_AND_STAGES: Rules = [
    {"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": WRITE},
    {"apiGroups": [""], "resources": ["namespaces", "pods"], "verbs": READ},
    {"apiGroups": ["kwok.x-k8s.io"], "resources": ["stages"], "verbs": WRITE},
    {"apiGroups": ["kwokfleet.dev"], "resources": ["fleets", "fleets/status"], "verbs": WRITE},
    {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": WRITE},
]
ONLY_READ: Rules = [
    {"apiGroups": [""], "resources": ["nodes", "namespaces", "configmaps"], "verbs": READ},
    {"apiGroups": ["kwok.x-k8s.io"], "resources": ["stages"], "verbs": READ},
]


@pytest.fixture
def account(testbed: SyncTestbed) -> Iterator[Callable[[str, Rules], str]]:
    """Return a function that creates a ServiceAccount with rules and returns its token."""
    cluster = testbed.cluster
    cluster.kubectl("create", "namespace", NAMESPACE)
    accounts: list[str] = []

    def make(name: str, rules: Rules) -> str:
        group = "rbac.authorization.k8s.io"
        subject = {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}
        role = {"apiGroup": group, "kind": "ClusterRole", "name": name}
        cluster.kubectl("create", "serviceaccount", name, "--namespace", NAMESPACE)
        cluster.apply({"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules})
        cluster.apply(
            {
                "apiVersion": f"{group}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": name},
                "roleRef": role,
                "subjects": [subject],
            }
        )
        accounts.append(name)
        user = f"system:serviceaccount:{NAMESPACE}:{name}"
        waiting.until(lambda: cluster.try_kubectl("auth", "can-i", "list", "nodes", f"--as={user}").returncode == 0)
        return token(testbed, name)

    yield make
    for name in accounts:
        cluster.kubectl("delete", "clusterrole,clusterrolebinding", name)
    cluster.kubectl("delete", "namespace", NAMESPACE)


def token(testbed: SyncTestbed, name: str) -> str:
    """Return a new token of a ServiceAccount."""
    return testbed.cluster.kubectl("create", "token", name, "--namespace", NAMESPACE).strip()


@pytest.fixture
def config(testbed: SyncTestbed, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Return a function that writes a kubeconfig for a user and returns its variables."""
    flags = ("config", "view", "--raw", "--output", "json")
    content = json.loads(testbed.cluster.kubectl(*flags))

    def write(**user: str) -> dict[str, str]:
        content["users"][0]["user"] = user
        path = tmp_path / "config.json"
        path.write_text(json.dumps(content))
        return {"KUBECONFIG": str(path)}

    return write


@pytest.mark.parametrize("command", ["diff", "sync"])
def test_an_unknown_token_is_an_error(
    testbed: SyncTestbed, config: Callable[..., dict[str, str]], command: str
) -> None:
    """Exit code 4 with an error and a hint; no change."""
    testbed.write({"name": "a", "replicas": SIZE})
    done = testbed.program.run(command, str(testbed.path), **config(token="nonsense"))  # noqa: S106  # an invalid token
    assert done.returncode == 4, output(done)
    error, following = done.stderr.splitlines()
    assert "does not accept the credentials: 401 Unauthorized" in error
    assert "log in again" in following
    assert testbed.names() == []


def expire_token(proxy: faulty_proxy.FaultyProxy, old: str, when: int) -> faulty_proxy.Rule:
    """Return a rule that rejects a token after so many created nodes."""

    def rule(request: ProxiedRequest) -> Fault | None:
        created = sum(sent.method == "POST" and sent.resource.endswith("/nodes") for sent in proxy.requests)
        return (
            Reject(401, "Unauthorized")
            if created > when and request.headers["authorization"] == f"Bearer {old}"
            else None
        )

    return rule


def test_a_token_that_expires_during_a_sync_is_an_error(
    testbed: SyncTestbed, proxy: faulty_proxy.FaultyProxy, account: Callable[..., str], tmp_path: Path
) -> None:
    """Exit code 4 with a hint; a sync with a new token completes the work."""
    testbed.write({"name": "a", "replicas": SIZE})
    old = account("writer", NODES_AND_STAGES)
    proxy.rule = expire_token(proxy, old, SIZE // 2)
    done = testbed.sync(KUBECONFIG=proxy.kubeconfig(tmp_path / "config.json", token=old))
    assert done.returncode == 4, output(done)
    assert "does not accept the credentials: 401 Unauthorized" in done.stderr
    assert "log in again" in done.stderr
    assert "the next sync continues" in done.stderr
    assert 0 < len(testbed.names()) < SIZE
    assert testbed.sync().returncode == 0
    testbed.assert_settled(a=SIZE)


def test_a_renewed_token_file_is_read_again(
    testbed: SyncTestbed, proxy: faulty_proxy.FaultyProxy, account: Callable[..., str], tmp_path: Path
) -> None:
    """As in a pod: the token file is renewed when many threads get 401 at once."""
    testbed.write({"name": "a", "replicas": SIZE})
    old = account("writer", NODES_AND_STAGES)
    file = tmp_path / "token"
    file.write_text(old)
    fresh = tmp_path / "fresh"
    fresh.write_text(token(testbed, "writer"))
    is_expired = expire_token(proxy, old, SIZE // 2)

    def rule(request: ProxiedRequest) -> Fault | None:
        fault = is_expired(request)
        if fault and fresh.exists():
            fresh.replace(file)  # atomically, as a kubelet does
        return fault

    proxy.rule = rule
    done = testbed.sync(KUBECONFIG=proxy.kubeconfig(tmp_path / "config.json", tokenFile=str(file)))
    assert done.returncode == 0, output(done)
    assert proxy.faults
    testbed.assert_settled(a=SIZE)


def test_a_kind_without_rights_delays_no_other(
    testbed: SyncTestbed, config: Callable[..., dict[str, str]], account: Callable[..., str]
) -> None:
    """Without rights for ConfigMaps, the error names them, all else is created, exit code 4."""
    testbed.write({"name": "a", "replicas": SIZE}, {"name": "auto", "autoscaler": {"max": 5}})
    limited = config(token=account("limited", NODES_AND_STAGES))
    done = testbed.sync(**limited)
    assert done.returncode == 4, output(done)
    assert "configmaps may not be listed" in done.stderr
    assert "configmaps: +2" in done.stdout
    assert testbed.names() == sync_testbed.node_names(a=SIZE)
    assert testbed.cluster.get("stages", "--selector", sync_testbed.OURS)["items"]
    assert testbed.cluster.get("configmaps", "--all-namespaces", "--selector", sync_testbed.OURS)["items"] == []
    assert testbed.diff(**limited).returncode == 4
    assert testbed.sync().returncode == 0, "with all rights, the rest is done"
    testbed.assert_settled(a=SIZE)


def test_a_diff_needs_only_read_rights(
    testbed: SyncTestbed, config: Callable[..., dict[str, str]], account: Callable[..., str]
) -> None:
    """A diff works with read rights, with and without changes; a sync shows the API server's rejection."""
    testbed.write({"name": "a", "replicas": SIZE}, {"name": "auto", "autoscaler": {"max": 5}})
    reader = config(token=account("reader", ONLY_READ))
    done = testbed.diff(**reader)
    assert done.returncode == 1, output(done)
    assert f"pool a: +{SIZE} nodes" in done.stdout
    refused = testbed.sync(**reader)
    assert refused.returncode == 4, output(refused)
    assert "cannot create resource" in refused.stderr
    assert testbed.names() == []
    assert testbed.sync().returncode == 0
    assert testbed.diff(**reader).returncode == 0
