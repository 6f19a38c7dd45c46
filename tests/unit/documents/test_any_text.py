"""Whatever a file holds, the answer is values and Problems: never an exception, never a wait without end.

The examples in fleets/ are damaged in every way an editor, a merge or a tired person could damage them, and in many
that nobody would. The choice is the same each time (`derandomize`), so a failure here is news.
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
PATIENCE_S = 20.0
"""How long one example may take: far more than any does, far less than one that hangs."""
FEW_NODES = 2_000
FEW_OBJECTS = 20

EXAMPLES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "fleets").glob("*.yaml"))}
STAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "stages").glob("*.yaml"))}
REFERRED = ("templates/production-nodes.yaml", "templates/autoscaler-templates.yaml", "traces/night.csv", "own.yaml")
"""Files that the Fleets of the copied tree refer to."""


def repeatable(most: int) -> Callable[[Any], Any]:
    """Return the settings of a test that tries so many examples, the same ones each time."""
    checks = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
    return settings(max_examples=most, derandomize=True, deadline=None, database=None, suppress_health_check=checks)


# ----------------------------------------------------------------------------------------
# texts

NASTY_TEXTS = (
    "", "~", "null", "no", "010", "1:30", "1_000", ".inf", "-1", "0", "1e308", "1e-300", "10000000", "9" * 50, "10",
    "5 seconds", "11s..10s", "3650d", "0s", "0.0000001/d", "999999999999/s", "120%", "256GB", "-5Gi", "'²'", "[]", "{}",
    "[[[]]]", "[null]", "{a: [1]}", "{null: 1}", "é☃😀", "x" * 300, "{{", "'{{'", '"{{index}}"', '"{{x}}"',
    "'%s %(a)s'", '"a\\u0000b"', "0001-01-01T00:00:00+10:00", "9999-12-31T23:59:59-10:00", "'0 0 29 2 mon'", "Europe/",
    "..", "/etc/passwd", "::/0", "0.0.0.0/0", "10.0.0.1/8", "{index}", "{index:09}", "!tag x", "*alias", "&anchor x",
    "<<", "args", "Pod", "Stage", "{rate: 1/d}", "{uniform: {min: -1e308, max: 1e308}}", "{choice: [1, [2]]}",
)  # fmt: skip
NASTY_SIGNS = "{}[]:,-#&*!|>'\"%@`?~ \t0a.\\\x00\x85\ufeffé😀\r"
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
            lines[at] = line[:place] + NASTY_SIGNS[second % len(NASTY_SIGNS)] + line[place + second % 2 :]
        elif kind == "indent":
            lines[at] = ("  ", " ", "\t")[second % 3] + line
        elif kind == "dedent":
            lines[at] = line[1 + second % 4 :]
        else:
            new = NASTY_TEXTS[second % len(NASTY_TEXTS)].replace("\\", r"\\")
            lines[at] = VALUE.sub(new, line, count=1)
    return "\n".join(lines)


# ----------------------------------------------------------------------------------------
# values

KEYS = (
    "name", "metadata", "labels", "annotations", "spec", "template", "containers", "tolerations", "affinity", "status",
    "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms", "capacity", "pods", "kind",
    "count", "start", "every", "arrivals", "rate", "vary", "after", "stages", "file", "namespace", "podCIDR", "taints",
)  # fmt: skip
NASTY_VALUES: tuple[Any, ...] = (
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
replacements = st.sampled_from(NASTY_VALUES) | st.recursive(
    st.sampled_from(NASTY_VALUES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)
swaps = st.lists(
    st.tuples(st.sampled_from(("replace", "replace", "delete", "rename", "add")), st.integers(0, 10_000), replacements),
    min_size=1,
    max_size=3,
)


def parts(value: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401  # any part of a file
    """Yield everything inside a value, as what holds it and where in there."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for place, item in items:
        yield value, place
        yield from parts(item)


