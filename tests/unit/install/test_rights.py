"""What the manifests' roles must never hold, whatever a run would need."""

from tests.harness import rbac_grants

ROLES = rbac_grants.roles(rbac_grants.RIGHTS, rbac_grants.VIEWER)
GRANTS = [grant for role in ROLES for grant in rbac_grants.grants_of(role)]
WRITES = {"create", "update", "patch", "delete", "deletecollection"}
ESCALATES = {"escalate", "bind", "impersonate"}


def test_there_is_no_wildcard() -> None:
    """A kind that somebody installs tomorrow is not ours."""
    assert [str(each) for each in GRANTS if "*" in each.verb + each.group + each.resource] == []


def test_nothing_reads_secrets_or_grants_rights() -> None:
    """Nobody gets further than where they are."""
    assert [str(each) for each in GRANTS if "secrets" in each.resource or each.verb in ESCALATES] == []
    assert [str(each) for each in GRANTS if each.group == "rbac.authorization.k8s.io"] == []


def test_a_viewer_writes_nothing() -> None:
    """It looks."""
    assert [str(each) for each in GRANTS if each.role == "kwokfleet-viewer" and each.verb in WRITES] == []


def test_no_right_is_granted_twice_by_one_role() -> None:
    """Or taking one of them away would change nothing."""
    named = [(each.role, each.namespace, each.verb, each.group, each.resource) for each in GRANTS]
    assert sorted(each for each in set(named) if named.count(each) > 1) == []


def test_the_same_right_without_a_verb_is_everything_else() -> None:
    """What tests take away is one verb on one resource, and no more."""
    for role in ROLES:
        whole = {str(each) for each in rbac_grants.grants_of(role)}
        for grant in rbac_grants.grants_of(role):
            left = rbac_grants.grants_of({**role, "rules": rbac_grants.rules_without(role, grant)})
            assert {str(each) for each in left} == whole - {str(grant)}
