import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from kwokfleet.documents import problems
from kwokfleet.documents.problems import FieldPath, Finding, Severity
from kwokfleet.stagelint import rules

STAGES = Path(__file__).parents[3] / "stages"
MISSING = object()
PHASE = {"jq": {"key": ".status.phase", "operator": "In", "values": ["Pending"]}}
EVERYTHING: dict[str, Any] = {
    "apiVersion": "kwok.x-k8s.io/v1alpha1",
    "kind": "Stage",
    "metadata": {"name": "pod-ready", "labels": {"a": "b"}},
    "spec": {
        "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
        "selector": {
            "matchLabels": {"a": "b"},
            "matchAnnotations": {"a": "b"},
            "matchExpressions": [PHASE, {"cel": {"expression": 'self.spec.nodeName != ""'}}],
        },
        "weight": 1,
        "weightFrom": {"jq": {"expression": '.metadata.annotations["weight"]'}},
        "delay": {
            "durationMilliseconds": 1000,
            "durationFrom": {"jq": {"expression": '.metadata.annotations["delay"]'}},
            "jitterDurationMilliseconds": 5000,
            "jitterDurationFrom": {"jq": {"expression": '.metadata.annotations["jitter"]'}},
        },
        "steps": [
            {"event": {"type": "Normal", "reason": "Made", "message": "made"}},
            {"finalizers": {"add": [{"value": "example.com/a"}], "remove": [{"value": "example.com/b"}]}},
            {"apply": {"template": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}", "type": "apply"}},
            {
                "patch": {
                    "subresource": "status",
                    "root": "status",
                    "template": "phase: Running\nstartTime: {{ Now | Quote }}",
                    "type": "merge",
                    "impersonation": {"username": "a"},
                }
            },
            {"delete": True},
        ],
        "immediateNextStage": True,
    },
}
NEXT = {"delete": False, "statusTemplate": "phase: Running"}


def altered(*path: str | int, to: object = MISSING) -> dict[str, Any]:
    """Return a Stage that is right but for one place: *to* is there instead, or nothing."""
    stage = copy.deepcopy(EVERYTHING)
    inside: Any = stage
    for step in path[:-1]:
        inside = inside[step]
    if to is MISSING:
        del inside[path[-1]]
    else:
        inside[path[-1]] = to
    return stage


def spec(**fields: object) -> dict[str, Any]:
    """Return a plain Stage with other fields in its spec."""
    plain = {"resourceRef": {"kind": "Pod"}, "selector": {"matchExpressions": [PHASE]}, "steps": [{"delete": True}]}
    return {**EVERYTHING, "spec": {**plain, **fields}}


def requirement(found: object) -> dict[str, Any]:
    """Return a Stage with one requirement in its selector."""
    return spec(selector={"matchExpressions": [found]})


def patch(kind: str = "Pod", group: str = "v1", **fields: object) -> dict[str, Any]:
    """Return a Stage that patches."""
    content = {"subresource": "status", "root": "status", "template": "phase: Running", **fields}
    return spec(resourceRef={"kind": kind, "apiGroup": group}, steps=[{"patch": content}])


def broken(stage: dict[str, Any]) -> dict[str, tuple[str, Severity]]:
    """Return each rule that is broken, with the place and how bad it is."""
    return {found.rule: (problems.format_path(found.field_path), found.severity) for found in rules.check(stage)}


def only(stage: dict[str, Any]) -> Finding:
    """Return the one thing that is wrong."""
    found = rules.check(stage)
    assert len(found) == 1, found
    return found[0]


def test_a_stage_that_uses_every_field_is_fine() -> None:
    """No field that kwok knows is refused."""
    assert rules.check(EVERYTHING) == []


@pytest.mark.parametrize(
    ("path", "to", "place", "rule"),
    [
        (("apiVersion",), "v1", "apiVersion", "stage-wrong-kind"),
        (("kind",), "Stages", "kind", "stage-wrong-kind"),
        (("metadata", "name"), MISSING, "metadata.name", "stage-missing-name"),
        (("metadata", "name"), "Pod Ready", "metadata.name", "stage-bad-name"),
        (("spec", "resourceRef", "kind"), MISSING, "spec.resourceRef.kind", "stage-missing-kind"),
        (("spec", "resourceRef", "apiGroup"), "apps", "spec.resourceRef.apiGroup", "stage-bad-api-group"),
        (("spec", "resourceRef", "apiGroup"), "core/v1", "spec.resourceRef.apiGroup", "stage-bad-api-group"),
        (("spec", "selector"), MISSING, "spec", "stage-null-selector"),
        (("spec", "selector"), None, "spec.selector", "stage-null-selector"),
        (("spec", "weight"), -1, "spec.weight", "stage-negative"),
        (("spec", "delay", "durationMilliseconds"), -1, "spec.delay.durationMilliseconds", "stage-negative"),
        (("spec", "weight"), "1", "spec.weight", "stage-wrong-type"),
        (("spec", "weight"), True, "spec.weight", "stage-wrong-type"),
        (("spec", "steps"), {}, "spec.steps", "stage-wrong-type"),
        (("metadata", "labels", "a"), True, "metadata.labels.a", "stage-wrong-type"),
        (("spec", "selector", "matchLabels"), ["a"], "spec.selector.matchLabels", "stage-wrong-type"),
        (("spec", "steps", 0, "event", "type"), "Error", "spec.steps[0].event.type", "stage-bad-event"),
        (("spec", "steps", 0, "event", "type"), MISSING, "spec.steps[0].event.type", "stage-bad-event"),
        (("spec", "steps", 1, "finalizers", "add", 0), {}, "spec.steps[1].finalizers.add[0]", "stage-empty-finalizer"),
        (("spec", "steps", 2, "apply", "type"), "json", "spec.steps[2].apply.type", "stage-bad-patch-type"),
        (("spec", "steps", 2, "apply", "template"), "a: b", "spec.steps[2].apply.template", "stage-apply-without-kind"),
        (("spec", "steps", 3, "patch", "type"), "apply", "spec.steps[3].patch.type", "stage-bad-patch-type"),
        (("spec", "steps", 3, "patch", "template"), MISSING, "spec.steps[3].patch", "stage-missing-template"),
        (("spec", "steps", 3, "patch", "template"), "{{ x", "spec.steps[3].patch.template", "stage-bad-template"),
        (
            ("spec", "steps", 3, "patch", "subresource"),
            "state",
            "spec.steps[3].patch.subresource",
            "stage-bad-subresource",
        ),
        (("spec", "steps", 3, "patch", "subresource"), MISSING, "spec.steps[3].patch.root", "stage-status-not-patched"),
        (
            ("spec", "steps", 3, "patch", "impersonation"),
            {},
            "spec.steps[3].patch.impersonation",
            "stage-missing-username",
        ),
        (("spec", "steps", 4), {"delete": False}, "spec.steps[4]", "stage-empty-step"),
    ],
)
def test_what_would_stop_a_stage_is_an_error_at_its_place(path: FieldPath, to: object, place: str, rule: str) -> None:
    """Each single mistake in a Stage is found, with the place to correct."""
    assert broken(altered(*path, to=to))[rule] == (place, Severity.ERROR)


def test_where_leads_to_the_stage() -> None:
    """Places start from the document that holds the Stage."""
    found = rules.check(altered("spec", "weight", to=-1), ("items", 3))
    assert problems.format_path(found[0].field_path) == "items[3].spec.weight"


def test_an_unknown_field_is_told_with_the_nearest_name() -> None:
    """The API server and kwok drop what they do not know."""
    found = only(altered("spec", "delay", "durationMillis", to=1))
    assert found.rule == "stage-unknown-field"
    assert found.at_key
    assert found.field_path == ("spec", "delay", "durationMillis")
    assert found.hint == "did you mean 'durationMilliseconds'?"


def test_a_truth_value_where_a_text_belongs_is_told_to_be_quoted() -> None:
    """`values: [True]` is the classic."""
    found = rules.check(altered("spec", "selector", "matchExpressions", 0, "jq", "values", to=[True]))
    assert found[0].hint == "put it in quotes"


def test_a_kind_in_lower_case_is_told_in_its_own_spelling() -> None:
    """`pod` finds no objects."""
    found = only(altered("spec", "resourceRef", "kind", to="pod"))
    assert (found.rule, found.hint) == ("stage-bad-kind", "did you mean 'Pod'?")


@pytest.mark.parametrize(
    ("found", "rule"),
    [
        ({}, "stage-bad-requirement"),
        ({"operator": "Exists"}, "stage-bad-requirement"),
        ({"jq": {"key": ".a", "operator": "Has"}}, "stage-bad-operator"),
        ({"jq": {"key": ".a"}}, "stage-bad-operator"),
        ({"jq": {"key": ".a", "operator": "In"}}, "stage-bad-values"),
        ({"jq": {"key": ".a", "operator": "Exists", "values": ["a"]}}, "stage-bad-values"),
        ({"jq": {"key": "status.phase", "operator": "Exists"}}, "stage-bad-jq"),
        ({"key": ".a[", "operator": "Exists"}, "stage-bad-jq"),
        ({"jq": {"operator": "Exists"}}, "stage-bad-jq"),
        ({"cel": {}}, "stage-bad-cel"),
        ({"cel": {"expression": "self.nope"}}, "stage-bad-cel"),
        ({"cel": {"expression": "self.metadata.name"}}, "stage-cel-not-condition"),
        ({"cel": {"expression": "self.metadata.deletionTimestamp == null"}}, "stage-cel-null-time"),
        ({**PHASE, "cel": {"expression": "true"}}, "stage-two-languages"),
        ({**PHASE, "key": ".a"}, "stage-two-languages"),
    ],
)
def test_a_requirement_that_breaks_kwok_is_an_error(found: dict[str, Any], rule: str) -> None:
    """One requirement that does not compile stops every Stage of the kind."""
    assert broken(requirement(found))[rule][1] is Severity.ERROR


def test_the_old_spelling_of_a_requirement_is_a_warning() -> None:
    """It still works; the new spelling is told."""
    found = only(requirement({"key": ".status.phase", "operator": "Exists"}))
    assert (found.rule, found.severity) == ("stage-bare-requirement", Severity.WARNING)
    assert "jq: {key" in found.hint


def test_a_number_in_values_is_a_warning() -> None:
    """To kwok a number read from an object equals no value."""
    found = only(requirement({"jq": {"key": ".spec.replicas", "operator": "In", "values": ["3"]}}))
    assert (found.rule, found.hint) == ("stage-number-value", "use key: .spec.replicas | tostring")


@pytest.mark.parametrize("key", ['.metadata.labels["shard"]', ".spec.replicas | tostring", ".a | length"])
def test_a_text_that_looks_like_a_number_is_fine(key: str) -> None:
    """Labels are texts, and so is what tostring makes."""
    assert rules.check(requirement({"jq": {"key": key, "operator": "In", "values": ["3"]}})) == []


def test_cel_that_fails_without_a_key_is_a_warning() -> None:
    """An error at run time leaves the object without any Stage."""
    found = only(requirement({"cel": {"expression": 'self.metadata.labels["a"] == "b"'}}))
    assert (found.rule, found.severity) == ("stage-cel-missing-key", Severity.WARNING)


def test_an_earlier_requirement_may_ask_for_the_key() -> None:
    """Requirements are tried in order, jq first, until one is not met."""
    reads = {"cel": {"expression": 'self.metadata.labels["a"] == "b"'}}
    asks = {"cel": {"expression": '"a" in self.metadata.labels'}}
    exists = {"jq": {"key": '.metadata.labels["a"]', "operator": "Exists"}}
    assert rules.check(spec(selector={"matchExpressions": [asks, reads]})) == []
    assert rules.check(spec(selector={"matchExpressions": [exists, reads]})) == []


def test_a_jitter_below_the_delay_is_an_error() -> None:
    """Only the jitter would be waited for."""
    found = only(spec(delay={"durationMilliseconds": 60000, "jitterDurationMilliseconds": 5000}))
    assert found.rule == "stage-jitter-below-duration"
    assert "must be at least durationMilliseconds (60000), got 5000" in found.what


def test_a_jitter_equal_to_the_delay_is_fine() -> None:
    """The delay is then exactly that."""
    assert rules.check(spec(delay={"durationMilliseconds": 1000, "jitterDurationMilliseconds": 1000})) == []


def test_a_fixed_jitter_caps_a_delay_from_the_object() -> None:
    """A delay longer than the jitter has no effect."""
    delay = {"durationFrom": {"jq": {"expression": ".a"}}, "jitterDurationMilliseconds": 5000}
    assert broken(spec(delay=delay)) == {
        "stage-jitter-caps-duration": ("spec.delay.jitterDurationMilliseconds", Severity.WARNING)
    }


@pytest.mark.parametrize(
    ("fields", "rule", "severity"),
    [
        ({"delay": {"jitterDurationFrom": {"cel": {"expression": '"1s"'}}}}, "stage-cel-jitter", "error"),
        ({"delay": {"durationFrom": {"cel": {"expression": "10"}}}}, "stage-cel-nanoseconds", "warning"),
        ({"delay": {"durationFrom": {"cel": {"expression": "Now()"}}}}, "stage-cel-not-delay", "error"),
        ({"delay": {"durationFrom": {"expressionFrom": ".a"}}}, "stage-deprecated-expression", "warning"),
        ({"delay": {"durationFrom": {"expressionFrom": ".a["}}}, "stage-bad-jq", "error"),
        ({"delay": {"durationFrom": {}}}, "stage-empty-from", "warning"),
        ({"weightFrom": {"cel": {"expression": '"1"'}}}, "stage-cel-not-weight", "error"),
        ({"weightFrom": {"cel": {"expression": "1 +"}}}, "stage-bad-cel", "error"),
        (
            {"weightFrom": {"cel": {"expression": "1"}, "jq": {"expression": ".a"}}},
            "stage-two-languages",
            "error",
        ),
    ],
)
def test_a_value_taken_from_the_object_is_checked(fields: dict[str, Any], rule: str, severity: str) -> None:
    """Delays, jitters and weights by expression each have their traps."""
    assert broken(spec(**fields))[rule][1] == severity


def test_next_is_deprecated() -> None:
    """Version 0.8 still takes it."""
    stage = {**EVERYTHING, "spec": {**spec()["spec"], "next": NEXT, "steps": None}}
    assert broken(stage) == {"stage-next-deprecated": ("spec.next", Severity.WARNING)}


def test_next_beside_steps_is_an_error() -> None:
    """It would be ignored."""
    assert broken(spec(next=NEXT)) == {"stage-steps-and-next": ("spec.next", Severity.ERROR)}


def test_a_template_in_next_is_checked_where_it_stands() -> None:
    """The place is the field that people wrote, not the step kwok makes of it."""
    found = broken(spec(steps=None, next={"statusTemplate": "{{ foo }}"}))
    assert found["stage-bad-template"] == ("spec.next.statusTemplate", Severity.ERROR)


def test_a_status_template_beside_patches_is_an_error() -> None:
    """It would be ignored."""
    after = {"statusTemplate": "a: b", "patches": [{"template": "a: b"}]}
    assert broken(spec(steps=None, next=after))["stage-template-ignored"] == (
        "spec.next.statusTemplate",
        Severity.ERROR,
    )


@pytest.mark.parametrize("fields", [{"steps": None}, {"steps": []}, {"steps": None, "next": {"delete": False}}])
def test_a_stage_that_does_nothing_is_an_error(fields: dict[str, Any]) -> None:
    """It would only keep others from playing."""
    assert broken(spec(**fields))["stage-no-steps"][1] is Severity.ERROR


def test_a_patch_beside_a_delete_is_skipped() -> None:
    """A delete leads straight to the next step."""
    found = only(spec(steps=[{"delete": True, "patch": {"template": "a: b"}}]))
    assert (found.rule, found.field_path) == ("stage-delete-hides-action", ("spec", "steps", 0, "patch"))


def test_what_follows_a_delete_is_skipped_but_for_events() -> None:
    """An event after the delete is still sent."""
    event = {"event": {"type": "Normal"}}
    assert rules.check(spec(steps=[{"delete": True}, event])) == []
    assert broken(spec(steps=[{"delete": True}, {"patch": {"template": "a: b"}}])) == {
        "stage-after-delete": ("spec.steps[1].patch", Severity.ERROR)
    }


def test_two_actions_in_one_step_are_a_warning() -> None:
    """If the second fails, the first is done again."""
    step = {"event": {"type": "Normal"}, "patch": {"template": "metadata: {labels: {a: b}}"}}
    assert broken(spec(steps=[step])) == {"stage-many-actions": ("spec.steps[0]", Severity.WARNING)}


@pytest.mark.parametrize(
    "finalizers",
    [{"empty": True, "add": [{"value": "a/b"}]}, {"empty": True, "remove": [{"value": "a/b"}]}],
)
def test_emptying_finalizers_beside_others_is_a_warning(finalizers: dict[str, Any]) -> None:
    """All go, whoever set them."""
    assert broken(spec(steps=[{"finalizers": finalizers}]))["stage-finalizers-empty"][1] is Severity.WARNING


def test_a_status_patch_that_never_names_the_status_is_a_warning() -> None:
    """The API server drops everything else."""
    assert broken(patch(root=None))["stage-status-not-patched"] == ("spec.steps[0].patch.template", Severity.WARNING)


@pytest.mark.parametrize(
    ("group", "refused"), [("example.com/v1", True), ("apps/v1", False), ("storage.k8s.io/v1", False)]
)
def test_custom_resources_take_no_strategic_patch(group: str, refused: bool) -> None:  # noqa: FBT001  # a column of the table
    """The API server refuses it for kinds it does not have built in."""
    assert ("stage-strategic-custom" in broken(patch("Widget", group, type="strategic"))) is refused


def test_a_stage_that_matches_itself_for_ever_is_a_warning() -> None:
    """A change each time, nothing that stops it, and no delay."""
    template = "message: {{ Now | Quote }}"
    hot = patch(template=template)
    hot["spec"]["selector"] = {"matchLabels": {"a": "b"}}
    assert broken(hot) == {"stage-hot-loop": ("spec.steps[0].patch.template", Severity.WARNING)}
    assert rules.check({**hot, "spec": {**hot["spec"], "delay": {"durationMilliseconds": 1000}}}) == []
    assert rules.check(patch(template=template)) == []


def test_two_stages_of_one_name_are_an_error() -> None:
    """In a cluster the second replaces the first."""
    found = rules.check_set([((0,), EVERYTHING), ((1,), EVERYTHING)])
    assert [(each.rule, each.field_path) for each in found] == [("stage-duplicate-name", (1, "metadata", "name"))]


def weighted(name: str, weight: int, **selector: object) -> tuple[FieldPath, dict[str, Any]]:
    """Return a named Stage with a weight and a selector."""
    stage = spec(weight=weight, selector=selector)
    return (name,), {**stage, "metadata": {"name": name}}


def test_weight_zero_beside_a_wider_stage_with_a_weight_is_never_chosen() -> None:
    """Where both match, only the one with a weight is."""
    narrow = weighted("narrow", 0, matchLabels={"a": "b"}, matchExpressions=[PHASE])
    found = rules.check_set([narrow, weighted("wide", 5, matchExpressions=[PHASE])])
    assert [(each.rule, each.field_path) for each in found] == [("stage-zero-weight", ("narrow", "spec", "weight"))]


@pytest.mark.parametrize(
    "other",
    [
        weighted("other", 0, matchExpressions=[PHASE]),
        weighted("other", 5, matchLabels={"opt": "in"}, matchExpressions=[PHASE]),
        weighted("other", 5, matchExpressions=[{"jq": {**PHASE["jq"], "values": ["Running"]}}]),
    ],
)
def test_weight_zero_is_fine_where_the_other_may_not_match(other: tuple[FieldPath, dict[str, Any]]) -> None:
    """An opt-in label, another phase or no weight at all leave it a chance."""
    assert rules.check_set([weighted("plain", 0, matchExpressions=[PHASE]), other]) == []


def shipped() -> Iterator[Any]:
    """Yield the Stages of each file that comes with kwokfleet."""
    for path in sorted(STAGES.glob("*.yaml")):
        found = [each for each in YAML(typ="safe", pure=True).load_all(path) if each and each.get("kind") == "Stage"]
        yield pytest.param(found, id=path.stem)


@pytest.mark.parametrize("stages", list(shipped()))
def test_the_stages_we_ship_are_fine(stages: list[dict[str, Any]]) -> None:
    """None of our own files has an error, alone or together."""
    found = [each for stage in stages for each in rules.check(stage)]
    found += rules.check_set([((index,), stage) for index, stage in enumerate(stages)])
    assert [each for each in found if each.severity is Severity.ERROR] == []


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(["{{", ".a[", "In"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["spec", "jq", "cel", "key", "steps", "patch", "expression", "x"]), inner, max_size=3
        ),
    ),
    max_leaves=8,
)


def places(value: object, where: FieldPath = ()) -> Iterator[FieldPath]:
    """Yield the way to each part of a value."""
    for step, inner in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield (*where, step)
        yield from places(inner, (*where, step))


@given(st.sampled_from(list(places(EVERYTHING))), JSON)
@settings(max_examples=300, deadline=None)
def test_any_value_at_any_place_gets_an_answer(where: FieldPath, value: object) -> None:
    """However broken the Stage, the rules find something or nothing, and never raise."""
    stage = altered(*where, to=value)
    for found in [*rules.check(stage), *rules.check_set([((), stage), ((), EVERYTHING)])]:
        assert problems.format_path(found.field_path)
        assert found.what


@given(st.dictionaries(st.sampled_from(["apiVersion", "kind", "metadata", "spec", "status"]), JSON))
@settings(max_examples=100, deadline=None)
def test_any_document_gets_an_answer(stage: dict[str, Any]) -> None:
    """A document that is no Stage at all is told so."""
    assert rules.check(stage)