def swapped(value: Any, changes: list[tuple[str, int, Any]]) -> Any:  # noqa: ANN401  # any part of a file
    """Return a value with other things in some of its places."""
    made = copy.deepcopy(value)
    for kind, where, new in changes:
        inside = list(parts(made))
        if not inside:
            break
        holder, place = inside[where % len(inside)]
        if kind == "delete":
            del holder[place]
        elif kind == "rename" and isinstance(holder, dict):
            holder[KEYS[where % len(KEYS)]] = holder.pop(place)
        elif kind == "add" and isinstance(holder, dict):
            holder[KEYS[where % len(KEYS)]] = copy.deepcopy(new)
        else:
            holder[place] = copy.deepcopy(new)
    return made


def parsed(text: str) -> list[Any]:
    """Return the values of an example's documents."""
    return [document.value for document in parser.parse("example", text)[0]]


def dumped(values: list[Any]) -> str:
    """Return values as the documents of a file."""
    return "".join(f"---\n{writer.to_yaml(value)}" for value in values)


# ----------------------------------------------------------------------------------------
# what must hold


@contextmanager
def soon() -> Iterator[None]:
    """Fail if what is done inside takes as long as something that hangs."""
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < PATIENCE_S


def lines_in(text: str) -> int:
    """Return how many lines a text has, as YAML counts them."""
    return len(re.split(r"\r\n|\r|\n", text))


def load(name: str, text: str) -> loader.Loaded:
    """Load one text as if it were a file among the examples."""
    path = str(ROOT / "fleets" / name)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    snapshot = files.FileSnapshot((files.File(path, text, digest),), (), digest)
    loaded = loader.Loader().load_snapshot(snapshot, ROOT)
    for problem in loaded.problems:
        assert problem.what
        assert "\n" not in str(problem)
        assert problem.path != path or 1 <= problem.line <= lines_in(text)
    return loaded


def use(loaded: loader.Loaded) -> None:
    """Make everything that usable files stand for, or the first few of it."""
    if not loaded.usable:
        return
    tree = loaded.tree
    if sum(schedule.max_replicas(pool) for fleet in tree.fleets for pool in fleet.spec.node_pools) <= FEW_NODES:
        desired = render.Renderer().desired(tree, NOW)
        for manifest in itertools.islice(render.objects_to_create(tree, desired, NOW), FEW_OBJECTS):
            json.dumps(manifest, allow_nan=False)
    for fleet in tree.fleets:
        for wave in fleet.spec.waves:
            run = next(
                schedule.runs_between(wave.start, NOW, NOW - timedelta(seconds=1), NOW + timedelta(days=366)), None
            )
            if run is not None:
                context = workloads.RunContext(fleet, wave, run.name, tree.traces.get((fleet.name, wave.name)))
                made = objects_of(context, run.start)
                assert len({(each["metadata"].get("namespace"), each["metadata"]["name"]) for each in made}) == len(
                    made
                )


def objects_of(context: workloads.RunContext, start: datetime) -> list[Any]:
    """Return the first objects of a Run; each can be printed and read again."""
    make = workloads.object_factory(context)
    made = [make(each.index) for each in itertools.islice(workloads.due_objects(context, start), FEW_OBJECTS)]
    for manifest in made[:2]:
        assert parsed(writer.to_yaml(manifest)) == [json.loads(json.dumps(manifest, allow_nan=False))]
    return made


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
def test_any_text_is_documents_and_problems(text: str) -> None:
    """Every place that is reported lies in the text."""
    found, wrong = parser.parse("any.yaml", text)
    assert all(1 <= problem.line <= lines_in(text) for problem in wrong)
    for document in found:
        line, column = document.position(("spec", "nodePools", 0))
        assert 1 <= line <= lines_in(text)
        assert column >= 1


