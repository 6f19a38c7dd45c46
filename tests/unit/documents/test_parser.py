"""YAML text into plain values that remember their line."""

import pytest

from kwokfleet.documents import parser
from kwokfleet.documents.problems import Finding


def value(text: str) -> object:
    """Return the one document in *text*, in which nothing is wrong."""
    found, problems = parser.parse("x.yaml", text)
    assert not problems
    return found[0].value


def wrong(text: str) -> tuple[int, int, str]:
    """Return line, column and rule of the one thing wrong in *text*."""
    _, problems = parser.parse("x.yaml", text)
    assert len(problems) == 1, problems
    return problems[0].line, problems[0].column, problems[0].rule


def test_scalars_mean_what_both_yaml_versions_say() -> None:
    """Numbers, truth values, null and texts, quoted or not."""
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
    "trap", ["no", "Yes", "on", "OFF", "010", "0o10", "0b11", "1_000", "12:30", "1:30:00", ".inf", ".NaN"]
)
def test_what_yaml_versions_read_differently_is_a_problem(trap: str) -> None:
    """A value that is a number to one reader and a text to another is refused, unless it is quoted."""
    assert wrong(f"a: 1\nb: {trap}\n") == (2, 4, "yaml-trap")
    assert value(f"b: '{trap}'\n") == {"b": trap}


@pytest.mark.parametrize("fine", ["y", "n", "nothing", "yesterday", "0.10", "10.0.0.1", "1.2.3", "a:b", "-", "--x"])
def test_what_only_looks_like_a_trap_is_a_text_or_number(fine: str) -> None:
    """Nobody is bothered for words that begin like one."""
    assert parser.parse("x", f"a: {fine}" if fine != "-" else "a: '-'")[1] == []


def test_a_key_given_twice_names_both_lines() -> None:
    """The second one is the problem, and says where the first one is."""
    _, problems = parser.parse("x.yaml", "a: 1\nb: 2\na: 3\n")
    assert (problems[0].line, problems[0].field) == (3, "a")
    assert "line 1" in problems[0].what


def test_anchors_aliases_and_merges_work() -> None:
    """An alias is its anchor's value; a merged mapping gives way to what is written."""
    read = value("base: &b {x: 1, y: 2}\nsame: *b\nmore: {<<: *b, y: 3}\nlist: {<<: [{y: 9}, *b]}\n")
    assert read == {
        "base": {"x": 1, "y": 2},
        "same": {"x": 1, "y": 2},
        "more": {"x": 1, "y": 3},
        "list": {"x": 1, "y": 9},
    }


def test_an_alias_bomb_is_refused_before_it_goes_off() -> None:
    """Ten aliases of ten aliases, nine deep, are a Problem and cost nothing."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 10)]
    assert wrong("\n".join(lines))[2] == "yaml-shape"


def test_an_alias_of_itself_is_refused() -> None:
    """A list that contains itself has no end."""
    assert wrong("a: &a [1, *a]\n")[2] == "yaml-shape"


@pytest.mark.parametrize("text", ["[" * 100_000, "{" * 100_000, "- " * 100_000, "? " * 100_000, "{a: [" * 50_000])
def test_bottomless_nesting_is_refused(text: str) -> None:
    """Text that would overflow the C parser's stack never reaches it."""
    assert wrong(text)[2] == "yaml-too-deep"


def test_deep_indentation_is_refused() -> None:
    """The same by indentation."""
    text = "\n".join("  " * level + f"k{level}:" for level in range(1000))
    assert wrong(text)[2] == "yaml-too-deep"


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
def test_what_is_not_yaml_is_a_problem_with_its_line(text: str, line: int) -> None:
    """Tabs, open quotes and brackets, control characters, unknown aliases."""
    assert wrong(text)[0] == line


def test_tags_and_odd_keys_are_refused() -> None:
    """A tag would make something else of a value; a key must be a string."""
    assert wrong("a: !python/object:os.system x\n")[2] == "yaml-tag"
    assert wrong("8: x\n")[2] == "yaml-key"
    assert wrong("[a, b]: x\n")[2] == "yaml-key"
    assert value("a: !!str 5\n") == {"a": "5"}


def test_windows_files_are_read() -> None:
    """A byte order mark and CRLF change nothing, lines included."""
    assert value("\ufeffa: 1\r\nb: |\r\n  x\r\n") == {"a": 1, "b": "x\n"}
    assert wrong("\ufeffa: 1\r\nb: no\r\n")[:2] == (2, 4)


def test_a_file_may_hold_many_documents() -> None:
    """Documents are counted; empty ones are none; an error leaves those before it."""
    found, problems = parser.parse("x", "---\n# nothing\n---\na: 1\n---\nb: 2\n---\nc: [\n")
    assert [(each.value, each.index) for each in found] == [({"a": 1}, 1), ({"b": 2}, 2)]
    assert len(problems) == 1


def test_every_place_has_a_line_and_column() -> None:
    """A value, its key, what a merge brought in, and what is missing."""
    document = parser.parse("x", "a: &b {q: 1}\nm:\n  <<: *b\n  k: [x, y]\n")[0][0]
    assert document.position(("m", "k", 1)) == (4, 10)
    assert document.position(("m", "k"), at_key=True) == (4, 3)
    assert document.position(("m", "q")) == (1, 11)
    assert document.position(("m", "missing")) == (2, 1)


def test_a_problem_reads_as_one_line() -> None:
    """path:line:column: field: what, what to do."""
    document = parser.parse("fleets/a.yaml", "spec:\n  nodePools:\n    - replicas: -3\n")[0][0]
    problem = document.problem(Finding(("spec", "nodePools", 0, "replicas"), "must be 0 or more, got -3", "write 0"))
    assert str(problem) == "fleets/a.yaml:3:17: spec.nodePools[0].replicas: must be 0 or more, got -3; write 0"
