"""RBAC of the manifests against an audit log of a full run: no missing and no unused rights."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kwokfleet.kube import client
from kwokfleet.kube.requests import Request
from tests.harness import audit_log, cli, rbac_grants, rights_scenario, service_accounts, waiting
from tests.harness.audit_log import AuditedRequest
from tests.harness.control_plane import ControlPlane
from tests.harness.rbac_grants import Grant

ROLES = rbac_grants.roles(rbac_grants.RIGHTS, rbac_grants.VIEWER, rbac_grants.KWOK_PODS)
GRANTS = [grant for role in ROLES for grant in rbac_grants.grants_of(role)]
US = (service_accounts.DAEMON, service_accounts.VIEWER)
REJECTED = (401, 403)


@dataclass(frozen=True)
class AuditedRun:
    """The requests of a full run, and a client for its API server."""

    cluster: ControlPlane
    api: client.KubeClient
    requests: list[AuditedRequest]

    def request_needing(self, grant: Grant) -> AuditedRequest | None:
        """Return a request of the grant's owner that needs the grant: daemon, kwok or viewer."""
        candidates = (
            request for request in self.requests if _is_sent_by_owner(request, grant) and request.code not in REJECTED
        )
        return next((request for request in candidates if grant.allows(request)), None)

    def is_allowed(self, user: str, request: AuditedRequest) -> bool:
        """Return whether a user may send a request, by a SubjectAccessReview."""
        resource, _, subresource = request.resource.partition("/")
        attributes = {"verb": request.verb, "group": request.group, "resource": resource, "subresource": subresource}
        attributes |= {"namespace": request.namespace, "name": request.name}
        spec = {"user": user, "resourceAttributes": attributes}
        body = {"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": spec}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(self.api.send(Request("POST", path, json.dumps(body).encode())).json()["status"]["allowed"])


def _is_sent_by_owner(request: AuditedRequest, grant: Grant) -> bool:
    if grant.role == "kwokfleet-viewer":
        return request.user == service_accounts.VIEWER
    by_daemon = request.agent.startswith("kwokfleet/")
    return request.user == service_accounts.DAEMON and by_daemon == (grant.component == "daemon")


@pytest.fixture(scope="module")
def audited_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuditedRun]:
    """Run the scenario on a control plane with an audit log."""
    folder = tmp_path_factory.mktemp("rights")
    with audit_log.audited_control_plane("audited", folder) as (cluster, log):
        service_accounts.install(cluster)
        cluster.kubectl("apply", "--filename", "-", stdin=service_accounts.documented_manifests("More for kwok"))
        _run_scenario(cluster, folder)
        api = client.connect(kubeconfig=cluster.kubeconfig)
        yield AuditedRun(cluster, api, [request for request in log.requests() if request.user in US])
        api.close()


def _run_scenario(cluster: ControlPlane, folder: Path) -> None:
    for program in cli.isolated(folder):
        rights_scenario.RightsScenario(cluster, program, folder).run()


@pytest.fixture(scope="module")
def reduced_roles(audited_run: AuditedRun) -> AuditedRun:
    """Create copies of each role with its own user: complete, and without one grant each."""
    for role in ROLES:
        _create_role(audited_run.api, role, f"whole-{role['metadata']['name']}", role["rules"])
        for grant in rbac_grants.grants_of(role):
            _create_role(audited_run.api, role, f"without-{grant.slug}", rbac_grants.rules_without(role, grant))
    return audited_run


def _create_role(
    api: client.KubeClient, role: rbac_grants.Manifest, name: str, rules: list[rbac_grants.Manifest]
) -> None:
    namespace, kind = role["metadata"].get("namespace", ""), role["kind"]
    user = {"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
    reduced_role = {**role, "metadata": {"name": name}, "rules": rules}
    where = f"/apis/rbac.authorization.k8s.io/v1{f'/namespaces/{namespace}' if namespace else ''}/{kind.lower()}"
    for path, body in (
        (f"{where}s", reduced_role),
        (f"{where}bindings", service_accounts.binding(kind, name, namespace, [user], name)),
    ):
        response = api.send(Request("POST", path, json.dumps(body).encode()))
        assert response.status == 201, response.message


def test_every_request_is_allowed(audited_run: AuditedRun) -> None:
    """No request of the daemon, kwok or viewer is rejected."""
    assert audited_run.requests
    assert sorted({str(request) for request in audited_run.requests if request.code in REJECTED}) == []


def test_every_right_is_used(audited_run: AuditedRun) -> None:
    """Unused rights must be removed."""
    assert [str(grant) for grant in GRANTS if audited_run.request_needing(grant) is None] == []


@pytest.mark.parametrize("grant", GRANTS, ids=str)
def test_without_a_grant_a_request_of_the_run_is_rejected(reduced_roles: AuditedRun, grant: Grant) -> None:
    """The complete role allows the request; the role without this grant does not."""
    request = reduced_roles.request_needing(grant)
    assert request is not None, "no request of the run needs this grant"
    waiting.until(lambda: reduced_roles.is_allowed(f"whole-{grant.role}", request))
    others = [other for other in GRANTS if _same_role(other, grant) and other != grant and not other.allows(request)]
    allowed_request = next(
        (candidate for other in others if (candidate := reduced_roles.request_needing(other)) is not None), None
    )
    if allowed_request is not None:  # wait until the API server knows the reduced role
        waiting.until(lambda: reduced_roles.is_allowed(f"without-{grant.slug}", allowed_request))
    assert not reduced_roles.is_allowed(f"without-{grant.slug}", request), str(request)


def _same_role(one: Grant, other: Grant) -> bool:
    return (one.kind, one.namespace, one.role) == (other.kind, other.namespace, other.role)
