"""Churn and removal of a Run's objects."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwokfleet.api import decode
from kwokfleet.api import fleet as fleet_api
from kwokfleet.kube import objects, rejections
from kwokfleet.kube.requests import Response
from kwokfleet.render import workloads
from kwokfleet.waves import churn
from kwokfleet.waves.churn import RunObject

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
JOB = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": {"restartPolicy": "Never"}}}}
POD = {"apiVersion": "v1", "kind": "Pod", "spec": {"restartPolicy": "Never", "containers": [{"name": "main"}]}}


def fleet(wave: dict[str, Any], **spec: Any) -> fleet_api.Fleet:  # noqa: ANN401  # parts of a file
    """Return a Fleet with one Wave."""
    waves = [{"name": "load", "template": {"apiVersion": "v1", "kind": "ConfigMap"}, **wave}]
    document = {
        "apiVersion": objects.API_VERSION,
        "kind": "Fleet",
        "metadata": {"name": "lab"},
        "spec": {"waves": waves, **spec},
    }
    return fleet_api.Fleet.model_validate(document)


def churning(percent: str, seed: int = 0) -> fleet_api.Fleet:
    """Return a Fleet with churn."""
    return fleet({"churn": {"percent": percent, "every": "30s", "for": "2m"}}, seed=seed)


@given(st.integers(1, 300), st.integers(1, 100), st.integers(1, 5))
def test_a_churn_round_chooses_its_share_deterministically(total: int, percent: int, number: int) -> None:
    """At least one object, each once."""
    one = churning(f"{percent}%")
    chosen = churn.churned_indices(one, one.spec.waves[0], "0", number, total)
    assert len(chosen) == -(-total * percent // 100)
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(range(total))
    assert chosen == churn.churned_indices(one, one.spec.waves[0], "0", number, total)


def test_churn_rounds_runs_and_seeds_choose_differently() -> None:
    """Different objects are replaced each time."""
    one, two = churning("10%"), churning("10%", seed=1)
    seen = {
        tuple(churn.churned_indices(lab, lab.spec.waves[0], run, number, 1000))
        for lab in (one, two)
        for run in ("0", "1")
        for number in (1, 2)
    }
    assert len(seen) == 8


def test_the_number_of_churn_rounds_follows_from_for_and_every() -> None:
    """Two minutes at every 30 s are four rounds."""
    churn = churning("10%").spec.waves[0].churn
    assert churn is not None
    assert churn.total == 4


def test_the_churn_round_is_an_annotation() -> None:
    """An interrupted round continues without replacing objects twice."""
    manifest: objects.Manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a", "annotations": {"k": "v"}},
    }
    assert churn.churn_round(manifest) == 0
    renewed = churn.with_churn_round(manifest, 3)
    assert churn.churn_round(renewed) == 3
    assert renewed["metadata"]["annotations"]["k"] == "v"
    assert objects.CHURN_ROUND not in manifest["metadata"]["annotations"]


@pytest.mark.parametrize("missing", [("", "load", "0"), ("lab", "", "0"), ("lab", "load", "")])
def test_a_selector_needs_all_parts(missing: tuple[str, str, str]) -> None:
    """An incomplete selector would match other objects."""
    with pytest.raises(ValueError, match="without"):
        churn.run_selector(*missing)


def live(kind: str, **status: Any) -> dict[str, Any]:  # noqa: ANN401  # a status
    """Return a live object, created at noon."""
    metadata = {"name": "a", "namespace": "n", "uid": "u", "creationTimestamp": "2026-03-02T12:00:00Z"}
    return {"kind": kind, "metadata": metadata, "status": status}


def at(second: int) -> str:
    """Return a time as the API server writes it."""
    return (NOON + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("status", "second"),
    [
        ({}, None),
        ({"conditions": [{"type": "Complete", "status": "False", "lastTransitionTime": at(5)}]}, None),
        ({"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": at(5)}]}, 5),
        ({"conditions": [{"type": "Failed", "status": "True", "lastTransitionTime": at(6)}]}, 6),
        ({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}, None),
        ({"phase": "Succeeded"}, 0),
        ({"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"finishedAt": at(7)}}}, {}]}, 7),
    ],
)
def test_the_end_of_jobs_and_pods_is_parsed(status: dict[str, Any], second: int | None) -> None:
    """From conditions and container states; an active one has no end."""
    item = churn.run_object(live("Job", **status), ends=True)
    assert item.ended_at == (None if second is None else NOON + timedelta(seconds=second))
    assert churn.run_object(live("Job", **status), ends=False).ended_at == NOON


def test_objects_expire_after_their_ttl() -> None:
    """Not active ones, deleting ones or later ones; none without a ttl."""
    ttl = timedelta(seconds=10)
    items = [
        RunObject("old", "n", "1", NOON),
        RunObject("new", "n", "2", NOON + timedelta(seconds=1)),
        RunObject("going on", "n", "3", None),
        RunObject("going", "n", "4", NOON, deleting=True),
    ]
    assert [item.name for item in churn.expired(items, ttl, NOON + ttl)] == ["old"]
    assert churn.expired(items, None, NOON + ttl) == []


def test_a_run_ends_with_its_last_object() -> None:
    """Not before all are submitted."""
    items = [RunObject("a", "n", "1", NOON), RunObject("b", "n", "2", NOON + timedelta(seconds=5))]
    assert churn.all_ended_at(items, NOON) == NOON + timedelta(seconds=5)
    assert churn.all_ended_at(items, NOON + timedelta(seconds=9)) == NOON + timedelta(seconds=9)
    assert churn.all_ended_at([*items, RunObject("c", "n", "3", None)], NOON) is None
    assert churn.all_ended_at([], NOON) == NOON


ENDING: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({"template": JOB}, {}, True),
    ({"template": JOB, "lifecycle": "life"}, {"ready": "1s"}, False),
    ({"template": JOB, "lifecycle": "life"}, {"complete": "1s"}, True),
    ({"template": JOB, "lifecycle": "life"}, {"fail": {"probability": "50%"}}, False),
    ({"template": JOB, "lifecycle": "life"}, {"fail": {"probability": "100%"}}, True),
    ({"template": POD}, {}, False),
    ({"template": POD, "lifecycle": "life"}, {"complete": "1s"}, False),
    ({"template": POD, "lifecycle": "life"}, {"complete": {"after": "1s", "when": "always"}}, True),
    ({}, {}, False),
]


@pytest.mark.parametrize(("wave", "pod", "ends"), ENDING)
def test_completes_is_true_for_objects_that_end_without_deletion(
    wave: dict[str, Any], pod: dict[str, Any], *, ends: bool
) -> None:
    """Jobs, unless their Lifecycle never completes; pods, if a Stage completes pods without a Job."""
    lab = fleet(wave, lifecycles=[{"name": "life", "pod": pod}])
    assert workloads.completes(workloads.RunContext(lab, lab.spec.waves[0], "0")) is ends


def test_the_job_stage_set_completes_pods_without_restarts() -> None:
    """Pods with restartPolicy Always never complete."""
    for policy, ends in (("Never", True), ("Always", False)):
        pod = {**POD, "spec": {**POD["spec"], "restartPolicy": policy}}  # type: ignore[dict-item]  # a mapping
        lab = fleet({"template": pod}, stages=["job"])
        assert workloads.completes(workloads.RunContext(lab, lab.spec.waves[0], "0")) is ends


def rejection(status: int, message: str, kind: str = "") -> Response:
    """Return an error response of the API server."""
    body = f'{{"message": "{message}", "details": {{"kind": "{kind}"}}}}'
    return Response(status, body.encode())


@pytest.mark.parametrize(
    ("response", "transient"),
    [
        (rejection(403, "configmaps x is forbidden: exceeded quota: few, requested: count/configmaps=1"), True),
        (rejection(403, "unable to create new content in namespace n because it is being terminated"), True),
        (rejection(403, "error looking up service account n/default: serviceaccount default not found"), True),
        (rejection(404, "namespaces n not found", "namespaces"), True),
        (rejection(409, "object is being deleted: configmaps x already exists"), True),
        (rejection(403, "User me cannot create resource configmaps"), False),
        (rejection(404, "the server could not find the requested resource"), False),
        (rejection(409, "configmaps x already exists"), False),
        (rejection(422, "Job x is invalid: spec.template: Required value"), False),
    ],
)
def test_transient_rejections_are_recognised(response: Response, *, transient: bool) -> None:
    """A quota or a missing namespace is transient; an invalid object is not."""
    assert rejections.is_transient(response) is transient


def test_rejections_are_grouped_by_reason() -> None:
    """The reason does not contain the object's name, so it is equal for all objects."""
    responses = [
        Response(403, f'{{"message": "jobs.batch \\"j-{n}\\" is forbidden: exceeded quota: q"}}'.encode())
        for n in (1, 2)
    ]
    assert {rejections.reason_text(response) for response in responses} == {"403 exceeded quota: q"}
    groups = {"403 exceeded quota: q": (3, "Job a"), "422 no": (1, "Job b")}
    assert rejections.summary(groups) == "Job a and 2 more: 403 exceeded quota: q; Job b: 422 no"
    assert rejections.summary({}) == ""


def test_the_schema_has_the_fields_of_churn_and_cleanup() -> None:
    """Editors complete and check them."""
    properties = decode.json_schema()["definitions"]["Wave"]["properties"]
    assert {"churn", "ttl", "cleanup"} <= set(properties)
