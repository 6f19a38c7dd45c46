"""Commands that need only files, run as a user would: init, validate, render, fmt, schema."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.harness import fork_server
from tests.harness.json_schema import schema_path

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "fleets").glob("*.yaml"))
NOW = "2026-03-02T06:00:00Z"
EVERYTHING = ("render", "fleets", "--waves", "--now", NOW)
TIMEOUT_S = 60

Done = subprocess.CompletedProcess[str]


def command(*arguments: str) -> list[str]:
    """Return how the program is called."""
    return [sys.executable, "-m", "kwokfleet", *arguments]


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Return an environment in which nothing is known of any cluster."""
    return {"HOME": str(folder), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **variables}


def run(folder: Path, *arguments: str, stdin: str = "", **variables: str) -> Done:
    """Run the program in a folder."""
    return fork_server.run(list(arguments), environment(folder, **variables), folder=folder, stdin=stdin)


def fresh(folder: Path, *arguments: str, **variables: str) -> str:
    """Run the program, which must succeed, in a Python of its own; return what it printed."""
    return subprocess.run(
        command(*arguments), cwd=folder, env=environment(folder, **variables), capture_output=True, text=True,
        check=True, timeout=TIMEOUT_S,
    ).stdout  # fmt: skip


def ok(folder: Path, *arguments: str) -> str:
    """Run the program, which must succeed, and return what it printed on standard output."""
    done = run(folder, *arguments)
    assert done.returncode == 0, f"kwokfleet {' '.join(arguments)} gave {done.returncode}: {done.stderr}"
    return done.stdout


def refused(done: Done, *said: str) -> None:
    """Check that the input was refused in words, with nothing on standard output."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr
    for words in said:
        assert words in done.stderr


def example_tree(folder: Path) -> Path:
    """Copy the examples, and the Stages that they refer to, into a folder."""
    for name in ("fleets", "stages"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a folder with the examples."""
    return example_tree(tmp_path)


# render


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what `render` makes of the examples."""
    return ok(example_tree(tmp_path_factory.mktemp("reference")), *EVERYTHING)


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_render_gives_the_same_bytes_whatever_the_hash_seed(tree: Path, reference: str, seed: str) -> None:
    """Nothing depends on the order of a set; nor on the folder around, which is another one here."""
    assert fresh(tree, *EVERYTHING, PYTHONHASHSEED=seed) == reference


def test_render_gives_the_same_bytes_for_touched_files(tree: Path, reference: str) -> None:
    """Contents count, not when or in which order files were written."""
    for number, path in enumerate(sorted((tree / "fleets").rglob("*.*"), reverse=True)):
        text = path.read_bytes()
        path.unlink()
        path.write_bytes(text)
        os.utime(path, (1_000_000 + number, 1_000_000 + number))
    assert ok(tree, *EVERYTHING) == reference


def test_render_takes_fleets_by_default(tree: Path, reference: str) -> None:
    """Without a path it renders fleets/; in a folder without it, that folder."""
    assert ok(tree, "render", "--waves", "--now", NOW) == reference
    assert ok(tree / "fleets", "render", "--waves", "--now", NOW, "--fleet", "quickstart") == ok(
        tree, *EVERYTHING, "--fleet", "quickstart"
    )


def test_render_chooses_by_fleet_and_kind(tree: Path) -> None:
    """In any case of letters."""
    names = ok(tree, "render", "--fleet", "quickstart", "--kind", "node", "-o", "name").splitlines()
    assert names == [f"node/quickstart-general-{number}" for number in range(10)]
    kinds = {line.partition("/")[0] for line in ok(tree, "render", "--kind", "Stage", "-o", "name").splitlines()}
    assert kinds == {"stage"}


def test_render_prints_names_json_and_yaml_of_the_same_objects(tree: Path) -> None:
    """One object in each line, one in each document."""
    chosen = ("render", "fleets/quickstart.yaml", "--waves", "--now", NOW, "-o")
    lines = [json.loads(line) for line in ok(tree, *chosen, "json").splitlines()]
    assert list(YAML(typ="safe").load_all(ok(tree, *chosen, "yaml"))) == lines
    namespaced = [(each["kind"].lower(), each["metadata"].get("namespace"), each["metadata"]["name"]) for each in lines]
    names = ["/".join(filter(None, parts)) for parts in namespaced]
    assert ok(tree, *chosen, "name").splitlines() == names


def test_render_of_a_broken_tree_prints_nothing(tree: Path) -> None:
    """One wrong line in one file: all problems on standard error, and not half of the objects."""
    path = tree / "fleets" / "quickstart.yaml"
    path.write_text(path.read_text().replace("replicas: 10", "replicas: -3"))
    refused(run(tree, "render"), "fleets/quickstart.yaml:10:17: spec.nodePools[0].replicas:", "-3", "next:")


def test_a_reader_that_has_seen_enough_is_no_error(tree: Path) -> None:
    """As in `kwokfleet render | head -1`: nothing is said."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command(*EVERYTHING), cwd=tree, env=environment(tree), stdout=pipe, stderr=pipe) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b"---\n"
        process.stdout.close()
        said = process.stderr.read()
        process.wait(TIMEOUT_S)
    assert said == b""


