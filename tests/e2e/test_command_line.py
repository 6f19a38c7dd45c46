"""The program itself: version, help, errors and exit codes."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kwokfleet
from tests.harness import cli

PROGRAMS = Path(sys.executable).parent


@pytest.fixture
def program(tmp_path: Path) -> cli.Cli:
    """Return a CLI for commands without a cluster."""
    return cli.Cli(tmp_path / "data", {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, fresh=True)


def test_version(program: cli.Cli) -> None:
    """One line, on standard output."""
    assert program.ok("--version") == f"kwokfleet {kwokfleet.__version__}\n"


def test_both_entry_points_are_the_same_program() -> None:
    """As a kubectl plug-in it shows the command that the user typed."""
    for name, called in (("kwokfleet", "kwokfleet"), ("kubectl-kwokfleet", "kubectl kwokfleet")):
        done = subprocess.run([PROGRAMS / name, "--help"], capture_output=True, text=True, check=True, timeout=60)
        assert f"Usage: {called} [OPTIONS] COMMAND" in done.stdout


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["cluster", "--help"], ["cluster", "up", "--help"]])
def test_offline_commands_do_not_import_kubernetes(tmp_path: Path, arguments: list[str]) -> None:
    """The import costs a second and 100 MB."""
    command = [sys.executable, "-X", "importtime", "-m", "kwokfleet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & {"kubernetes", "structlog", "apscheduler", "watchdog", "psutil"}


def test_the_plug_in_installs_no_completion() -> None:
    """A command name of two words would break kubectl's completion."""
    options = ("--install-completion", "--show-completion")
    for name, offered in (("kwokfleet", True), ("kubectl-kwokfleet", False)):
        done = subprocess.run([PROGRAMS / name, "--help"], capture_output=True, text=True, check=True, timeout=60)
        assert all((option in done.stdout) is offered for option in options)


def test_unwritable_output_is_a_plain_error(program: cli.Cli) -> None:
    """A full disk behind standard output."""
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "kwokfleet", "cluster", "status", "--json"]
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60, env=program.environment
        )
    assert (done.returncode, "No space left on device" in done.stderr) == (6, True)


def test_wrong_usage_is_exit_code_2(program: cli.Cli) -> None:
    """A wrong flag, command, name or file: with a hint and without a traceback."""
    broken, no_manifest = program.data_dir.with_name("broken.yaml"), program.data_dir.with_name("list.yaml")
    broken.write_text("kind: KubeSchedulerConfiguration\nprofiles: [\n")
    no_manifest.write_text("- a list\n")
    for arguments, meant in (
        (["cluster", "upp"], "Did you mean 'up'"),
        (["cluster", "up", "--prot", "1"], "--port"),
        (["cluster", "up", "--name", "Not_a_name"], "lower-case letters"),
        (["cluster", "up", "--extra-args", "kube-scheduler"], "COMPONENT=FLAG=VALUE"),
        (["cluster", "up", "--extra-args", "kubelet=v=4"], "kube-scheduler"),
        (["cluster", "up", "--kube-scheduler-config", "/no/such/file"], "/no/such/file"),
        (["cluster", "up", "--kube-scheduler-config", str(program.data_dir.parent)], "Is a directory"),
        (["cluster", "up", "--kube-scheduler-config", str(broken)], f"{broken}:3:1: invalid YAML"),
        (["cluster", "up", "--kube-scheduler-config", str(no_manifest)], "not a manifest with a kind"),
        (["cluster", "up", "--bin-dir", "/no/such/folder"], "/no/such/folder"),
        (["cluster", "restart", "kubelet"], "kube-scheduler"),
    ):
        done = program.run(*arguments)
        assert done.returncode == 2, done.stderr
        assert meant in done.stderr
        assert "Traceback" not in done.stderr


def test_commands_on_a_missing_cluster_are_errors_with_a_hint(program: cli.Cli) -> None:
    """Status exits with 1."""
    for command in ("kubeconfig", "logs", "kubectl"):
        done = program.run("cluster", command)
        assert done.returncode == 4
        assert "kwokfleet cluster up --name default" in done.stderr
    status = program.run("cluster", "status")
    assert (status.returncode, status.stdout) == (1, "")
    assert "kwokfleet cluster up" in status.stderr
    assert program.run("cluster", "status", "--json").stdout == "[]\n"


def test_an_invalid_setting_is_an_error_with_the_valid_values(program: cli.Cli) -> None:
    """No silent default."""
    done = program.run("cluster", "status", KWOKFLEET_LOG_FORMAT="xml")
    assert done.returncode == 2
    assert "auto, console, json" in done.stderr


def test_an_unwritable_data_folder_is_an_error_with_its_path(program: cli.Cli, tmp_path: Path) -> None:
    """With the reason and the variable, without a traceback."""
    (tmp_path / "file").write_text("")
    done = program.run("cluster", "down", KWOKFLEET_DATA_DIR=str(tmp_path / "file"))
    assert done.returncode == 6
    assert str(tmp_path / "file") in done.stderr
    assert "KWOKFLEET_DATA_DIR" in done.stderr


def test_ctrl_c_ends_any_command(program: cli.Cli) -> None:
    """Exit code 130, without a traceback."""
    wait = "lambda: (print('ready', flush=True), time.sleep(60))"
    code = f"import kwokfleet.cli.main as m, time\nm.cluster.app.command('wait')({wait})\nm.main()"
    command = [sys.executable, "-c", code, "cluster", "wait"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=program.environment) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "interrupted\n")


def test_an_unexpected_exception_has_its_own_exit_code(program: cli.Cli) -> None:
    """With everything that a bug report needs."""
    code = "import kwokfleet.cli.main as m\nm.cluster.app.command('crash')(lambda: 1 / 0)\nm.main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "cluster", "crash"],
        capture_output=True, text=True, check=False, timeout=60, env=program.environment,
    )  # fmt: skip
    assert done.returncode == 70
    assert "bug in kwokfleet: ZeroDivisionError" in done.stderr
