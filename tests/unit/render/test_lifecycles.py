"""Rendering of Lifecycles to kwok Stages."""

from typing import Any

import jq  # type: ignore[import-not-found,unused-ignore]  # a compiled module without types
import pytest

from kwokfleet.api import lifecycle as lifecycle_api
from kwokfleet.documents import parser
from kwokfleet.kube.objects import Manifest
from kwokfleet.render import lifecycles
from kwokfleet.source import shipped_files
from kwokfleet.stagelint import rules

LIBRARY: lifecycles.Library = {
    document.value["metadata"]["name"]: document.value
    for name in shipped_files.stage_sets()
    for document in parser.parse(name, shipped_files.stage_set(name))[0]
    if isinstance(document.value, dict)
}

LIFECYCLES: list[dict[str, Any]] = [
    {"pod": {}},
    {"pod": {"create": "0.1s..0.5s", "ready": "10s..11s", "complete": "args", "delete": "1s"}},
    {
        "pod": {
            "init": "2s",
            "complete": {"after": "1h", "when": "always"},
            "fail": {"probability": "2%", "after": "30s"},
        }
    },
    {"pod": {"complete": {"annotation": "example.com/runs"}, "fail": {"probability": 1, "reason": 'a "b" {{c}}\n'}}},
    {"pod": {"fail": {"probability": 0.3}}},
    {"pod": {"complete": {"exponential": {"mean": "60s"}}, "create": {"normal": {"mean": "1s", "stddev": "0.2s"}}}},
    {"pod": {"restart": {"every": {"lognormal": {"median": "60s", "sigma": 1}}, "backoff": "10s..40s"}}},
    {"node": {}},
    {"node": {"boot": "30s..90s"}},
    {"node": {"boot": {"exponential": {"mean": "30s"}}, "notReady": {"every": "2h", "for": "2m..10m"}}},
    {"node": {"notReady": {"every": "1m", "for": "10s", "reason": "Gone"}}},
]


def stages_by_part(lifecycle: dict[str, Any], *, lease: bool = True) -> dict[str, Manifest]:
    """Return the Stages of a Lifecycle by part."""
    stages = lifecycles.stages(
        "lab", lifecycle_api.Lifecycle.model_validate({"name": "l", **lifecycle}), LIBRARY, lease=lease
    )
    return {stage["metadata"]["name"].removeprefix("lab-l-"): stage for stage in stages}


def delay_of(stage: Manifest, pod: Manifest, field: str = "durationFrom") -> float:
    """Return the delay in seconds, by the jq expression of the Stage."""
    expression = stage["spec"]["delay"][field]["jq"]["expression"]
    text: str = jq.compile(expression).input_value(pod).first()
    return float(text.removesuffix("s"))


@pytest.mark.parametrize("lease", [True, False])
@pytest.mark.parametrize("lifecycle", LIFECYCLES, ids=str)
def test_rendered_stages_pass_the_linter(lifecycle: dict[str, Any], lease: bool) -> None:  # noqa: FBT001  # a column of the table
    """They neither crash nor block kwok."""
    for stage in stages_by_part(lifecycle, lease=lease).values():
        assert rules.check(stage) == []