def test_ctrl_c_ends_a_large_render(tree: Path) -> None:
    """130, as shells expect, with one word and no traceback."""
    path = tree / "fleets" / "quickstart.yaml"
    path.write_text(path.read_text().replace("replicas: 10", "replicas: 200000"))
    pipe = subprocess.PIPE
    called = command("render", "fleets/quickstart.yaml")
    with subprocess.Popen(called, cwd=tree, env=environment(tree), stdout=pipe, stderr=pipe) as process:
        assert process.stdout
        assert process.stdout.readline() == b"---\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, said) == (130, b"interrupted\n")


# validate


def test_the_examples_are_valid() -> None:
    """Every one, without so much as a warning, and without one word on standard output."""
    done = run(ROOT, "validate", "fleets/", "--strict")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.endswith("Fleets: no problems\n")


@pytest.mark.parametrize(
    "arguments", [["validate", "fleets"], ["render", "fleets"], ["schema"], ["fmt", "--check", "fleets"]]
)
def test_files_need_no_kubernetes_client(tree: Path, arguments: list[str]) -> None:
    """It costs a second and 100 MB; so do they without everything else that only a daemon needs."""
    called = [sys.executable, "-X", "importtime", "-m", "kwokfleet", *arguments]
    done = subprocess.run(
        called, cwd=tree, env=environment(tree), capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert "typer" in imported
    assert not imported & {"kubernetes", "structlog", "apscheduler", "watchdog", "psutil"}


@pytest.mark.parametrize("name", ["validate", "render", "fmt"])
def test_a_path_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    """With a sentence, and what to name instead."""
    refused(run(tmp_path, name, "no/such/folder"), "cannot read no/such/folder: no such file", "next:")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["validate", "--stric"], "--strict"),
        (["validate", "-o", "xml"], "sarif"),
        (["render", "--wave"], "--waves"),
        (["render", "--now", "yesterday"], "2026-03-01T08:00:00Z"),
        (["render", "fleets", "fleets"], "unexpected extra argument"),
        (["render", "-o"], "requires an argument"),
        (["render", "--live", "no.json", "live.yaml"], "no.json"),
        (["fmt", "--write"], "--write"),
        (["schema", "fleets"], "unexpected extra argument"),
        (["rendr"], "render"),
    ],
)
def test_wrong_usage_is_answered_with_what_was_meant(tmp_path: Path, arguments: list[str], meant: str) -> None:
    """Exit code 2, and no traceback."""
    (tmp_path / "live.yaml").write_text(LIVE)
    refused(run(tmp_path, *arguments), meant)


LIVE = """
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {name: f}
spec: {nodePools: [{name: p, replicas: 1, templateFrom: {nodes: {}}}]}
"""


# init


def test_what_init_writes_is_valid_and_can_be_rendered(tmp_path: Path) -> None:
    """In an empty folder, by the commands that it names."""
    done = run(tmp_path, "init")
    assert done.returncode == 0
    assert done.stdout.splitlines() == ["fleets/quickstart.yaml", "fleets/kwok-controller.yaml", "fleet.schema.json"]
    assert "validate" in done.stderr
    assert "render" in done.stderr
    assert run(tmp_path, "validate", "--strict").returncode == 0
    assert run(tmp_path, "fmt", "--check").returncode == 0
    assert ok(tmp_path, "render", "--kind", "Node", "-o", "name").count("\n") == 10
    assert [schema_path(path).is_file() for path in sorted((tmp_path / "fleets").iterdir())] == [True, True]


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    """One file in its way, and it writes none."""
    theirs = tmp_path / "lab" / "fleets" / "kwok-controller.yaml"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine\n")
    done = run(tmp_path, "init", "lab")
    assert (done.returncode, done.stdout) == (5, "")
    assert "lab/fleets/kwok-controller.yaml already exists" in done.stderr
    assert [path for path in (tmp_path / "lab").rglob("*") if path.is_file()] == [theirs]
    assert theirs.read_text() == "mine\n"


