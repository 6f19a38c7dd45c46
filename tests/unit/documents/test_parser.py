"""Parsing of YAML to values with positions."""

import pytest

from kwokfleet.documents import parser
from kwokfleet.documents.problems import Finding


def value(text: str) -> object:
    """Return the only document in *text*; it has no Problem."""
    documents, problems = parser.parse("x.yaml", text)
    assert not problems
    return documents[0].value


def only_problem(text: str) -> tuple[int, int, str]:
    """Return line, column and rule of the only Problem in *text*."""
    _, problems = parser.parse("x.yaml", text)
    assert len(problems) == 1, problems
    return problems[0].line, problems[0].column, problems[0].rule


def test_scalars_are_parsed_as_in_both_yaml_versions() -> None:
    """Numbers, booleans, null and strings, quoted or not."""
    read = value("[1, -2, 0x1f, 1.5, 1e3, true, False, null, ~, a, '1', \"true\", 256Gi, 10s..11s, 2026-01-01, 0.5s]")
    assert read == [
        1,
        -2,
        31,
        1.5,
        1000.0,
        True,
        False,
        None,
        None,
        "a",
        "1",
        "true",
        "256Gi",
        "10s..11s",
        "2026-01-01",
        "0.5s",
    ]


@pytest.mark.parametrize(
    "text", ["no", "Yes", "on", "OFF", "010", "0o10", "0b11", "1_000", "12:30", "1:30:00", ".inf", ".NaN"]
)
def test_a_scalar_that_yaml_versions_parse_differently_is_a_problem(text: str) -> None:
    """It is accepted in quotes."""
    assert only_problem(f"a: 1\nb: {text}\n") == (2, 4, "yaml-trap")
    assert value(f"b: '{text}'\n") == {"b": text}


@pytest.mark.parametrize("text", ["y", "n", "nothing", "yesterday", "0.10", "10.0.0.1", "1.2.3", "a:b", "-", "--x"])
def test_similar_scalars_are_no_problem(text: str) -> None:
    """They have the same value in both YAML versions."""
    assert parser.parse("x", f"a: {text}" if text != "-" else "a: '-'")[1] == []


def test_a_duplicate_key_names_both_lines() -> None:
    """The Problem is at the second key and names the line of the first."""
    _, problems = parser.parse("x.yaml", "a: 1\nb: 2\na: 3\n")
    assert (problems[0].line, problems[0].field) == (3, "a")
    assert "line 1" in problems[0].what


def test_anchors_aliases_and_merges_work() -> None:
    """Explicit keys have precedence over merged ones."""
    read = value("base: &b {x: 1, y: 2}\nsame: *b\nmore: {<<: *b, y: 3}\nlist: {<<: [{y: 9}, *b]}\n")
    assert read == {
        "base": {"x": 1, "y": 2},
        "same": {"x": 1, "y": 2},
        "more": {"x": 1, "y": 3},
        "list": {"x": 1, "y": 9},
    }


def test_exponential_aliases_are_rejected() -> None:
    """Ten aliases of ten aliases, nine levels deep, are not expanded."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 10)]
    assert only_problem("\n".join(lines))[2] == "yaml-shape"


def test_a_recursive_alias_is_rejected() -> None:
    """The list would be infinite."""
    assert only_problem("a: &a [1, *a]\n")[2] == "yaml-shape"


@pytest.mark.parametrize("text", ["[" * 100_000, "{" * 100_000, "- " * 100_000, "? " * 100_000, "{a: [" * 50_000])
def test_deep_nesting_is_rejected(text: str) -> None:
    """It would overflow the C parser's stack, so it is checked before."""
    assert only_problem(text)[2] == "yaml-too-deep"


def test_deep_indentation_is_rejected() -> None:
    """It is nesting too."""
    text = "\n".join("  " * level + f"k{level}:" for level in range(1000))
    assert only_problem(text)[2] == "yaml-too-deep"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a:\n\t- b\n", 2),
        ("x: 1\na: 'x\nb: 2\n", 2),
        ("a: [1,\nb: 2\n", 1),
        ("a: b: c\n", 1),
        ("a: \x07\n", 1),
        ("x: 1\ny: *z\n", 2),
        ("a: b\u2028c", 1),
    ],
)
def test_invalid_yaml_is_a_problem_with_its_line(text: str, line: int) -> None:
    """Tabs, open quotes and brackets, control characters, unknown aliases."""
    assert only_problem(text)[0] == line


def test_tags_and_non_string_keys_are_rejected() -> None:
    """Only the tag `!!str` is accepted."""
    assert only_problem("a: !python/object:os.system x\n")[2] == "yaml-tag"
    assert only_problem("8: x\n")[2] == "yaml-key"
    assert only_problem("[a, b]: x\n")[2] == "yaml-key"
    assert value("a: !!str 5\n") == {"a": "5"}


def test_windows_files_are_parsed() -> None:
    """A byte order mark and CRLF change neither values nor lines."""
    assert value("\ufeffa: 1\r\nb: |\r\n  x\r\n") == {"a": 1, "b": "x\n"}
    assert only_problem("\ufeffa: 1\r\nb: no\r\n")[:2] == (2, 4)


def test_a_file_may_have_several_documents() -> None:
    """Empty documents are skipped; those before an error are returned."""
    documents, problems = parser.parse("x", "---\n# nothing\n---\na: 1\n---\nb: 2\n---\nc: [\n")
    assert [(document.value, document.index) for document in documents] == [({"a": 1}, 1), ({"b": 2}, 2)]
    assert len(problems) == 1


def test_every_value_has_a_position() -> None:
    """Also keys, merged values and missing fields."""
    document = parser.parse("x", "a: &b {q: 1}\nm:\n  <<: *b\n  k: [x, y]\n")[0][0]
    assert document.position(("m", "k", 1)) == (4, 10)
    assert document.position(("m", "k"), at_key=True) == (4, 3)
    assert document.position(("m", "q")) == (1, 11)
    assert document.position(("m", "missing")) == (2, 1)


def test_a_problem_is_formatted_as_one_line() -> None:
    """path:line:column: field: message; hint."""
    document = parser.parse("fleets/a.yaml", "spec:\n  nodePools:\n    - replicas: -3\n")[0][0]
    problem = document.problem(Finding(("spec", "nodePools", 0, "replicas"), "must be 0 or more, got -3", "write 0"))
    assert str(problem) == "fleets/a.yaml:3:17: spec.nodePools[0].replicas: must be 0 or more, got -3; write 0"
