"""Commands without a cluster: init, validate, render, fmt, schema."""

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
RENDER_ALL = ("render", "fleets", "--waves", "--now", NOW)
TIMEOUT_S = 60

Done = subprocess.CompletedProcess[str]


def command(*arguments: str) -> list[str]:
    """Return the command line of the program."""
    return [sys.executable, "-m", "kwokfleet", *arguments]


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Return an environment without a kubeconfig."""
    return {"HOME": str(folder), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **variables}


def run(folder: Path, *arguments: str, stdin: str = "", **variables: str) -> Done:
    """Run the program in a folder."""
    return fork_server.run(list(arguments), environment(folder, **variables), folder=folder, stdin=stdin)


def run_in_new_process(folder: Path, *arguments: str, **variables: str) -> str:
    """Run the program in a new Python process; return its standard output."""
    return subprocess.run(
        command(*arguments), cwd=folder, env=environment(folder, **variables), capture_output=True, text=True,
        check=True, timeout=TIMEOUT_S,
    ).stdout  # fmt: skip


def ok(folder: Path, *arguments: str) -> str:
    """Run the program, which must succeed; return its standard output."""
    done = run(folder, *arguments)
    assert done.returncode == 0, f"kwokfleet {' '.join(arguments)} gave {done.returncode}: {done.stderr}"
    return done.stdout


def assert_rejected(done: Done, *messages: str) -> None:
    """Check exit code 2, the messages on standard error, and an empty standard output."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr
    for message in messages:
        assert message in done.stderr


def example_tree(folder: Path) -> Path:
    """Copy the examples and their Stages into a folder."""
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
    """Return the rendered examples."""
    return ok(example_tree(tmp_path_factory.mktemp("reference")), *RENDER_ALL)


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_render_does_not_depend_on_the_hash_seed(tree: Path, reference: str, seed: str) -> None:
    """Nor on the folder."""
    assert run_in_new_process(tree, *RENDER_ALL, PYTHONHASHSEED=seed) == reference


def test_render_does_not_depend_on_file_times(tree: Path, reference: str) -> None:
    """Nor on the order in which files were written."""
    for number, path in enumerate(sorted((tree / "fleets").rglob("*.*"), reverse=True)):
        text = path.read_bytes()
        path.unlink()
        path.write_bytes(text)
        os.utime(path, (1_000_000 + number, 1_000_000 + number))
    assert ok(tree, *RENDER_ALL) == reference


def test_render_uses_the_folder_fleets_by_default(tree: Path, reference: str) -> None:
    """Or the current folder if it does not exist."""
    assert ok(tree, "render", "--waves", "--now", NOW) == reference
    assert ok(tree / "fleets", "render", "--waves", "--now", NOW, "--fleet", "quickstart") == ok(
        tree, *RENDER_ALL, "--fleet", "quickstart"
    )


def test_render_filters_by_fleet_and_kind(tree: Path) -> None:
    """Case-insensitively."""
    names = ok(tree, "render", "--fleet", "quickstart", "--kind", "node", "-o", "name").splitlines()
    assert names == [f"node/quickstart-general-{number}" for number in range(10)]
    kinds = {line.partition("/")[0] for line in ok(tree, "render", "--kind", "Stage", "-o", "name").splitlines()}
    assert kinds == {"stage"}


def test_render_prints_names_json_and_yaml_of_the_same_objects(tree: Path) -> None:
    """One object per line or document."""
    chosen = ("render", "fleets/quickstart.yaml", "--waves", "--now", NOW, "-o")
    lines = [json.loads(line) for line in ok(tree, *chosen, "json").splitlines()]
    assert list(YAML(typ="safe").load_all(ok(tree, *chosen, "yaml"))) == lines
    namespaced = [
        (manifest["kind"].lower(), manifest["metadata"].get("namespace"), manifest["metadata"]["name"])
        for manifest in lines
    ]
    names = ["/".join(filter(None, parts)) for parts in namespaced]
    assert ok(tree, *chosen, "name").splitlines() == names


def test_render_of_an_invalid_tree_prints_nothing(tree: Path) -> None:
    """All problems are on standard error, and no object on standard output."""
    path = tree / "fleets" / "quickstart.yaml"
    path.write_text(path.read_text().replace("replicas: 10", "replicas: -3"))
    assert_rejected(run(tree, "render"), "fleets/quickstart.yaml:10:17: spec.nodePools[0].replicas:", "-3", "next:")


