"""Any file gives values and Problems: never an exception, never a hang.

The examples in fleets/ are changed at random. `derandomize` makes the choice the same in every run.
"""

import copy
import hashlib
import itertools
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kwokfleet.documents import formatter, parser, problems, writer
from kwokfleet.render import desired as render
from kwokfleet.render import schedule, workloads
from kwokfleet.source import files, loader

ROOT = Path(__file__).parents[3]
NOW = datetime(2026, 3, 1, 8, tzinfo=UTC)
TIMEOUT_S = 20.0
"""Limit for one example; all of them are much faster."""
MAX_NODES = 2_000
MAX_OBJECTS = 20

EXAMPLES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "fleets").glob("*.yaml"))}
STAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "stages").glob("*.yaml"))}
REFERENCED_FILES = (
    "templates/production-nodes.yaml",
    "templates/autoscaler-templates.yaml",
    "traces/night.csv",
    "own.yaml",
)
"""Files with a reference from a Fleet of the copied tree."""


def repeatable(max_count: int) -> Callable[[Any], Any]:
    """Return settings for a number of examples, equal in every run."""
    checks = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
    return settings(
        max_examples=max_count, derandomize=True, deadline=None, database=None, suppress_health_check=checks
    )


# ----------------------------------------------------------------------------------------
# texts

EDGE_CASE_TEXTS = (
    "", "~", "null", "no", "010", "1:30", "1_000", ".inf", "-1", "0", "1e308", "1e-300", "10000000", "9" * 50, "10",
    "5 seconds", "11s..10s", "3650d", "0s", "0.0000001/d", "999999999999/s", "120%", "256GB", "-5Gi", "'²'", "[]", "{}",
    "[[[]]]", "[null]", "{a: [1]}", "{null: 1}", "é☃😀", "x" * 300, "{{", "'{{'", '"{{index}}"', '"{{x}}"',
    "'%s %(a)s'", '"a\\u0000b"', "0001-01-01T00:00:00+10:00", "9999-12-31T23:59:59-10:00", "'0 0 29 2 mon'", "Europe/",
    "..", "/etc/passwd", "::/0", "0.0.0.0/0", "10.0.0.1/8", "{index}", "{index:09}", "!tag x", "*alias", "&anchor x",
    "<<", "args", "Pod", "Stage", "{rate: 1/d}", "{uniform: {min: -1e308, max: 1e308}}", "{choice: [1, [2]]}",
)  # fmt: skip
EDGE_CASE_CHARACTERS = "{}[]:,-#&*!|>'\"%@`?~ \t0a.\\\x00\x85\ufeffé😀\r"
VALUE = re.compile(r"(?<=: )[^{}\[\],]+|(?<=\[)[^\[\],]+")

Edit = tuple[str, int, int]
edits = st.lists(
    st.tuples(
        st.sampled_from(("delete", "repeat", "swap", "sign", "indent", "dedent", "value", "value", "value")),
        st.integers(0, 500),
        st.integers(0, 500),
    ),
    min_size=1,
    max_size=4,
)


def damaged(text: str, changes: list[Edit]) -> str:
    """Return *text* with some of its lines changed."""
    lines = text.split("\n")
    for kind, first, second in changes:
        at, other = first % len(lines), second % len(lines)
        line = lines[at]
        if kind == "delete":
            lines[at : at + 1] = [] if len(lines) > 1 else [""]
        elif kind == "repeat":
            lines.insert(at, lines[other])
        elif kind == "swap":
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == "sign":
            place = second % (len(line) + 1)
            lines[at] = (
                line[:place] + EDGE_CASE_CHARACTERS[second % len(EDGE_CASE_CHARACTERS)] + line[place + second % 2 :]
            )
        elif kind == "indent":
            lines[at] = ("  ", " ", "\t")[second % 3] + line
        elif kind == "dedent":
            lines[at] = line[1 + second % 4 :]
        else:
            new = EDGE_CASE_TEXTS[second % len(EDGE_CASE_TEXTS)].replace("\\", r"\\")
            lines[at] = VALUE.sub(new, line, count=1)
    return "\n".join(lines)


# ----------------------------------------------------------------------------------------
# values

KEYS = (
    "name", "metadata", "labels", "annotations", "spec", "template", "containers", "tolerations", "affinity", "status",
    "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms", "capacity", "pods", "kind",
    "count", "start", "every", "arrivals", "rate", "vary", "after", "stages", "file", "namespace", "podCIDR", "taints",
)  # fmt: skip
EDGE_CASE_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 10**39, 1e308, 1e-300, "", "A", "{{", "{{index}}", "{{x}}", "{{name}}", "\\{{index}}", "\0",
    "x" * 300, "10s", "1/s", "256Gi", "10.0.0.0/8", "args", "{index}", "²", "../x", "0 0 * * *", "\n", "%(x)s", "Node",
    "😀", 2**32, [], {}, [[]], [{}], [None], {"": ""}, {"containers": []}, {"spec": {"containers": [{"name": "x"}]}},
)  # fmt: skip

