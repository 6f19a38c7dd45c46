"""What an installation consists of, whose objects it may touch, and what it waits for."""

from typing import Any

import pytest

from kwokfleet.api import kwok_controller
from kwokfleet.documents import parser
from kwokfleet.install import bundle, fleet_configmap, manifests, ownership, rollout
from kwokfleet.install.manifests import InstallGitSource, InstallOptions
from kwokfleet.install.ownership import Ownership
from kwokfleet.kube import objects

Manifest = dict[str, Any]
BUNDLE = bundle.manifests()


def made(**options: Any) -> dict[str, Manifest]:  # noqa: ANN401  # of Options
    """Return the objects of an installation, by kind and name."""
    found = manifests.build(BUNDLE, InstallOptions(**options))
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}


def daemon(**options: Any) -> Manifest:  # noqa: ANN401  # of Options
    """Return the daemon's container."""
    containers = made(**options)["Deployment/kwokfleet"]["spec"]["template"]["spec"]["containers"]
    return next(each for each in containers if each["name"] == "kwokfleet")


# options


def test_everything_can_be_applied_in_the_order_it_comes_in() -> None:
    """The namespace and the definition first; what runs last, when all it needs is there."""
    kinds = [each["kind"] for each in manifests.build(BUNDLE, InstallOptions())]
    assert kinds[:2] == ["Namespace", "CustomResourceDefinition"]
    assert kinds[-1] == "Deployment"
    assert kinds.index("ServiceAccount") < kinds.index("ClusterRoleBinding")


def test_an_image_of_ones_own_and_more_replicas() -> None:
    """Both go where they belong, and nothing else changes."""
    whole = made(image="registry.example/sim:7", replicas=3)["Deployment/kwokfleet"]
    assert whole["spec"]["replicas"] == 3
    assert daemon(image="registry.example/sim:7")["image"] == "registry.example/sim:7"


def test_another_namespace_is_named_everywhere_but_in_the_roles_that_are_about_others() -> None:
    """The Roles for node leases and for takeovers stay where those are; whom they are given to moves along."""
    found = manifests.build(BUNDLE, InstallOptions(namespace="sim"))
    places = {each["metadata"].get("namespace") for each in found}
    assert "kwokfleet" not in places
    assert {"sim", "kube-node-lease", "kube-system"} <= places
    assert {each["namespace"] for one in found for each in one.get("subjects") or ()} == {"sim"}
    assert found[0]["metadata"]["name"] == "sim"


def test_what_is_switched_off_is_not_there() -> None:
    """The policies go, all else stays."""
    usual, less = made(), made(admission=False, network_policy=False)
    assert {each.partition("/")[0] for each in usual.keys() - less.keys()} == {
        "NetworkPolicy",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
    assert "ClusterRole/kwokfleet-viewer" in made(viewer=True).keys() - usual.keys()


def test_files_of_one_folder_need_no_list_of_paths() -> None:
    """They are a plain ConfigMap, as kubectl makes one."""
    whole = made(source=fleet_configmap.build({"a.yaml": "one", "b.yaml": "two"}))
    assert whole["ConfigMap/kwokfleet-fleets"]["data"] == {"a.yaml": "one", "b.yaml": "two"}
    assert daemon(source=fleet_configmap.build({"a.yaml": "one"}))["args"][:2] == ["run", "/fleets"]
    assert _volume(whole) == {"name": "kwokfleet-fleets", "optional": True}


def test_files_in_folders_get_their_paths_back() -> None:
    """The volume says where each key goes, and the daemon begins in the folder that holds the fleets."""
    packed = fleet_configmap.build({"fleets/a.yaml": "one", "parts/s.yaml": "two"}, "fleets")
    assert daemon(source=packed)["args"][:2] == ["run", "/fleets/fleets"]
    assert _volume(made(source=packed))["items"] == [
        {"key": "fleets.a.yaml", "path": "fleets/a.yaml"},
        {"key": "parts.s.yaml", "path": "parts/s.yaml"},
    ]


def _volume(whole: dict[str, Manifest]) -> Manifest:
    volumes = whole["Deployment/kwokfleet"]["spec"]["template"]["spec"]["volumes"]
    found: Manifest = next(each["configMap"] for each in volumes if each["name"] == "fleets")
    return found


def test_a_repository_is_named_to_the_daemon_or_to_its_sidecar() -> None:
    """Address, branch and folder are those that were asked for; no ConfigMap is mounted."""
    arguments = daemon(source=InstallGitSource("https://x/y.git", "v1", "sim/fleets"))["args"]
    assert {"--git-url=https://x/y.git", "--git-ref=v1", "--git-path=sim/fleets"} <= set(arguments)
    source = InstallGitSource("ssh://x/y.git", "v1", "sim/fleets", sidecar=True)
    pod = made(source=source)["Deployment/kwokfleet"]["spec"]["template"]["spec"]
    assert {"--repo=ssh://x/y.git", "--ref=v1"} <= set(pod["initContainers"][0]["args"])
    assert daemon(source=source)["args"][:2] == ["run", "/git/current/sim/fleets"]
    assert "fleets" not in {each["name"] for each in pod["volumes"]}


def test_one_installation_does_not_change_another() -> None:
    """What was read from deploy/ stays as it was, whatever options ask for."""
    before = made()
    made(namespace="sim", image="x/y:1", replicas=5, source=InstallGitSource("https://x/y"))
    assert made() == before


def test_a_git_source_and_kwok_pods_both_change_the_network_policy() -> None:
    """The combination has a layer in the bundle: ssh for git, and the metrics port of kwok."""
    for sidecar in (False, True):
        policy = made(source=InstallGitSource("https://x/y", sidecar=sidecar), kwok_pods=True)[
            "NetworkPolicy/kwokfleet"
        ]
        ports = [port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]]
        assert {22, "http"} <= set(ports)


