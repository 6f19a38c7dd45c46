"""Lifecycles into kwok Stages."""

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

EVERYTHING: list[dict[str, Any]] = [
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


def compiled(lifecycle: dict[str, Any], *, lease: bool = True) -> dict[str, Manifest]:
    """Return a Lifecycle's Stages by their part."""
    made = lifecycles.stages(
        "lab", lifecycle_api.Lifecycle.model_validate({"name": "l", **lifecycle}), LIBRARY, lease=lease
    )
    return {stage["metadata"]["name"].removeprefix("lab-l-"): stage for stage in made}


def delay_of(stage: Manifest, pod: Manifest, field: str = "durationFrom") -> float:
    """Return the seconds that kwok would wait, by the jq that it would run."""
    expression = stage["spec"]["delay"][field]["jq"]["expression"]
    text: str = jq.compile(expression).input_value(pod).first()
    return float(text.removesuffix("s"))


@pytest.mark.parametrize("lease", [True, False])
@pytest.mark.parametrize("lifecycle", EVERYTHING, ids=str)
def test_what_is_compiled_passes_the_linter(lifecycle: dict[str, Any], lease: bool) -> None:  # noqa: FBT001  # a column of the table
    """Nothing that would crash, wedge or surprise kwok comes out."""
    for stage in compiled(lifecycle, lease=lease).values():
        assert rules.check(stage) == []


@pytest.mark.parametrize("lifecycle", EVERYTHING, ids=str)
def test_stages_act_on_their_own_objects_only(lifecycle: dict[str, Any]) -> None:
    """Each is scoped by the label that pools and waves put on what they make."""
    for stage in compiled(lifecycle).values():
        assert stage["spec"]["selector"]["matchLabels"] == {"kwokfleet.dev/lifecycle": "lab.l"}
        assert "next" not in stage["spec"]
        assert stage["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "kwokfleet"


def test_the_library_leaves_them_alone() -> None:
    """No set that acts at large matches an object with a Lifecycle."""
    for name in ("node-fast-initialize", "pod-fast-ready", "pod-general-create", "job-complete", "pod-recover-ready"):
        keys = [entry["jq"]["key"] for entry in LIBRARY[name]["spec"]["selector"]["matchExpressions"]]
        assert '.metadata.labels["kwokfleet.dev/lifecycle"]' in keys


def test_failing_and_completing_share_one_die() -> None:
    """The weights are in the ratio of the probabilities, and whoever has none is left out."""
    both = compiled({"pod": {"complete": "1s", "fail": {"probability": 0.02}}})
    assert (both["fail"]["spec"]["weight"], both["complete"]["spec"]["weight"]) == (200, 9800)
    assert "complete" not in compiled({"pod": {"complete": "1s", "fail": {"probability": 1}}})
    assert "fail" not in compiled({"pod": {"complete": "1s", "fail": {"probability": 0}}})
    assert compiled({"pod": {"complete": "1s", "fail": {"probability": "0.001%"}}})["fail"]["spec"]["weight"] == 1


def test_only_pods_of_jobs_complete_unless_told_otherwise() -> None:
    """And pods of others do not fail in their place."""
    for part in ("complete", "fail"):
        for when, asked in (("job", True), ("always", False)):
            stage = compiled({"pod": {"complete": {"after": "1s", "when": when}, "fail": {"probability": 0.5}}})[part]
            assert ("ownerReferences" in str(stage["spec"]["selector"])) is asked


STARTED = "2026-01-01T00:00:00Z"


def pod(*args: str, annotations: dict[str, str] | None = None) -> Manifest:
    """Return a pod that has been running since long ago, as kwok sees it."""
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
def test_args_say_how_long(args: tuple[str, ...], seconds: float) -> None:
    """As `sleep` reads them; measured against a pod that does not sleep at all."""
    complete = compiled({"pod": {"complete": "args"}})["complete"]
    assert delay_of(complete, pod(*args)) - delay_of(complete, pod("sleep", "0")) == pytest.approx(seconds, abs=0.2)


def test_who_sleeps_for_ever_never_completes() -> None:
    """`sleep infinity` is no sleep of 0 seconds."""
    entries = compiled({"pod": {"complete": "args"}})["complete"]["spec"]["selector"]["matchExpressions"]
    [entry] = [each["jq"] for each in entries if "inf" in each["jq"]["key"]]
    assert entry["operator"] == "NotIn"
    assert jq.compile(entry["key"]).input_value(pod("sleep", "infinity")).first() is True
    assert jq.compile(entry["key"]).input_value(pod("sleep", "10")).first() is False


def test_long_delays_are_reckoned_from_what_the_status_keeps() -> None:
    """A restart of kwok, or a change of the pod, does not start them again: what is long over is due at once."""
    stages = compiled({"pod": {"ready": "10s..11s", "complete": "1h", "create": "2s"}})
    assert delay_of(stages["ready"], pod()) < 0
    assert delay_of(stages["ready"], pod(), "jitterDurationFrom") - delay_of(stages["ready"], pod()) == pytest.approx(
        1, abs=0.2
    )
    assert delay_of(stages["complete"], pod()) < 0
    assert stages["create"]["spec"]["delay"] == {"durationMilliseconds": 2000}


def test_an_annotation_says_how_long_or_when() -> None:
    """A duration counts from the start, an instant stands for itself, and nothing means the usual."""
    complete = compiled({"pod": {"complete": {"annotation": "x"}}})["complete"]
    program = jq.compile(complete["spec"]["delay"]["durationFrom"]["jq"]["expression"])
    assert delay_of(complete, pod(annotations={"x": "90s"})) - delay_of(
        complete, pod(annotations={"x": "0s"})
    ) == pytest.approx(90, abs=0.2)
    assert program.input_value(pod(annotations={"x": "2026-05-01T00:00:00Z"})).first() == "2026-05-01T00:00:00Z"
    assert program.input_value(pod()).all() == []


def test_a_drawn_delay_falls_back_to_its_middle() -> None:
    """For pods that carry the label but were not made by a wave."""
    assert (
        compiled({"pod": {"complete": {"exponential": {"mean": "60s"}}}})["complete"]["spec"]["delay"][
            "durationMilliseconds"
        ]
        == 60_000
    )


def test_what_is_said_cannot_break_out_of_the_template() -> None:
    """A reason is a text, whatever it contains."""
    fail = compiled(
        {"pod": {"complete": "1s", "fail": {"probability": 0.5, "reason": '"}} {{ .spec', "exitCode": 137}}}
    )["fail"]
    template = fail["spec"]["steps"][0]["patch"]["template"]
    assert "{{ .spec" not in template
    assert '"pod-container-running-failed.stage.kwok.x-k8s.io/exit-code" "137"' in template


def test_nodes_fail_as_often_as_they_should() -> None:
    """With each heartbeat the die decides; over many, failures come once in the time that was asked for."""
    stages = compiled({"node": {"notReady": {"every": "10h", "for": "5m"}}})
    share = stages["fail"]["spec"]["weight"] / lifecycles.TOTAL_WEIGHT
    period = lifecycles.HEARTBEAT_WITH_LEASE.total_seconds()
    assert period * (1 - share) / share + period / 2 == pytest.approx(36_000, rel=0.03)
    assert stages["fail"]["spec"]["weight"] + stages["beat"]["spec"]["weight"] == lifecycles.TOTAL_WEIGHT


def test_without_leases_the_status_is_renewed_in_time() -> None:
    """Every 20 to 25 seconds instead of every ten minutes."""
    assert compiled({"node": {}}, lease=False)["beat"]["spec"]["delay"]["jitterDurationMilliseconds"] == 25_000
    assert compiled({"node": {}}, lease=True)["beat"]["spec"]["delay"]["jitterDurationMilliseconds"] == 610_000