texts = st.text(st.characters(codec="utf-8"), max_size=20)
scalars = st.none() | st.booleans() | st.integers(-(10**38), 10**38) | st.floats(allow_nan=False, allow_infinity=False)
json_like = st.recursive(
    scalars | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
manifests = st.dictionaries(texts, json_like, min_size=1, max_size=5)
replacements = st.sampled_from(EDGE_CASE_VALUES) | st.recursive(
    st.sampled_from(EDGE_CASE_VALUES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)
swaps = st.lists(
    st.tuples(st.sampled_from(("replace", "replace", "delete", "rename", "add")), st.integers(0, 10_000), replacements),
    min_size=1,
    max_size=3,
)


def parts(value: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401  # any part of a file
    """Yield every place inside a value, as container and key."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield value, key
        yield from parts(item)


def swapped(value: Any, changes: list[tuple[str, int, Any]]) -> Any:  # noqa: ANN401  # any part of a file
    """Return a copy of a value with changes in some places."""
    changed = copy.deepcopy(value)
    for kind, where, new in changes:
        places = list(parts(changed))
        if not places:
            break
        container, key = places[where % len(places)]
        if kind == "delete":
            del container[key]
        elif kind == "rename" and isinstance(container, dict):
            container[KEYS[where % len(KEYS)]] = container.pop(key)
        elif kind == "add" and isinstance(container, dict):
            container[KEYS[where % len(KEYS)]] = copy.deepcopy(new)
        else:
            container[key] = copy.deepcopy(new)
    return changed


def parsed(text: str) -> list[Any]:
    """Return the values of an example's documents."""
    return [document.value for document in parser.parse("example", text)[0]]


def dumped(values: list[Any]) -> str:
    """Return values as the documents of a file."""
    return "".join(f"---\n{writer.to_yaml(value)}" for value in values)


# ----------------------------------------------------------------------------------------
# checks


@contextmanager
def time_limit() -> Iterator[None]:
    """Fail if the block takes longer than TIMEOUT_S."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < TIMEOUT_S


def lines_in(text: str) -> int:
    """Return the number of lines, as YAML counts them."""
    return len(re.split(r"\r\n|\r|\n", text))


def load(name: str, text: str) -> loader.Loaded:
    """Load a text as a file of the examples."""
    path = str(ROOT / "fleets" / name)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    snapshot = files.FileSnapshot((files.File(path, text, digest),), (), digest)
    loaded = loader.Loader().load_snapshot(snapshot, ROOT)
    for problem in loaded.problems:
        assert problem.what
        assert "\n" not in str(problem)
        assert problem.path != path or 1 <= problem.line <= lines_in(text)
    return loaded


def render_all(loaded: loader.Loaded) -> None:
    """Render the first objects of usable files."""
    if not loaded.usable:
        return
    tree = loaded.tree
    if sum(schedule.max_replicas(pool) for fleet in tree.fleets for pool in fleet.spec.node_pools) <= MAX_NODES:
        desired = render.Renderer().desired(tree, NOW)
        for manifest in itertools.islice(render.objects_to_create(tree, desired, NOW), MAX_OBJECTS):
            json.dumps(manifest, allow_nan=False)
    for fleet in tree.fleets:
        for wave in fleet.spec.waves:
            run = next(
                schedule.runs_between(wave.start, NOW, NOW - timedelta(seconds=1), NOW + timedelta(days=366)), None
            )
            if run is not None:
                context = workloads.RunContext(fleet, wave, run.name, tree.traces.get((fleet.name, wave.name)))
                created = first_objects(context, run.start)
                assert len(
                    {(manifest["metadata"].get("namespace"), manifest["metadata"]["name"]) for manifest in created}
                ) == len(created)


def first_objects(context: workloads.RunContext, start: datetime) -> list[Any]:
    """Return the first objects of a Run; they are parsed back from YAML."""
    make = workloads.object_factory(context)
    created = [make(due.index) for due in itertools.islice(workloads.due_objects(context, start), MAX_OBJECTS)]
    for manifest in created[:2]:
        assert parsed(writer.to_yaml(manifest)) == [json.loads(json.dumps(manifest, allow_nan=False))]
    return created


# ----------------------------------------------------------------------------------------
# any text, any bytes


@repeatable(500)
@given(st.text(max_size=80) | st.text("ab: -[]{}#&*!|>'\"%@?~,\n\t\r0.\\=<", max_size=80))
@example("? yes*a")
@example("\nspec:\n9-:b")
@example('a: "\\U00110000"')
@example("\ud800")
@example("a: &a [*a]")
@example("s[pec: 1\napiVersion: kwokfleet.dev/v1alpha1\nkind: Fleet\n")
def test_any_text_gives_documents_and_problems(text: str) -> None:
    """Every reported position is inside the text."""
    documents, found_problems = parser.parse("any.yaml", text)
    assert all(1 <= problem.line <= lines_in(text) for problem in found_problems)
    for document in documents:
        line, column = document.position(("spec", "nodePools", 0))
        assert 1 <= line <= lines_in(text)
        assert column >= 1


@repeatable(300)
@given(st.text(max_size=60))
def test_any_text_loads(text: str) -> None:
    """With and without the first lines of a Fleet."""
    load("any.yaml", text)
    load("any.yaml", f"apiVersion: kwokfleet.dev/v1alpha1\nkind: Fleet\nmetadata: {{name: any}}\nspec: {text}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for files of any content."""
    return tmp_path_factory.mktemp("any")


@repeatable(100)
@given(content=st.binary(max_size=60))
@example(content="a: 1\n".encode("utf-16"))
@example(content=b"\xef\xbb\xbf")
def test_any_bytes_give_a_snapshot(folder: Path, content: bytes) -> None:
    """A binary file is a Problem."""
    (folder / "any.yaml").write_bytes(content)
    loaded = loader.Loader().load(folder)
    assert loaded.snapshot.files or problems.errors(loaded.problems)


# ----------------------------------------------------------------------------------------
# damaged examples


@repeatable(200)
@given(st.sampled_from(sorted(EXAMPLES)), edits)
def test_a_damaged_example_is_rejected_or_rendered(name: str, changes: list[Edit]) -> None:
    """Lines are deleted, repeated, swapped or indented; values are replaced."""
    with time_limit():
        render_all(load(name, damaged(EXAMPLES[name], changes)))


@repeatable(200)
@given(st.sampled_from(sorted(EXAMPLES)), swaps)
def test_an_example_with_changed_values_is_rejected_or_rendered(name: str, changes: list[tuple[str, int, Any]]) -> None:
    """Values are replaced, renamed, deleted or added at any place."""
    with time_limit():
        render_all(load(name, dumped([swapped(value, changes) for value in parsed(EXAMPLES[name])])))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the examples with references to files; one Fleet has its own Stages."""
    root = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "fleets", root / "fleets")
    text = EXAMPLES["quickstart.yaml"].replace("      lifecycle: short-job\n", "")
    own = text.replace("spec:\n", "spec:\n  stages: [{file: own.yaml}]\n", 1)
    (root / "fleets" / "quickstart.yaml").write_text(own, encoding="utf-8")
    shutil.copytree(ROOT / "stages", root / "stages")
    (root / ".git").mkdir()
    return root / "fleets"


@repeatable(100)
@given(name=st.sampled_from(REFERENCED_FILES), stages=st.sampled_from(sorted(STAGES)), changes=edits, others=swaps)
def test_a_damaged_referenced_file_is_rejected_or_rendered(
    tree: Path, name: str, stages: str, changes: list[Edit], others: list[tuple[str, int, Any]]
) -> None:
    """Node templates, recorded arrivals and Stages."""
    fleet = {"own.yaml": "quickstart", "traces/night.csv": "week"}.get(name)
    fleet = fleet or ("autoscaler" if "autoscaler" in name else "production-like")
    good = STAGES[stages] if name == "own.yaml" else (ROOT / "fleets" / name).read_text(encoding="utf-8")
    by_line = name.endswith(".csv") or len(changes) % 2
    bad = damaged(good, changes) if by_line else dumped([swapped(value, others) for value in parsed(good)])
    (tree / name).write_bytes(bad.encode())
    try:
        with time_limit():
            render_all(loader.Loader().load(tree / f"{fleet}.yaml"))
    finally:
        (tree / name).write_text(good, encoding="utf-8")


@repeatable(60)
@given(st.sampled_from(sorted(EXAMPLES)), edits)
def test_formatting_keeps_the_values(name: str, changes: list[Edit]) -> None:
    """Formatting again changes nothing; an unformatted file has a reason."""
    text = damaged(EXAMPLES[name], changes)
    with time_limit():
        formatted = formatter.format_text(name, text)
    if isinstance(formatted, str):
        assert parsed(formatted) == parsed(text)
        assert formatter.format_text(name, formatted) == formatted
    else:
        assert formatted.what


# ----------------------------------------------------------------------------------------
# the writer


@repeatable(400)
@given(manifests)
@example({"a": "😀 \U0010ffff", "\x85": "\u2028"})
@example({"<<": {"<<": 1}, "": "", "y": "n", "null": "~"})
@example({"a": [[], {}, [[1]], [{}], "a\nb\n", " a\n", "1e3", "10m", "0x1", 1e22, -0.0]})
def test_written_yaml_is_parsed_back(manifest: dict[str, Any]) -> None:
    """Every text, number and structure, without a Problem."""
    documents, found_problems = parser.parse("made.yaml", writer.to_yaml(manifest))
    assert found_problems == []
    assert [document.value for document in documents] == [manifest]
