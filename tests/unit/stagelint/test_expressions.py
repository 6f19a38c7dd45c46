import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwokfleet.stagelint import cel, jq

FRAGMENTS = [
    "self",
    ".a",
    ".metadata",
    "[",
    "]",
    "(",
    ")",
    "{",
    "}",
    "|",
    "==",
    '"x"',
    '"',
    "1",
    "!",
    "in",
    ",",
    "?",
    ":",
]
POD = {"metadata": {"labels": {"app": "web"}, "ownerReferences": [{"kind": "Job"}]}, "spec": {"containers": [{}]}}


@pytest.mark.parametrize(
    "text",
    [
        ".status.phase",
        '.status.conditions.[] | select( .type == "Ready" ) | .status',
        '.metadata.annotations["a.b/c"]',
        ".spec.containers[0].args.[1:2]",
        'def f: .a; f // "x"',
        '"a" * 3',
    ],
)
def test_jq_that_kwok_compiles_is_fine(text: str) -> None:
    """An expression that gojq accepts has no error, even if libjq rejects it."""
    assert jq.compile_error(text) == ""


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (".a[", "unexpected the end"),
        ("status.phase", "status/0 is not defined"),
        ("", "the expression is empty"),
        (".a\0", "NUL"),
        ("keys_unsorted", "'keys_unsorted' does not exist in gojq, which kwok uses"),
        ("$__loc__", "'$__loc__' does not exist in gojq"),
        ('import "/dev/zero" as $x; .', "kwok does not load jq modules"),
        ("." + "[0]" * 2_000, "longer than"),
        ("(" * 101 + "." + ")" * 101, "nested more than"),
        ("\ud800", "surrogates not allowed"),
    ],
)
def test_jq_that_kwok_cannot_compile_is_told_in_one_line(text: str, part: str) -> None:
    """The complaint names the cause, without libjq's page around it."""
    problem = jq.compile_error(text)
    assert part in problem
    assert "\n" not in problem
    assert "jq: error" not in problem


@pytest.mark.parametrize("text", [".debug", "{debug: 1}", '.a == "input"', "def debug: 1; debug"])
def test_a_field_named_like_a_missing_function_is_fine(text: str) -> None:
    """Only a call of a function that gojq lacks is a problem."""
    assert jq.compile_error(text) == ""


def test_constants_are_not_multiplied_while_compiling() -> None:
    """A text times a billion would be a gigabyte in libjq's hands."""
    before = time.perf_counter()
    assert jq.compile_error('"a" * 1000000000 | length') == ""
    assert time.perf_counter() - before < 1


@pytest.mark.parametrize(
    ("key", "operator", "values", "met"),
    [
        (".metadata.labels.app", "In", ["web"], True),
        (".metadata.labels.app", "NotIn", ["web"], False),
        (".metadata.labels.none", "Exists", [], False),
        (".metadata.ownerReferences.[].kind", "In", ["Job"], True),
        (".metadata.labels[]?.x", "DoesNotExist", [], True),
        (".metadata.labels.app.deeper", "NotIn", ["x"], True),
        ('.metadata.labels.app == "web"', "In", ["true"], True),
    ],
)
def test_a_requirement_is_met_as_kwok_sees_it(key: str, operator: str, values: list[str], met: bool) -> None:  # noqa: FBT001  # a column of the table
    """Nulls are no results, an error is no result either, and truth is written in lower case."""
    assert jq.matches(key, operator, values, POD) is met


@pytest.mark.parametrize("text", ["repeat(.)", "def f: f; f", "[range(1e18)]", "[.,.]|[.,.]", '"a" * 1e9', ".a += 1"])
def test_what_might_not_end_is_not_run(text: str) -> None:
    """Nothing interrupts libjq, so only what plainly ends is given to it."""
    assert jq.evaluate(text, POD) is None


