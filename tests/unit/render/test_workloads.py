"""Waves into objects."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from kwokfleet.api import fleet as fleet_api
from kwokfleet.kube.objects import Manifest
from kwokfleet.render import nodes, workloads

START = datetime(2026, 3, 1, 8, tzinfo=UTC)
JOB: Manifest = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox"}]}}},
}


def context(
    *,
    run: str = "0",
    seed: int = 1,
    trace: workloads.RecordedArrivals | None = None,
    **wave: Any,  # noqa: ANN401  # any part of a file
) -> workloads.RunContext:
    """Return a Wave of a Fleet, as a file has it."""
    fleet = fleet_api.Fleet.model_validate(
        {
            "apiVersion": fleet_api.API_VERSION,
            "kind": "Fleet",
            "metadata": {"name": "lab"},
            "spec": {
                "seed": seed,
                "nodePools": [
                    {"name": "gpu", "replicas": 1, "taints": ["dedicated=gpu:NoSchedule"]},
                    {"name": "auto", "autoscaler": {}},
                ],
                "lifecycles": [
                    {"name": "plain", "pod": {"complete": "10s"}},
                    {"name": "drawn", "pod": {"complete": {"exponential": {"mean": "60s"}}}},
                ],
                "waves": [{"name": "w", "template": JOB, **wave}],
            },
        }
    )
    taints = {pool.name: nodes.taints(pool, ()) for pool in fleet.spec.node_pools}
    return workloads.RunContext(fleet, fleet.spec.waves[0], run, trace, taints)


def made(index: int = 0, **wave: Any) -> Manifest:  # noqa: ANN401  # any part of a file
    """Return one object of a Wave."""
    return workloads.object_factory(context(**wave))(index)


def pod_of(manifest: Manifest) -> Manifest:
    """Return a Job's pod template."""
    found: Manifest = manifest["spec"]["template"]
    return found


def with_args(*args: str) -> Manifest:
    """Return a Job whose container has these args."""
    container = {"name": "c", "image": "busybox", "args": list(args)}
    return {**JOB, "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}}


def test_names_follow_from_fleet_wave_run_and_index() -> None:
    """So that submitting again makes nothing twice."""
    make = workloads.object_factory(context(run="7"))
    assert [make(index)["metadata"]["name"] for index in (0, 1, 12)] == ["lab-w-7-0", "lab-w-7-1", "lab-w-7-12"]


def test_a_name_of_one_s_own_is_filled_in() -> None:
    """And `{{name}}` stands for it in the rest."""
    template = {**with_args("{{name}}"), "metadata": {"name": "train-{{run}}-{{index}}"}}
    manifest = made(3, template=template)
    assert manifest["metadata"]["name"] == "train-0-3"
    assert pod_of(manifest)["spec"]["containers"][0]["args"] == ["train-0-3"]


def test_objects_and_pods_carry_their_owner() -> None:
    """The object is ours; its pods say where they come from."""
    manifest = made(labels={"team": "x"})
    assert manifest["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "kwokfleet",
        "kwokfleet.dev/fleet": "lab",
        "kwokfleet.dev/wave": "w",
        "kwokfleet.dev/run": "0",
        "team": "x",
    }
    assert pod_of(manifest)["metadata"]["labels"]["kwokfleet.dev/wave"] == "w"
    assert "app.kubernetes.io/managed-by" not in pod_of(manifest)["metadata"]["labels"]


def test_pods_are_brought_onto_the_fleet_s_nodes() -> None:
    """Tolerations for the fake taint and the autoscaler's, affinity for the Fleet."""
    spec = pod_of(made())["spec"]
    assert {each["key"] for each in spec["tolerations"]} == {"kwok.x-k8s.io/node", "kwok-provider"}
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchExpressions": [{"key": "kwokfleet.dev/fleet", "operator": "In", "values": ["lab"]}]}]


def test_chosen_pools_are_asked_for_and_their_taints_tolerated() -> None:
    """Only of the pools that were named."""
    spec = pod_of(made(pools=["gpu"]))["spec"]
    assert {"key": "dedicated", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"} in spec["tolerations"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {"key": "kwokfleet.dev/pool", "operator": "In", "values": ["gpu"]} in terms[0]["matchExpressions"]


def test_an_affinity_of_one_s_own_stays_and_every_alternative_is_narrowed() -> None:
    """Node selector terms are alternatives: one without our expression would be a way out."""
    template = with_args("x")
    own = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
                    {"matchExpressions": [{"key": "b", "operator": "Exists"}]},
                ]
            }
        },
        "podAntiAffinity": {"x": "y"},
    }
    template["spec"]["template"]["spec"]["affinity"] = own
    affinity = pod_of(made(template=template))["spec"]["affinity"]
    terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [[each["key"] for each in term["matchExpressions"]] for term in terms] == [
        ["a", "kwokfleet.dev/fleet"],
        ["b", "kwokfleet.dev/fleet"],
    ]
    assert affinity["podAntiAffinity"] == {"x": "y"}


