"""Rendering of Waves to objects."""

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
    """Return the RunContext of a Wave."""
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


def rendered(index: int = 0, **wave: Any) -> Manifest:  # noqa: ANN401  # any part of a file
    """Return one object of a Wave."""
    return workloads.object_factory(context(**wave))(index)


def pod_template(manifest: Manifest) -> Manifest:
    """Return a Job's pod template."""
    template: Manifest = manifest["spec"]["template"]
    return template


def with_args(*args: str) -> Manifest:
    """Return a Job with these container args."""
    container = {"name": "c", "image": "busybox", "args": list(args)}
    return {**JOB, "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}}


def test_names_contain_fleet_wave_run_and_index() -> None:
    """A repeated submission creates no second object."""
    make = workloads.object_factory(context(run="7"))
    assert [make(index)["metadata"]["name"] for index in (0, 1, 12)] == ["lab-w-7-0", "lab-w-7-1", "lab-w-7-12"]


def test_variables_in_a_custom_name_are_replaced() -> None:
    """`{{name}}` is the resulting name in the rest of the template."""
    template = {**with_args("{{name}}"), "metadata": {"name": "train-{{run}}-{{index}}"}}
    manifest = rendered(3, template=template)
    assert manifest["metadata"]["name"] == "train-0-3"
    assert pod_template(manifest)["spec"]["containers"][0]["args"] == ["train-0-3"]


def test_objects_and_pods_have_owner_labels() -> None:
    """Only the object has the managed-by label."""
    manifest = rendered(labels={"team": "x"})
    assert manifest["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "kwokfleet",
        "kwokfleet.dev/fleet": "lab",
        "kwokfleet.dev/wave": "w",
        "kwokfleet.dev/run": "0",
        "team": "x",
    }
    assert pod_template(manifest)["metadata"]["labels"]["kwokfleet.dev/wave"] == "w"
    assert "app.kubernetes.io/managed-by" not in pod_template(manifest)["metadata"]["labels"]


def test_pods_are_placed_on_nodes_of_the_fleet() -> None:
    """Tolerations for the fake and the autoscaler's taints, affinity for the Fleet."""
    spec = pod_template(rendered())["spec"]
    assert {toleration["key"] for toleration in spec["tolerations"]} == {"kwok.x-k8s.io/node", "kwok-provider"}
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchExpressions": [{"key": "kwokfleet.dev/fleet", "operator": "In", "values": ["lab"]}]}]


def test_pools_add_affinity_and_tolerations() -> None:
    """Only those of the named pools."""
    spec = pod_template(rendered(pools=["gpu"]))["spec"]
    assert {"key": "dedicated", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"} in spec["tolerations"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {"key": "kwokfleet.dev/pool", "operator": "In", "values": ["gpu"]} in terms[0]["matchExpressions"]


def test_the_fleet_is_added_to_each_term_of_a_custom_affinity() -> None:
    """Terms are alternatives: a term without the Fleet would match other nodes."""
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
    affinity = pod_template(rendered(template=template))["spec"]["affinity"]
    terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [[expression["key"] for expression in term["matchExpressions"]] for term in terms] == [
        ["a", "kwokfleet.dev/fleet"],
        ["b", "kwokfleet.dev/fleet"],
    ]
    assert affinity["podAntiAffinity"] == {"x": "y"}


def test_place_false_adds_no_placement() -> None:
    """The scheduler's own behaviour can be observed."""
    spec = pod_template(rendered(place=False))["spec"]
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
    """The pods get the label of their Lifecycle and the placement."""
    text = repr(rendered(template=template, lifecycle="plain"))
    assert "'kwokfleet.dev/lifecycle': 'lab.plain'" in text
    assert "'kwok.x-k8s.io/node'" in text


def test_variables_keep_their_type_where_numbers_are_allowed() -> None:
    """Completions are a number; args and parts of a string are strings."""
    template = with_args("{{gpus}}", "{{gpus}}s", "50% of {{gpus}}")
    template["spec"]["completions"] = "{{gpus}}"
    template["spec"]["template"]["metadata"] = {"annotations": {"n": "{{gpus}}"}}
    manifest = rendered(template=template, vary={"gpus": {"choice": [4]}})
    assert manifest["spec"]["completions"] == 4
    assert pod_template(manifest)["spec"]["containers"][0]["args"] == ["4", "4s", "50% of 4"]
    assert pod_template(manifest)["metadata"]["annotations"]["n"] == "4"


def test_a_backslash_escapes_braces() -> None:
    """Other template systems use them too."""
    args = pod_template(rendered(template=with_args(r"\{{inputs}} {{index}}", r"\{{only}}")))["spec"]["containers"][0][
        "args"
    ]
    assert args == ["{{inputs}} 0", "{{only}}"]


def variable_values(count: int, **fields: Any) -> list[Any]:  # noqa: ANN401  # any part of a file
    """Return the values of a variable for the first objects."""
    make = workloads.object_factory(context(template=with_args("{{x}}"), **fields))
    return [pod_template(make(index))["spec"]["containers"][0]["args"][0] for index in range(count)]


def test_values_depend_on_the_seed_and_the_run() -> None:
    """Other variables have no effect."""
    vary = {"x": {"exponential": {"mean": 60}}}
    assert variable_values(50, vary=vary) == variable_values(50, vary=vary)
    assert variable_values(50, vary=vary) == variable_values(50, vary={**vary, "other": {"choice": [1, 2]}})
    assert variable_values(50, vary=vary) != variable_values(50, vary=vary, seed=2)
    assert variable_values(50, vary=vary) != variable_values(50, vary=vary, run="1")


def test_choices_follow_their_weights() -> None:
    """A value with weight 0 is never chosen."""
    counts = Counter(variable_values(4000, vary={"x": {"choice": ["a", "b", "c"], "weights": [3, 1, 0]}}))
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
    values = [float(value) for value in variable_values(6000, vary={"x": shape})]
    assert sum(values) / len(values) == pytest.approx(mean, rel=0.04)


def test_limits_and_rounding_apply() -> None:
    """Values are whole numbers between the limits; a cycle repeats its values."""
    values = [
        int(value)
        for value in variable_values(
            500, vary={"x": {"normal": {"mean": 5, "stddev": 10}, "min": 1, "max": 9, "integer": True}}
        )
    ]
    assert (min(values), max(values)) == (1, 9)
    assert variable_values(5, vary={"x": {"cycle": ["a", "b"]}}) == ["a", "b", "a", "b", "a"]


def test_the_columns_of_a_trace_are_variables() -> None:
    """Each object gets its row."""
    trace = workloads.RecordedArrivals((0.0, 1.0), ({"x": 5}, {"x": 7}))
    make = workloads.object_factory(
        context(template=with_args("{{x}}"), trace=trace, arrivals={"trace": {"file": "t"}})
    )
    assert pod_template(make(1))["spec"]["containers"][0]["args"] == ["7"]


def test_a_random_delay_is_an_annotation() -> None:
    """Each object has its own value."""
    make = workloads.object_factory(context(lifecycle="drawn"))
    delays = [
        pod_template(make(index))["metadata"]["annotations"]["kwokfleet.dev/complete-after"] for index in range(3)
    ]
    assert len(set(delays)) == 3
    assert all(delay.endswith("s") for delay in delays)


def test_usage_phases_are_annotations() -> None:
    """With their number; omitted resources keep their value, and the last phase has no end."""
    phases = [{"for": "5s", "cpu": 1, "memory": "2Gi"}, {"for": "1m", "cpu": "60%"}, {"for": "10s", "cpu": 2}]
    annotations = pod_template(rendered(usage=phases))["metadata"]["annotations"]
    assert {key: value for key, value in annotations.items() if "/usage" in key} == {
        "kwokfleet.dev/usage-cpu.0": "1",
        "kwokfleet.dev/usage-memory.0": "2Gi",
        "kwokfleet.dev/usage-until.0": "5",
        "kwokfleet.dev/usage-cpu-share.1": "0.6",
        "kwokfleet.dev/usage-memory.1": "2Gi",
        "kwokfleet.dev/usage-until.1": "65",
        "kwokfleet.dev/usage-cpu.2": "2",
        "kwokfleet.dev/usage-memory.2": "2Gi",
    }


def test_due_objects_follow_the_arrivals() -> None:
    """Counted from the start of the Run."""
    due_objects = list(workloads.due_objects(context(count=3, arrivals={"rate": "2/s"}, run="9"), START))
    assert [(due.index, due.run, (due.at - START).total_seconds()) for due in due_objects] == [
        (0, "9", 0),
        (1, "9", 0.5),
        (2, "9", 1),
    ]


def test_a_namespace_may_contain_variables() -> None:
    """The default namespace is `default`."""
    assert (
        rendered(13, namespace="load-{{shard}}", vary={"shard": {"cycle": [0, 1, 2]}})["metadata"]["namespace"]
        == "load-1"
    )
    assert rendered()["metadata"]["namespace"] == "default"


def test_booleans_are_written_as_in_yaml() -> None:
    """`true` inside a string; a boolean as a whole value."""
    template = with_args("{{on}}")
    template["spec"]["suspend"] = "{{on}}"
    manifest = rendered(template=template, vary={"on": {"choice": [True]}})
    assert manifest["spec"]["suspend"] is True
    assert pod_template(manifest)["spec"]["containers"][0]["args"] == ["true"]
