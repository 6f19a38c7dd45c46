"""Documents into models, or into findings in the words of the file."""

from typing import Any

import pytest

from kwokfleet.api import decode
from kwokfleet.api import fleet as fleet_api
from kwokfleet.documents import problems
from kwokfleet.documents.problems import Finding


def fleet(**spec: Any) -> dict[str, Any]:  # noqa: ANN401  # any part of a file
    """Return a Fleet as a file has it."""
    return {"apiVersion": fleet_api.API_VERSION, "kind": "Fleet", "metadata": {"name": "lab"}, "spec": spec}


def findings(value: object) -> dict[str, Finding]:
    """Return what is wrong, by place."""
    made, found = decode.to_model(fleet_api.Fleet, value)
    assert (made is None) == bool(found)
    return {problems.format_path(finding.field_path): finding for finding in found}


def test_the_design_s_own_example_is_understood() -> None:
    """Short forms and long forms come to the same model."""
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


def test_an_unknown_field_is_answered_with_the_nearest_one() -> None:
    """At every level, and at the key."""
    found = findings(
        fleet(
            nodePool=[],
            nodePools=[{"name": "a", "replcas": 3, "drain": {"polcy": "evict"}}],
            lifecycles=[{"name": "l", "pod": {"complete": {"after": "1s", "wen": "job"}}}],
        )
    )
    assert found["spec.nodePool"].hint == "did you mean 'nodePools'?"
    assert found["spec.nodePools[0].replcas"].hint == "did you mean 'replicas'?"
    assert found["spec.nodePools[0].drain.polcy"].hint == "did you mean 'policy'?"
    assert found["spec.lifecycles[0].pod.complete.wen"].hint == "did you mean 'when'?"
    assert all(finding.at_key for finding in found.values())


def test_all_findings_come_at_once() -> None:
    """Nobody mends one mistake only to be shown the next."""
    found = findings(
        fleet(seed="x", nodePools=[{"name": "A", "replicas": -3}], prune={"maxPercent": 200}, suspend="true")
    )
    assert set(found) == {
        "spec.seed",
        "spec.nodePools[0].name",
        "spec.nodePools[0].replicas",
        "spec.prune.maxPercent",
        "spec.suspend",
    }
    assert found["spec.nodePools[0].replicas"].what == "must be 0 or more, got -3"
    assert found["spec.seed"].what == "must be a whole number, got 'x'"
    assert found["spec.suspend"].what == "must be true or false, got 'true'"


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
def test_a_start_is_exactly_one_thing(start: dict[str, str], place: str) -> None:
    """None, several, and impossible ones are refused at their place."""
    assert list(findings(fleet(waves=[{"name": "w", "template": {}, "start": start}]))) == [place]


def test_labels_must_be_texts() -> None:
    """What the API server would refuse is refused here, with the quotes that were forgotten."""
    found = findings(fleet(nodePools=[{"name": "a", "replicas": 1, "labels": {"gpu": True}}]))
    assert 'write "true"' in found["spec.nodePools[0].labels.gpu"].what


def test_a_pool_s_size_has_one_owner() -> None:
    """Either replicas or the autoscaler, and one of them."""
    assert findings(fleet(nodePools=[{"name": "a"}]))["spec.nodePools[0]"].what == "replicas or autoscaler is required"
    both = findings(fleet(nodePools=[{"name": "a", "replicas": 1, "autoscaler": {"max": 5}}]))
    assert list(both) == ["spec.nodePools[0].replicas"]


@pytest.mark.parametrize("value", [None, [], "x", 5, {}, {"spec": None}, {"metadata": [], "spec": []}])
def test_anything_at_all_gets_an_answer(value: object) -> None:
    """A document of any shape is findings, not an exception."""
    assert findings(value)


def test_the_schema_describes_every_field() -> None:
    """Whoever writes a file in an editor is told what each field means."""
    made = decode.json_schema()
    bare = [
        f"{name}.{field}"
        for name, definition in made["definitions"].items()
        for shape in [definition, *definition.get("anyOf", [])]
        for field, content in shape.get("properties", {}).items()
        if not content.get("description") and "$ref" not in content
    ]
    assert not bare
    assert made["definitions"]["Fleet"]["additionalProperties"] is False


def test_the_schema_s_references_lead_somewhere() -> None:
    """No reference dangles."""
    made = decode.json_schema()

    def references(part: object) -> set[str]:
        if isinstance(part, dict):
            inner = {name for each in part.values() for name in references(each)}
            return inner | ({part["$ref"]} if isinstance(part.get("$ref"), str) else set())
        return {name for each in part for name in references(each)} if isinstance(part, list) else set()

    assert {name.removeprefix("#/definitions/") for name in references(made)} <= set(made["definitions"])