def test_a_closed_pipe_is_no_error(tree: Path) -> None:
    """As in `kwokfleet render | head -1`: no message."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command(*RENDER_ALL), cwd=tree, env=environment(tree), stdout=pipe, stderr=pipe) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b"---\n"
        process.stdout.close()
        stderr = process.stderr.read()
        process.wait(TIMEOUT_S)
    assert stderr == b""


def test_ctrl_c_ends_a_large_render(tree: Path) -> None:
    """Exit code 130, one word, and no traceback."""
    path = tree / "fleets" / "quickstart.yaml"
    path.write_text(path.read_text().replace("replicas: 10", "replicas: 200000"))
    pipe = subprocess.PIPE
    called = command("render", "fleets/quickstart.yaml")
    with subprocess.Popen(called, cwd=tree, env=environment(tree), stdout=pipe, stderr=pipe) as process:
        assert process.stdout
        assert process.stdout.readline() == b"---\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, stderr) == (130, b"interrupted\n")


# validate


def test_the_examples_are_valid() -> None:
    """Without warnings, and without standard output."""
    done = run(ROOT, "validate", "fleets/", "--strict")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.endswith("Fleets: no problems\n")


@pytest.mark.parametrize(
    "arguments", [["validate", "fleets"], ["render", "fleets"], ["schema"], ["fmt", "--check", "fleets"]]
)
def test_offline_commands_do_not_import_the_kubernetes_client(tree: Path, arguments: list[str]) -> None:
    """Nor other modules that only a daemon needs."""
    called = [sys.executable, "-X", "importtime", "-m", "kwokfleet", *arguments]
    done = subprocess.run(
        called, cwd=tree, env=environment(tree), capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert "typer" in imported
    assert not imported & {"kubernetes", "structlog", "apscheduler", "watchdog", "psutil"}


@pytest.mark.parametrize("name", ["validate", "render", "fmt"])
def test_a_missing_path_is_an_error_with_a_hint(tmp_path: Path, name: str) -> None:
    """With its name."""
    assert_rejected(run(tmp_path, name, "no/such/folder"), "cannot read no/such/folder: no such file", "next:")


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
def test_wrong_usage_is_an_error_with_a_suggestion(tmp_path: Path, arguments: list[str], meant: str) -> None:
    """Exit code 2, and no traceback."""
    (tmp_path / "live.yaml").write_text(LIVE)
    assert_rejected(run(tmp_path, *arguments), meant)


LIVE = """
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {name: f}
spec: {nodePools: [{name: p, replicas: 1, templateFrom: {nodes: {}}}]}
"""


# init


def test_files_of_init_are_valid_and_can_be_rendered(tmp_path: Path) -> None:
    """In an empty folder, by the commands that its output names."""
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
    """With one existing file it writes none."""
    existing = tmp_path / "lab" / "fleets" / "kwok-controller.yaml"
    existing.parent.mkdir(parents=True)
    existing.write_text("mine\n")
    done = run(tmp_path, "init", "lab")
    assert (done.returncode, done.stdout) == (5, "")
    assert "lab/fleets/kwok-controller.yaml already exists" in done.stderr
    assert [path for path in (tmp_path / "lab").rglob("*") if path.is_file()] == [existing]
    assert existing.read_text() == "mine\n"


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


def test_fmt_check_and_diff_do_not_write(tmp_path: Path) -> None:
    """--check sets the exit code, --diff prints the changes."""
    path = tmp_path / "ugly.yaml"
    path.write_text(UGLY)
    check, diff = run(tmp_path, "fmt", "--check"), run(tmp_path, "fmt", "--diff")
    assert (check.returncode, check.stdout) == (1, "ugly.yaml\n")
    assert diff.returncode == 1
    assert '-    name: "ugly"\n+  name: "ugly"\n' in diff.stdout
    assert path.read_text() == UGLY


def test_fmt_keeps_comments_quotes_and_meaning(tmp_path: Path) -> None:
    """A second run changes nothing."""
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


def test_fmt_does_not_change_an_invalid_file(tmp_path: Path) -> None:
    """It reports the line, and formats the other files."""
    broken, ugly = tmp_path / "broken.yaml", tmp_path / "ugly.yaml"
    text = "apiVersion: kwokfleet.dev/v1alpha1\na: [\n"
    broken.write_text(text)
    ugly.write_text(UGLY)
    done = run(tmp_path, "fmt")
    assert (done.returncode, done.stdout) == (2, "ugly.yaml\n")
    assert "broken.yaml:" in done.stderr
    assert broken.read_text() == text
    assert ugly.read_text() != UGLY


def test_fmt_does_not_change_foreign_files(tmp_path: Path) -> None:
    """In a folder it formats fleet files and Stages only; a named file is always formatted."""
    other = tmp_path / "docker-compose.yml"
    other.write_text("a:\n      b: 1\n")
    done = run(tmp_path, "fmt")
    assert (done.returncode, done.stdout) == (0, "")
    assert other.read_text() == "a:\n      b: 1\n"
    assert run(tmp_path, "fmt", "docker-compose.yml").stdout == "docker-compose.yml\n"


def test_the_examples_are_formatted() -> None:
    """Also their templates and the Stages."""
    for folder in ("fleets", "stages"):
        done = run(ROOT, "fmt", "--check", folder)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr


# schema


def test_the_published_schema_is_current(tmp_path: Path) -> None:
    """Byte for byte."""
    assert ok(tmp_path, "schema") == (ROOT / "docs" / "fleet.schema.json").read_text()


def test_standard_input_can_be_validated_rendered_and_formatted(tmp_path: Path) -> None:
    """`-` is standard input."""
    good = (ROOT / "fleets" / "quickstart.yaml").read_text()
    assert run(tmp_path, "validate", "-", stdin=good).returncode == 0
    done = run(tmp_path, "validate", "-", stdin=good.replace("replicas: 10", "replicas: -10"))
    assert (done.returncode, done.stdout.split(": ")[0]) == (2, "<stdin>:10:17")
    assert run(tmp_path, "render", "-", "-o", "name", stdin=good).stdout.count("node/quickstart-general-") == 10
    assert run(tmp_path, "fmt", "-", stdin=UGLY).stdout not in {"", UGLY}
    assert list(tmp_path.iterdir()) == []