@repeatable(300)
@given(st.text(max_size=60))
def test_any_text_loads(text: str) -> None:
    """With the head of a Fleet before it, or without."""
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
def test_any_bytes_are_a_snapshot(folder: Path, content: bytes) -> None:
    """A file that is no text is a Problem, too."""
    (folder / "any.yaml").write_bytes(content)
    loaded = loader.Loader().load(folder)
    assert loaded.snapshot.files or problems.errors(loaded.problems)


# ----------------------------------------------------------------------------------------
# damaged examples


@repeatable(200)
@given(st.sampled_from(sorted(EXAMPLES)), edits)
def test_a_damaged_example_is_refused_or_rendered(name: str, changes: list[Edit]) -> None:
    """Lines lost, repeated, moved, shifted; values of every kind."""
    with soon():
        use(load(name, damaged(EXAMPLES[name], changes)))


@repeatable(200)
@given(st.sampled_from(sorted(EXAMPLES)), swaps)
def test_an_example_with_anything_anywhere_is_refused_or_rendered(
    name: str, changes: list[tuple[str, int, Any]]
) -> None:
    """A part of the tree of values is replaced, renamed, removed or added."""
    with soon():
        use(load(name, dumped([swapped(value, changes) for value in parsed(EXAMPLES[name])])))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the examples whose Fleets refer to files, one of them to Stages of its own."""
    root = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "fleets", root / "fleets")
    text = EXAMPLES["quickstart.yaml"].replace("      lifecycle: short-job\n", "")
    own = text.replace("spec:\n", "spec:\n  stages: [{file: own.yaml}]\n", 1)
    (root / "fleets" / "quickstart.yaml").write_text(own, encoding="utf-8")
    shutil.copytree(ROOT / "stages", root / "stages")
    (root / ".git").mkdir()
    return root / "fleets"


@repeatable(100)
@given(name=st.sampled_from(REFERRED), stages=st.sampled_from(sorted(STAGES)), changes=edits, others=swaps)
def test_a_damaged_file_that_others_refer_to(
    tree: Path, name: str, stages: str, changes: list[Edit], others: list[tuple[str, int, Any]]
) -> None:
    """Templates of nodes, recorded arrivals and Stages are written by others still."""
    fleet = {"own.yaml": "quickstart", "traces/night.csv": "week"}.get(name)
    fleet = fleet or ("autoscaler" if "autoscaler" in name else "production-like")
    good = STAGES[stages] if name == "own.yaml" else (ROOT / "fleets" / name).read_text(encoding="utf-8")
    by_line = name.endswith(".csv") or len(changes) % 2
    bad = damaged(good, changes) if by_line else dumped([swapped(value, others) for value in parsed(good)])
    (tree / name).write_bytes(bad.encode())
    try:
        with soon():
            use(loader.Loader().load(tree / f"{fleet}.yaml"))
    finally:
        (tree / name).write_text(good, encoding="utf-8")


@repeatable(60)
@given(st.sampled_from(sorted(EXAMPLES)), edits)
def test_formatting_changes_looks_only(name: str, changes: list[Edit]) -> None:
    """What comes out has the same values and would not be changed again; or it is left alone, with a reason."""
    text = damaged(EXAMPLES[name], changes)
    with soon():
        made = formatter.format_text(name, text)
    if isinstance(made, str):
        assert parsed(made) == parsed(text)
        assert formatter.format_text(name, made) == made
    else:
        assert made.what


# ----------------------------------------------------------------------------------------
# what we write


@repeatable(400)
@given(manifests)
@example({"a": "😀 \U0010ffff", "\x85": "\u2028"})
@example({"<<": {"<<": 1}, "": "", "y": "n", "null": "~"})
@example({"a": [[], {}, [[1]], [{}], "a\nb\n", " a\n", "1e3", "10m", "0x1", 1e22, -0.0]})
def test_what_is_written_is_read_back(manifest: dict[str, Any]) -> None:
    """Every text, number and structure, without a Problem."""
    found, wrong = parser.parse("made.yaml", writer.to_yaml(manifest))
    assert wrong == []
    assert [document.value for document in found] == [manifest]