@given(st.one_of(st.text(max_size=80), st.lists(st.sampled_from(FRAGMENTS), max_size=12).map(" ".join)))
@settings(max_examples=200, deadline=None)
def test_any_text_gets_an_answer(text: str) -> None:
    """No expression, however wild, raises."""
    assert isinstance(jq.compile_error(text), str)
    assert isinstance(cel.analyze(text, "Pod"), cel.CelAnalysis)
    jq.evaluate(text, POD)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('self.status.phase == "Running"', "Pod"),
        ("has(self.metadata.deletionTimestamp)", "Pod"),
        ('"a" in self.metadata.annotations && self.metadata.annotations["a"] == "b"', "Node"),
        ('self.spec.containers.exists(c, c.image.startsWith("nginx") && size(c.args) > 0)', "Pod"),
        ('Now() - self.metadata.creationTimestamp > duration("1m")', "Pod"),
        ("SinceSecond(self) > 10.0 ? 1 : 2", "Node"),
        ('self.status.conditions.exists(c, c.type == "Bound")', "Widget"),
        ("[1, 2,].filter(x, x > 1).size() == 1 // a comment", "Pod"),
        ("r\"\\d\" == '''a''' || b\"\\xff\" == b\"a\" || 0x1F == 31 || 1u == 2u", "Pod"),
        ('{"a": [1.5e3]}.a[0] == 1.5 || !(true && false)', "Pod"),
        ('google.protobuf.Duration{seconds: 1} < duration("2s")', "Pod"),
    ],
)
def test_cel_that_kwok_compiles_is_fine(text: str, kind: str) -> None:
    """An expression that cel-go accepts in kwok has no error."""
    assert cel.analyze(text, kind).problem == ""


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "the expression is empty"),
        ("self.metadata.name ==", "unexpected end"),
        ("self.metadata.name == 'a", "invalid token"),
        ("(self", "unexpected end"),
        ("self)", "unexpected ')'"),
        ("pod.metadata.name", "unknown variable 'pod'"),
        ("now()", "did you mean 'Now'?"),
        ("Now(1)", "Now() takes no arguments"),
        ("size()", "size() takes an argument"),
        ('"a".lowerAscii()', "unknown method 'lowerAscii'"),
        ("self.metadata.nam", "did you mean 'name'?"),
        ("self.kind", "Pod has no field 'kind'"),
        ('self.status.conditions.exists(c, c.type == "Ready")', "did not register"),
        ('self.metadata.ownerReferences[0].kind == "Job"', "did not register"),
        ("self.status.phase == 1", "'==' cannot be applied to string and int"),
        ('self.metadata.finalizers.contains("x")', "contains() requires a string, got a list"),
        ("self.metadata.labels == null", "null"),
        ("self.spec.containers && true", "must be bool, got a list"),
        ("self.metadata.name.all(c, true)", "all() requires a list or map"),
        ('self["metadata"]', "cannot be indexed with []"),
        ("self.spec.containers['a']", "the index must be int"),
        ("1 + 1.0", "'+' cannot be applied to int and double"),
        ('"a" in self.metadata.name', "'in' requires a list or map"),
        ("-self.metadata.name", "'-' cannot be applied to string"),
        ("has(self)", "has() takes one field"),
        ("[1].all(x)", "unexpected ')'"),
        ("[1].all(x, x > 0, x > 0)", "all() takes 2 arguments"),
        ("self.in", "unexpected 'in'"),
        ("package", "reserved word"),
        ("99999999999999999999999", "out of range"),
        ("(" * 100 + "1" + ")" * 100, "nested more than"),
        ("1" + " " * 100_000, "longer than"),
        ("self.metadata.name.SinceSecond()", "Pod or a Node"),
        ("SinceSecond(1)", "Pod or a Node"),
        ('"a".b', "has no field"),
    ],
)
def test_cel_that_kwok_cannot_compile_names_the_cause(text: str, part: str) -> None:
    """Syntax, names and types are checked as cel-go does with the types that kwok registers."""
    assert part in cel.analyze(text, "Pod").problem


@pytest.mark.parametrize(
    ("text", "yields"),
    [
        ("self.metadata.name", "string"),
        ("self.metadata.creationTimestamp", "timestamp"),
        ("Now() - self.metadata.creationTimestamp", "duration"),
        ("self.spec.containers[0].args", "[string]"),
        ('self.metadata.annotations["a"]', "string"),
        ("Rand() * 10.0", "double"),
        ("dyn(self)", "dyn"),
    ],
)
def test_cel_tells_what_it_yields(text: str, yields: str) -> None:
    """The type of the result is known where cel-go knows it."""
    assert cel.analyze(text, "Pod").result_type == yields


def test_cel_tells_what_may_be_missing() -> None:
    """A key that is read without being asked for fails at run time."""
    assert cel.analyze('self.metadata.labels["a"] == "b"', "Pod").unchecked_key == '"a"'
    assert cel.analyze('"a" in self.metadata.labels && self.metadata.labels["a"] == "b"', "Pod").unchecked_key == ""
    assert cel.analyze('self.status.phase == "x"', "Widget").unchecked_key == "status"


def test_cel_tells_of_a_time_compared_with_null() -> None:
    """To kwok a time that is not set is a zero time, never null."""
    assert cel.analyze("self.metadata.deletionTimestamp == null", "Pod").null_time
    assert not cel.analyze("self.spec.priority == null", "Pod").null_time