# files in a ConfigMap


@pytest.mark.parametrize(
    ("paths", "keys"),
    [
        (["a.yaml", "b/c.yaml"], ["a.yaml", "b.c.yaml"]),
        (["a/b.yaml", "a.b.yaml"], ["a.b.yaml", "a.b-2.yaml"]),
        (["ein ü.yaml"], ["ein_.yaml"]),
        (["..odd.yaml"], ["odd.yaml"]),
        (["trace"], ["trace"]),
    ],
)
def test_keys_are_allowed_in_a_configmap_and_each_file_has_its_own(paths: list[str], keys: list[str]) -> None:
    """Whatever files are called, and however deep they lie."""
    packed = fleet_configmap.build(dict.fromkeys(paths, "text"))
    assert sorted(packed.data) == sorted(keys)
    assert sorted(packed.paths.values()) == sorted(paths)


def test_a_long_path_has_a_key_that_is_not_too_long() -> None:
    """Two of them, too."""
    packed = fleet_configmap.build({f"{'x' * 300}/{name}.yaml": name for name in "ab"})
    assert len(packed.data) == 2
    assert all(len(key) <= 253 and key.endswith(".yaml") for key in packed.data)


def test_the_largest_files_are_told() -> None:
    """In bytes, not in letters."""
    assert list(fleet_configmap.build({"a": "ü" * 10, "b": "xx"}).sizes().items()) == [("a", 20), ("b", 2)]


# whose


def live(**labels: str) -> Manifest:
    """Return an object that is there."""
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x", "namespace": "n", "labels": labels}}


def test_whose_an_object_is() -> None:
    """By the mark; without it, by what it says it is part of."""
    mine, kin = {ownership.INSTALL_LABEL: "n"}, {ownership.PART_OF: "kwokfleet"}
    assert ownership.ownership_of(None, "n") is Ownership.ABSENT
    assert ownership.ownership_of(live(**mine), "n") is Ownership.OURS
    assert ownership.ownership_of(live(**mine), "m") is Ownership.OTHER_INSTALLATION
    assert ownership.ownership_of(live(**kin), "n") is Ownership.OTHER_TOOL
    assert ownership.ownership_of(live(), "n") is Ownership.FOREIGN


@pytest.mark.parametrize(
    ("labels", "force", "refused"),
    [
        ({}, False, True),
        ({}, True, True),
        ({ownership.PART_OF: "kwokfleet"}, False, True),
        ({ownership.PART_OF: "kwokfleet"}, True, False),
        ({ownership.INSTALL_LABEL: "n"}, False, False),
        ({ownership.INSTALL_LABEL: "m"}, True, True),
    ],
)
def test_what_is_in_the_way(labels: dict[str, str], force: bool, refused: bool) -> None:  # noqa: FBT001  # the example
    """Somebody else's always; what kubectl or Helm put there, unless it is to be taken."""
    there = live(**labels)
    assert bool(ownership.ownership_conflicts([live()], {objects.key(there): there}, "n", force=force)) is refused


def test_a_namespace_and_definitions_that_were_there_are_used_as_they_are() -> None:
    """They are neither in the way nor changed."""
    there = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}
    assert ownership.is_left_unchanged(there, there, "n")
    assert not ownership.ownership_conflicts([there], {objects.key(there): there}, "n", force=False)
    assert not ownership.is_left_unchanged(there, ownership.with_install_label(there, "n"), "n")


def test_what_the_daemon_has_set_is_left_to_it() -> None:
    """How many pods kwok has, and with which flags, is not set back by an upgrade."""
    wanted = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "kwok", "annotations": {"a": "1"}},
        "spec": {"replicas": 0, "template": {"spec": {"containers": [{"name": "kwok", "image": "i", "args": ["x"]}]}}},
    }
    fields = {
        "f:metadata": {"f:annotations": {"f:b": {}}},
        "f:spec": {
            "f:replicas": {},
            "f:template": {"f:spec": {"f:containers": {'k:{"name":"kwok"}': {".": {}, "f:name": {}, "f:args": {}}}}},
        },
    }
    entry = {"manager": "kwokfleet", "operation": "Update", "fieldsV1": fields}
    there = {**wanted, "metadata": {"name": "kwok", "managedFields": [entry]}}
    assert ownership.without_managed_fields(wanted, there) == {
        **wanted,
        "spec": {"template": {"spec": {"containers": [{"name": "kwok", "image": "i"}]}}},
    }


