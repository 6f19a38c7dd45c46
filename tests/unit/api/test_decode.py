"""Decoding of documents to models or Findings."""

from typing import Any

import pytest

from kwokfleet.api import decode
from kwokfleet.api import fleet as fleet_api
from kwokfleet.documents import problems
from kwokfleet.documents.problems import Finding


def fleet(**spec: Any) -> dict[str, Any]:  # noqa: ANN401  # any part of a file
    """Return a Fleet document."""
    return {"apiVersion": fleet_api.API_VERSION, "kind": "Fleet", "metadata": {"name": "lab"}, "spec": spec}


def findings(value: object) -> dict[str, Finding]:
    """Return the Findings by field path."""
    model, all_findings = decode.to_model(fleet_api.Fleet, value)
    assert (model is None) == bool(all_findings)
    return {problems.format_path(finding.field_path): finding for finding in all_findings}


def test_the_example_of_the_design_is_decoded() -> None:
    """Short and long forms give the same model."""
    short, _ = decode.to_model(
        fleet_api.Fleet,
        fleet(
            nodePools=[{"name": "gpu", "replicas": 5, "taints": ["a=b:NoSchedule"]}],
            lifecycles=[{"name": "job", "pod": {"ready": "10s..11s", "complete": "args"}}],
            stages=["pod-general"],
            waves=[{"name": "w", "start": "30s", "template": {}}],
        ),
    )
    long, _ = decode.to_model(
        fleet_api.Fleet,
        fleet(
            nodePools=[{"name": "gpu", "replicas": 5, "taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]}],
            lifecycles=[{"name": "job", "pod": {"ready": {"span": "10s..11s"}, "complete": {"after": {"args": True}}}}],
            stages=[{"name": "pod-general"}],
            waves=[{"name": "w", "start": {"after": "30s"}, "template": {}}],
        ),
    )
    assert short is not None
    assert short == long


def test_an_unknown_field_has_the_nearest_name_as_hint() -> None:
    """At every level; the position is that of the key."""
    by_path = findings(
        fleet(
            nodePool=[],
            nodePools=[{"name": "a", "replcas": 3, "drain": {"polcy": "evict"}}],
            lifecycles=[{"name": "l", "pod": {"complete": {"after": "1s", "wen": "job"}}}],
        )
    )
    assert by_path["spec.nodePool"].hint == "did you mean 'nodePools'?"
    assert by_path["spec.nodePools[0].replcas"].hint == "did you mean 'replicas'?"
    assert by_path["spec.nodePools[0].drain.polcy"].hint == "did you mean 'policy'?"
    assert by_path["spec.lifecycles[0].pod.complete.wen"].hint == "did you mean 'when'?"
    assert all(finding.at_key for finding in by_path.values())


def test_all_findings_are_returned_together() -> None:
    """One run shows all errors of a file."""
    by_path = findings(
        fleet(seed="x", nodePools=[{"name": "A", "replicas": -3}], prune={"maxPercent": 200}, suspend="true")
    )
    assert set(by_path) == {
        "spec.seed",
        "spec.nodePools[0].name",
        "spec.nodePools[0].replicas",
        "spec.prune.maxPercent",
        "spec.suspend",
    }
    assert by_path["spec.nodePools[0].replicas"].what == "must be 0 or more, got -3"
    assert by_path["spec.seed"].what == "must be a whole number, got 'x'"
    assert by_path["spec.suspend"].what == "must be true or false, got 'true'"


@pytest.mark.parametrize(
    ("start", "place"),
    [
        ({}, "spec.waves[0].start"),
        ({"after": "1s", "cron": "* * * * *"}, "spec.waves[0].start.cron"),
        ({"cron": "0 0 30 2 *"}, "spec.waves[0].start.cron"),
        ({"cron": "* * * * * *"}, "spec.waves[0].start.cron"),
        ({"cron": "0 8 * * mon", "timeZone": "Mars/Base"}, "spec.waves[0].start.timeZone"),
        ({"every": "1ms"}, "spec.waves[0].start.every"),
        ({"at": "2026-01-01"}, "spec.waves[0].start.at"),
    ],
)
def test_a_start_needs_exactly_one_field(start: dict[str, str], place: str) -> None:
    """None, several and invalid ones are rejected at their field path."""
    assert list(findings(fleet(waves=[{"name": "w", "template": {}, "start": start}]))) == [place]


def test_labels_must_be_strings() -> None:
    """The API server rejects other types; the message shows the quoted value."""
    by_path = findings(fleet(nodePools=[{"name": "a", "replicas": 1, "labels": {"gpu": True}}]))
    assert 'write "true"' in by_path["spec.nodePools[0].labels.gpu"].what


def test_a_pool_has_either_replicas_or_an_autoscaler() -> None:
    """One of them is required."""
    assert findings(fleet(nodePools=[{"name": "a"}]))["spec.nodePools[0]"].what == "replicas or autoscaler is required"
    both = findings(fleet(nodePools=[{"name": "a", "replicas": 1, "autoscaler": {"max": 5}}]))
    assert list(both) == ["spec.nodePools[0].replicas"]


@pytest.mark.parametrize("value", [None, [], "x", 5, {}, {"spec": None}, {"metadata": [], "spec": []}])
def test_any_value_gives_a_model_or_findings(value: object) -> None:
    """No document raises an exception."""
    assert findings(value)


def test_the_schema_describes_every_field() -> None:
    """Editors show the descriptions."""
    schema = decode.json_schema()
    bare = [
        f"{name}.{field}"
        for name, definition in schema["definitions"].items()
        for shape in [definition, *definition.get("anyOf", [])]
        for field, content in shape.get("properties", {}).items()
        if not content.get("description") and "$ref" not in content
    ]
    assert not bare
    assert schema["definitions"]["Fleet"]["additionalProperties"] is False


def test_all_schema_references_resolve() -> None:
    """Every `$ref` has a definition."""
    schema = decode.json_schema()

    def references(part: object) -> set[str]:
        if isinstance(part, dict):
            inner = {name for item in part.values() for name in references(item)}
            return inner | ({part["$ref"]} if isinstance(part.get("$ref"), str) else set())
        return {name for item in part for name in references(item)} if isinstance(part, list) else set()

    assert {name.removeprefix("#/definitions/") for name in references(schema)} <= set(schema["definitions"])