def test_place_false_leaves_pods_alone() -> None:
    """For who wants to see what the scheduler does by itself."""
    spec = pod_of(made(place=False))["spec"]
    assert "affinity" not in spec
    assert "tolerations" not in spec


@pytest.mark.parametrize(
    "template",
    [
        {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c"}]}},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "spec": {"template": {"spec": {"containers": [{"name": "c"}]}}},
        },
        {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "spec": {"jobTemplate": {"spec": {"template": {"spec": {"containers": [{"name": "c"}]}}}}},
        },
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "spec": {"workerGroupSpecs": [{"template": {"spec": {"containers": [{"name": "c"}]}}}]},
        },
        {
            "apiVersion": "workload.codeflare.dev/v1beta1",
            "kind": "AppWrapper",
            "spec": {"resources": {"GenericItems": [{"generictemplate": JOB}]}},
        },
    ],
    ids=lambda template: template["kind"],
)
def test_pod_templates_are_found_in_any_kind(template: Manifest) -> None:
    """Whatever the kind, its pods get the label of their Lifecycle and a way onto the nodes."""
    text = repr(made(template=template, lifecycle="plain"))
    assert "'kwokfleet.dev/lifecycle': 'lab.plain'" in text
    assert "'kwok.x-k8s.io/node'" in text


def test_variables_keep_their_type_where_a_number_may_stand() -> None:
    """A number of completions is a number, an argument is a text, a part of a text is a text."""
    template = with_args("{{gpus}}", "{{gpus}}s", "50% of {{gpus}}")
    template["spec"]["completions"] = "{{gpus}}"
    template["spec"]["template"]["metadata"] = {"annotations": {"n": "{{gpus}}"}}
    manifest = made(template=template, vary={"gpus": {"choice": [4]}})
    assert manifest["spec"]["completions"] == 4
    assert pod_of(manifest)["spec"]["containers"][0]["args"] == ["4", "4s", "50% of 4"]
    assert pod_of(manifest)["metadata"]["annotations"]["n"] == "4"


def test_a_backslash_leaves_braces_alone() -> None:
    """Templates of other systems use them too."""
    args = pod_of(made(template=with_args(r"\{{inputs}} {{index}}", r"\{{only}}")))["spec"]["containers"][0]["args"]
    assert args == ["{{inputs}} 0", "{{only}}"]


def draws(count: int, **fields: Any) -> list[Any]:  # noqa: ANN401  # any part of a file
    """Return what a variable is for each of so many objects."""
    make = workloads.object_factory(context(template=with_args("{{x}}"), **fields))
    return [pod_of(make(index))["spec"]["containers"][0]["args"][0] for index in range(count)]


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    """Also for another run, and whatever else varies."""
    vary = {"x": {"exponential": {"mean": 60}}}
    assert draws(50, vary=vary) == draws(50, vary=vary)
    assert draws(50, vary=vary) == draws(50, vary={**vary, "other": {"choice": [1, 2]}})
    assert draws(50, vary=vary) != draws(50, vary=vary, seed=2)
    assert draws(50, vary=vary) != draws(50, vary=vary, run="1")


def test_choices_follow_their_weights() -> None:
    """A weight of 0 never comes up."""
    counts = Counter(draws(4000, vary={"x": {"choice": ["a", "b", "c"], "weights": [3, 1, 0]}}))
    assert counts["a"] / 4000 == pytest.approx(0.75, abs=0.03)
    assert counts["c"] == 0