@pytest.mark.parametrize("lifecycle", LIFECYCLES, ids=str)
def test_stages_select_only_objects_of_their_lifecycle(lifecycle: dict[str, Any]) -> None:
    """By the label that pools and Waves set."""
    for stage in stages_by_part(lifecycle).values():
        assert stage["spec"]["selector"]["matchLabels"] == {"kwokfleet.dev/lifecycle": "lab.l"}
        assert "next" not in stage["spec"]
        assert stage["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "kwokfleet"


def test_default_stages_exclude_objects_with_a_lifecycle() -> None:
    """No default set matches the label."""
    for name in ("node-fast-initialize", "pod-fast-ready", "pod-general-create", "job-complete", "pod-recover-ready"):
        keys = [entry["jq"]["key"] for entry in LIBRARY[name]["spec"]["selector"]["matchExpressions"]]
        assert '.metadata.labels["kwokfleet.dev/lifecycle"]' in keys


def test_the_weights_of_fail_and_complete_follow_the_probability() -> None:
    """A part with probability 0 has no Stage."""
    both = stages_by_part({"pod": {"complete": "1s", "fail": {"probability": 0.02}}})
    assert (both["fail"]["spec"]["weight"], both["complete"]["spec"]["weight"]) == (200, 9800)
    assert "complete" not in stages_by_part({"pod": {"complete": "1s", "fail": {"probability": 1}}})
    assert "fail" not in stages_by_part({"pod": {"complete": "1s", "fail": {"probability": 0}}})
    assert stages_by_part({"pod": {"complete": "1s", "fail": {"probability": "0.001%"}}})["fail"]["spec"]["weight"] == 1


def test_only_job_pods_complete_unless_when_is_always() -> None:
    """The same holds for fail."""
    for part in ("complete", "fail"):
        for when, jobs_only in (("job", True), ("always", False)):
            stage = stages_by_part({"pod": {"complete": {"after": "1s", "when": when}, "fail": {"probability": 0.5}}})[
                part
            ]
            assert ("ownerReferences" in str(stage["spec"]["selector"])) is jobs_only


STARTED = "2026-01-01T00:00:00Z"


def pod(*args: str, annotations: dict[str, str] | None = None) -> Manifest:
    """Return a pod that started long ago."""
    running = {"state": {"running": {"startedAt": STARTED}}}
    return {
        "metadata": {"annotations": annotations or {}},
        "spec": {"containers": [{"name": "c", "args": list(args)}]},
        "status": {"startTime": STARTED, "containerStatuses": [running]},
    }


@pytest.mark.parametrize(
    ("args", "seconds"),
    [(("sleep", "10s"), 10), (("sleep", "10"), 10), (("sleep", "1m30s"), 90), (("sleep", "0.5"), 0.5), (("true",), 0)],
)
def test_args_set_the_run_time(args: tuple[str, ...], seconds: float) -> None:
    """With the syntax of `sleep`; compared with `sleep 0`."""
    complete = stages_by_part({"pod": {"complete": "args"}})["complete"]
    assert delay_of(complete, pod(*args)) - delay_of(complete, pod("sleep", "0")) == pytest.approx(seconds, abs=0.2)


def test_sleep_infinity_never_completes() -> None:
    """It is not a sleep of 0 seconds."""
    entries = stages_by_part({"pod": {"complete": "args"}})["complete"]["spec"]["selector"]["matchExpressions"]
    [entry] = [expression["jq"] for expression in entries if "inf" in expression["jq"]["key"]]
    assert entry["operator"] == "NotIn"
    assert jq.compile(entry["key"]).input_value(pod("sleep", "infinity")).first() is True
    assert jq.compile(entry["key"]).input_value(pod("sleep", "10")).first() is False


def test_long_delays_count_from_times_in_the_status() -> None:
    """A restart of kwok or a change of the pod does not restart them; an elapsed delay is due at once."""
    stages = stages_by_part({"pod": {"ready": "10s..11s", "complete": "1h", "create": "2s"}})
    assert delay_of(stages["ready"], pod()) < 0
    assert delay_of(stages["ready"], pod(), "jitterDurationFrom") - delay_of(stages["ready"], pod()) == pytest.approx(
        1, abs=0.2
    )
    assert delay_of(stages["complete"], pod()) < 0
    assert stages["create"]["spec"]["delay"] == {"durationMilliseconds": 2000}


def test_an_annotation_sets_the_run_time_or_the_end() -> None:
    """A duration counts from the start, a timestamp is absolute; without the annotation, the default applies."""
    complete = stages_by_part({"pod": {"complete": {"annotation": "x"}}})["complete"]
    program = jq.compile(complete["spec"]["delay"]["durationFrom"]["jq"]["expression"])
    assert delay_of(complete, pod(annotations={"x": "90s"})) - delay_of(
        complete, pod(annotations={"x": "0s"})
    ) == pytest.approx(90, abs=0.2)
    assert program.input_value(pod(annotations={"x": "2026-05-01T00:00:00Z"})).first() == "2026-05-01T00:00:00Z"
    assert program.input_value(pod()).all() == []


def test_a_random_delay_defaults_to_its_mean() -> None:
    """For pods with the label that no Wave created."""
    assert (
        stages_by_part({"pod": {"complete": {"exponential": {"mean": "60s"}}}})["complete"]["spec"]["delay"][
            "durationMilliseconds"
        ]
        == 60_000
    )


def test_a_reason_is_escaped_in_the_template() -> None:
    """Any text is allowed."""
    fail = stages_by_part(
        {"pod": {"complete": "1s", "fail": {"probability": 0.5, "reason": '"}} {{ .spec', "exitCode": 137}}}
    )["fail"]
    template = fail["spec"]["steps"][0]["patch"]["template"]
    assert "{{ .spec" not in template
    assert '"pod-container-running-failed.stage.kwok.x-k8s.io/exit-code" "137"' in template


def test_node_failures_have_the_configured_mean_interval() -> None:
    """Each heartbeat draws; the weights give the interval."""
    stages = stages_by_part({"node": {"notReady": {"every": "10h", "for": "5m"}}})
    share = stages["fail"]["spec"]["weight"] / lifecycles.TOTAL_WEIGHT
    period = lifecycles.HEARTBEAT_WITH_LEASE.total_seconds()
    assert period * (1 - share) / share + period / 2 == pytest.approx(36_000, rel=0.03)
    assert stages["fail"]["spec"]["weight"] + stages["beat"]["spec"]["weight"] == lifecycles.TOTAL_WEIGHT


def test_without_leases_heartbeats_are_more_frequent() -> None:
    """Every 20 to 25 seconds instead of every ten minutes."""
    assert stages_by_part({"node": {}}, lease=False)["beat"]["spec"]["delay"]["jitterDurationMilliseconds"] == 25_000
    assert stages_by_part({"node": {}}, lease=True)["beat"]["spec"]["delay"]["jitterDurationMilliseconds"] == 610_000