def test_the_rules_of_an_aggregated_role_are_left_to_the_controller() -> None:
    """It fills them in, and would be undone by each upgrade."""
    role = {"apiVersion": "v1", "kind": "ClusterRole", "metadata": {"name": "x"}, "aggregationRule": {}, "rules": []}
    assert "rules" not in ownership.without_managed_fields(role, None)


def test_a_role_that_its_controller_wrote_once_more_is_told_from_one_of_others() -> None:
    """By who has written to it: nobody else."""
    entry = {"manager": "clusterrole-aggregation-controller"}
    role = {"metadata": {"name": "x", "managedFields": [entry]}}
    assert ownership.is_recreated(role)
    assert not ownership.is_recreated({"metadata": {"name": "x", "managedFields": [entry, {"manager": "kubectl"}]}})


def test_an_apply_that_changes_nothing_is_told_by_what_it_would_leave() -> None:
    """Counters and times are not what somebody has asked for; who holds which field is."""
    entry = {"manager": "kwokfleet-install", "time": "1", "fieldsV1": {"f:spec": {}}}
    before = {"metadata": {"name": "x", "resourceVersion": "1", "managedFields": [entry]}, "spec": {"a": 1}}
    counted = {"name": "x", "resourceVersion": "2", "generation": 2, "managedFields": [{**entry, "time": "2"}]}
    assert ownership.is_unchanged(before, {**before, "metadata": counted})
    assert not ownership.is_unchanged(before, {**before, "spec": {"a": 2}})
    assert not ownership.is_unchanged(before, {**before, "metadata": {**counted, "managedFields": []}})


# waiting


def deployment(**status: Any) -> Manifest:  # noqa: ANN401  # of a status
    """Return a Deployment of one pod."""
    return {"metadata": {"generation": 2}, "spec": {"replicas": 1}, "status": {"observedGeneration": 2, **status}}


def pod(**status: Any) -> Manifest:  # noqa: ANN401  # of a status
    """Return a pod."""
    return {"metadata": {"name": "p"}, "status": status}


def test_a_deployment_is_there_when_all_pods_are_new_and_available() -> None:
    """Not before the old ones are gone."""
    assert rollout.daemon_pending(deployment(replicas=1, updatedReplicas=1, availableReplicas=1), []) == ""
    old = rollout.daemon_pending(deployment(replicas=2, updatedReplicas=1, availableReplicas=2), [])
    assert "1 pods of the previous version still terminating" in old


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no x:1"}}}]},
            "pod p: ImagePullBackOff: no x:1",
        ),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}]},
            "pod p is not scheduled: 0/1 nodes are available",
        ),
        (
            {
                "containerStatuses": [
                    {
                        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                        "lastState": {"terminated": {"exitCode": 2}},
                    }
                ]
            },
            "pod p: CrashLoopBackOff (exit code 2)",
        ),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
    ],
)
def test_why_a_pod_does_not_run(status: Manifest, said: str) -> None:
    """In the words of whoever knows."""
    assert rollout.pod_problem(pod(**status)) == said
    assert rollout.daemon_pending(deployment(), [pod(**status)]).endswith(said or "0 of 1 pods available")


def test_pods_that_may_not_be_made_are_told_of() -> None:
    """A policy or quota refuses them: there is no pod that could tell."""
    failure = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    assert "exceeded quota" in rollout.daemon_pending(deployment(conditions=[failure]), [])


def fleet(ready: str, digest: str = "d") -> Manifest:
    """Return a Fleet."""
    condition = {"type": "Ready", "status": ready, "message": "1 of 3 nodes are Ready"}
    return {"metadata": {"name": "lab"}, "status": {"conditions": [condition], "source": {"digest": digest}}}


def test_what_fleets_wait_for() -> None:
    """To be known, to be made from the new files, to be Ready."""
    wanted = frozenset({"lab"})
    assert rollout.fleets_pending([fleet("True")], wanted, "d") == ""
    assert rollout.fleets_pending([], wanted, "d") == "fleet lab: does not exist yet"
    assert "1 of 3 nodes are Ready" in rollout.fleets_pending([fleet("False")], wanted, "d")
    assert "has not read the new files" in rollout.fleets_pending([fleet("True", "old")], wanted, "d")
    assert rollout.fleets_pending([], None, "") == "no fleet exists yet"
    undriven = fleet("True")
    undriven["status"]["conditions"].append({"type": "Degraded", "status": "True", "message": "kwok is starting"})
    assert rollout.fleets_pending([undriven], wanted, "d") == "fleet lab: kwok is starting"
    assert rollout.fleets_pending([fleet("True")], None, "") == ""


def test_kwok_in_pods_of_its_own_is_a_document_that_can_be_read() -> None:
    """It names the StatefulSet that is installed along."""
    [document] = parser.parse("x", manifests.kwok_document(3))[0]
    spec = kwok_controller.KwokController.model_validate(document.value).spec
    assert (spec.shards, f"StatefulSet/{spec.stateful_set}" in made(kwok_pods=True)) == (3, True)