@pytest.mark.parametrize(
    ("shape", "mean"),
    [
        ({"uniform": {"min": 10, "max": 20}}, 15),
        ({"exponential": {"mean": 60}}, 60),
        ({"normal": {"mean": 50, "stddev": 5}}, 50),
        ({"lognormal": {"median": 10, "sigma": 0.5}}, 10 * 2.718281828 ** 0.125),
    ],
)  # fmt: skip
def test_distributions_have_their_mean(shape: dict[str, Any], mean: float) -> None:
    """Each one, over many draws."""
    found = [float(each) for each in draws(6000, vary={"x": shape})]
    assert sum(found) / len(found) == pytest.approx(mean, rel=0.04)


def test_limits_and_rounding_are_obeyed() -> None:
    """A whole number between bounds; cycles come in turn."""
    found = [
        int(each)
        for each in draws(500, vary={"x": {"normal": {"mean": 5, "stddev": 10}, "min": 1, "max": 9, "integer": True}})
    ]
    assert (min(found), max(found)) == (1, 9)
    assert draws(5, vary={"x": {"cycle": ["a", "b"]}}) == ["a", "b", "a", "b", "a"]


def test_a_trace_s_columns_are_variables() -> None:
    """Each object gets its row."""
    trace = workloads.RecordedArrivals((0.0, 1.0), ({"x": 5}, {"x": 7}))
    make = workloads.object_factory(
        context(template=with_args("{{x}}"), trace=trace, arrivals={"trace": {"file": "t"}})
    )
    assert pod_of(make(1))["spec"]["containers"][0]["args"] == ["7"]


def test_a_drawn_delay_is_told_to_kwok_by_annotation() -> None:
    """One for each object, from the seed."""
    make = workloads.object_factory(context(lifecycle="drawn"))
    found = [pod_of(make(index))["metadata"]["annotations"]["kwokfleet.dev/complete-after"] for index in range(3)]
    assert len(set(found)) == 3
    assert all(each.endswith("s") for each in found)


def test_usage_phases_are_told_by_annotation() -> None:
    """Each with its number; what a phase does not name stays as it was, and the last one has no end."""
    phases = [{"for": "5s", "cpu": 1, "memory": "2Gi"}, {"for": "1m", "cpu": "60%"}, {"for": "10s", "cpu": 2}]
    found = pod_of(made(usage=phases))["metadata"]["annotations"]
    assert {key: value for key, value in found.items() if "/usage" in key} == {
        "kwokfleet.dev/usage-cpu.0": "1",
        "kwokfleet.dev/usage-memory.0": "2Gi",
        "kwokfleet.dev/usage-until.0": "5",
        "kwokfleet.dev/usage-cpu-share.1": "0.6",
        "kwokfleet.dev/usage-memory.1": "2Gi",
        "kwokfleet.dev/usage-until.1": "65",
        "kwokfleet.dev/usage-cpu.2": "2",
        "kwokfleet.dev/usage-memory.2": "2Gi",
    }


def test_instants_are_those_of_the_arrivals() -> None:
    """From the run's start on, with index and run."""
    found = list(workloads.due_objects(context(count=3, arrivals={"rate": "2/s"}, run="9"), START))
    assert [(each.index, each.run, (each.at - START).total_seconds()) for each in found] == [
        (0, "9", 0),
        (1, "9", 0.5),
        (2, "9", 1),
    ]


def test_a_namespace_may_vary() -> None:
    """One for each object, if it is written so."""
    assert (
        made(13, namespace="load-{{shard}}", vary={"shard": {"cycle": [0, 1, 2]}})["metadata"]["namespace"] == "load-1"
    )
    assert made()["metadata"]["namespace"] == "default"


def test_truth_values_are_written_as_yaml_writes_them() -> None:
    """In a text, `true`; as a whole value, a truth value."""
    template = with_args("{{on}}")
    template["spec"]["suspend"] = "{{on}}"
    manifest = made(template=template, vary={"on": {"choice": [True]}})
    assert manifest["spec"]["suspend"] is True
    assert pod_of(manifest)["spec"]["containers"][0]["args"] == ["true"]
