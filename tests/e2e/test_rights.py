"""No more rights than are used, and none too few: the manifests' roles held against an audit log of a full run."""

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
REFUSED = (401, 403)


@dataclass(frozen=True)
class Played:
    """What a full run has asked for, and the API server that answered."""

    cluster: ControlPlane
    api: client.KubeClient
    asked: list[AuditedRequest]

    def needing(self, grant: Grant) -> AuditedRequest | None:
        """Return a request of the run that needs a right; of whoever has it: the daemon, kwok, or a viewer."""
        mine = (each for each in self.asked if _is_theirs(each, grant) and each.code not in REFUSED)
        return next((each for each in mine if grant.allows(each)), None)

    def allowed(self, user: str, asked: AuditedRequest) -> bool:
        """Return whether somebody may make a request, by the API server's word."""
        resource, _, subresource = asked.resource.partition("/")
        about = {"verb": asked.verb, "group": asked.group, "resource": resource, "subresource": subresource}
        about |= {"namespace": asked.namespace, "name": asked.name}
        spec = {"user": user, "resourceAttributes": about}
        body = {"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": spec}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(self.api.send(Request("POST", path, json.dumps(body).encode())).json()["status"]["allowed"])


def _is_theirs(asked: AuditedRequest, grant: Grant) -> bool:
    if grant.role == "kwokfleet-viewer":
        return asked.user == service_accounts.VIEWER
    by_daemon = asked.agent.startswith("kwokfleet/")
    return asked.user == service_accounts.DAEMON and by_daemon == (grant.component == "daemon")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """Play a full run on a control plane that writes everything down."""
    folder = tmp_path_factory.mktemp("rights")
    with audit_log.audited_control_plane("audited", folder) as (cluster, log):
        service_accounts.install(cluster)
        cluster.kubectl("apply", "--filename", "-", stdin=service_accounts.documented_manifests("More for kwok"))
        _play(cluster, folder)
        api = client.connect(kubeconfig=cluster.kubeconfig)
        yield Played(cluster, api, [each for each in log.requests() if each.user in US])
        api.close()


def _play(cluster: ControlPlane, folder: Path) -> None:
    for program in cli.isolated(folder):
        rights_scenario.RightsScenario(cluster, program, folder).run()


@pytest.fixture(scope="module")
def reduced(played: Played) -> Played:
    """Make each role anew for somebody of its own, without one right at a time."""
    for role in ROLES:
        _make(played.api, role, f"whole-{role['metadata']['name']}", role["rules"])
        for grant in rbac_grants.grants_of(role):
            _make(played.api, role, f"without-{grant.slug}", rbac_grants.rules_without(role, grant))
    return played


def _make(api: client.KubeClient, role: rbac_grants.Manifest, name: str, rules: list[rbac_grants.Manifest]) -> None:
    namespace, kind = role["metadata"].get("namespace", ""), role["kind"]
    user = {"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
    made = {**role, "metadata": {"name": name}, "rules": rules}
    where = f"/apis/rbac.authorization.k8s.io/v1{f'/namespaces/{namespace}' if namespace else ''}/{kind.lower()}"
    for path, body in (
        (f"{where}s", made),
        (f"{where}bindings", service_accounts.binding(kind, name, namespace, [user], name)),
    ):
        answer = api.send(Request("POST", path, json.dumps(body).encode()))
        assert answer.status == 201, answer.message


def test_every_request_is_allowed(played: Played) -> None:
    """The daemon, its kwok and a viewer meet no refusal."""
    assert played.asked
    assert sorted({str(each) for each in played.asked if each.code in REFUSED}) == []


def test_every_right_is_used(played: Played) -> None:
    """What nobody uses, nobody should have."""
    assert [str(grant) for grant in GRANTS if played.needing(grant) is None] == []


@pytest.mark.parametrize("grant", GRANTS, ids=str)
def test_without_it_a_request_of_the_run_is_refused(reduced: Played, grant: Grant) -> None:
    """The role as it is allows the request; the same role without this one right does not."""
    asked = reduced.needing(grant)
    assert asked is not None, "no request of the run needs it"
    waiting.until(lambda: reduced.allowed(f"whole-{grant.role}", asked))
    others = [each for each in GRANTS if _same_role(each, grant) and each != grant and not each.allows(asked)]
    kept = next((found for each in others if (found := reduced.needing(each)) is not None), None)
    if kept is not None:  # what is left of the role is known to the API server
        waiting.until(lambda: reduced.allowed(f"without-{grant.slug}", kept))
    assert not reduced.allowed(f"without-{grant.slug}", asked), str(asked)


def _same_role(one: Grant, other: Grant) -> bool:
    return (one.kind, one.namespace, one.role) == (other.kind, other.namespace, other.role)