# fmt

UGLY = """\
# about this file
apiVersion:   kwokfleet.dev/v1alpha1
kind: Fleet   # what it is
metadata:
    name: "ugly"
spec:
    # the nodes
    nodePools:
    - name: a
      replicas: 1   # one is enough
      labels: {x: 'y'}
"""


def test_fmt_says_what_it_would_change(tmp_path: Path) -> None:
    """--check answers by its exit code, --diff shows it, and neither writes."""
    path = tmp_path / "ugly.yaml"
    path.write_text(UGLY)
    check, diff = run(tmp_path, "fmt", "--check"), run(tmp_path, "fmt", "--diff")
    assert (check.returncode, check.stdout) == (1, "ugly.yaml\n")
    assert diff.returncode == 1
    assert '-    name: "ugly"\n+  name: "ugly"\n' in diff.stdout
    assert path.read_text() == UGLY


def test_fmt_keeps_comments_quotes_and_meaning(tmp_path: Path) -> None:
    """It writes once; formatted is formatted."""
    path = tmp_path / "ugly.yaml"
    path.write_text(UGLY)
    assert ok(tmp_path, "fmt") == "ugly.yaml\n"
    written = path.read_text()
    assert re.findall(r"#.*", written) == re.findall(r"#.*", UGLY)
    assert YAML(typ="safe").load(written) == YAML(typ="safe").load(UGLY)
    assert '\n  name: "ugly"\n' in written
    assert "\n    - name: a\n      replicas: 1" in written
    assert "labels: {x: 'y'}" in written
    assert run(tmp_path, "fmt", "--check").returncode == 0
    assert ok(tmp_path, "fmt") == ""


def test_fmt_leaves_a_broken_file_alone(tmp_path: Path) -> None:
    """It says where it is broken, and formats the others all the same."""
    broken, ugly = tmp_path / "broken.yaml", tmp_path / "ugly.yaml"
    text = "apiVersion: kwokfleet.dev/v1alpha1\na: [\n"
    broken.write_text(text)
    ugly.write_text(UGLY)
    done = run(tmp_path, "fmt")
    assert (done.returncode, done.stdout) == (2, "ugly.yaml\n")
    assert "broken.yaml:" in done.stderr
    assert broken.read_text() == text
    assert ugly.read_text() != UGLY


def test_fmt_leaves_files_of_others_alone(tmp_path: Path) -> None:
    """In a folder it formats fleet files and Stages; a file that is named is formatted whatever it holds."""
    other = tmp_path / "docker-compose.yml"
    other.write_text("a:\n      b: 1\n")
    done = run(tmp_path, "fmt")
    assert (done.returncode, done.stdout) == (0, "")
    assert other.read_text() == "a:\n      b: 1\n"
    assert run(tmp_path, "fmt", "docker-compose.yml").stdout == "docker-compose.yml\n"


def test_the_examples_are_formatted() -> None:
    """And the templates beside them; so are the Stages."""
    for folder in ("fleets", "stages"):
        done = run(ROOT, "fmt", "--check", folder)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr


# schema


def test_the_published_schema_is_the_programs_own(tmp_path: Path) -> None:
    """Byte for byte."""
    assert ok(tmp_path, "schema") == (ROOT / "docs" / "fleet.schema.json").read_text()


def test_standard_input_is_a_file_too(tmp_path: Path) -> None:
    """`-` stands for it: checked with its lines, rendered, and formatted to standard output."""
    good = (ROOT / "fleets" / "quickstart.yaml").read_text()
    assert run(tmp_path, "validate", "-", stdin=good).returncode == 0
    done = run(tmp_path, "validate", "-", stdin=good.replace("replicas: 10", "replicas: -10"))
    assert (done.returncode, done.stdout.split(": ")[0]) == (2, "<stdin>:10:17")
    assert run(tmp_path, "render", "-", "-o", "name", stdin=good).stdout.count("node/quickstart-general-") == 10
    assert run(tmp_path, "fmt", "-", stdin=UGLY).stdout not in {"", UGLY}
    assert list(tmp_path.iterdir()) == []
