"""Where kwok's custom resource definitions come from, and what happens when they cannot be had."""

import os
import zipfile
from pathlib import Path

import pytest

from kwokfleet import errors, settings
from kwokfleet.embedded import crds, progress, toolchain, versions
from tests.harness import fake_releases

COMPILER = """\
#!/bin/sh
# A stand-in for Go: says its version, and "downloads" a module that lies beside it; notes each call.
here=$(dirname "$0")
case "$1" in
  env) echo go1.26.8; exit ;;
esac
echo "$@" >> "$here/asked"
if [ -n "$FAKE_GO_FAILS" ]; then echo "{\\"Error\\": \\"$FAKE_GO_FAILS\\"}"; exit 1; fi
echo "{\\"Dir\\": \\"$here/module\\"}"
"""


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the stand-in first on PATH, with a module of two definitions, read-only as Go leaves them."""
    program = fake_releases.write_compiler(tmp_path / "go")
    program.write_text(COMPILER)
    bases = program.parent / "module" / crds.KWOK.folder
    bases.mkdir(parents=True)
    for name in ("b.yaml", "a.yaml", "doc.go"):
        (bases / name).write_text(name)
        (bases / name).chmod(0o444)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program.parent


def configured(tmp_path: Path, **variables: str) -> settings.Settings:
    """Return settings with an empty cache."""
    base = {"HOME": str(tmp_path), "KWOKFLEET_CACHE_DIR": str(tmp_path / "cache")}
    return settings.from_environment(base | variables)


def test_the_pinned_modules_files_are_cached(tmp_path: Path, go: Path) -> None:
    """They are copied from the module of the pinned version, once; the copies can be removed again."""
    config = configured(tmp_path)
    found = crds.files(config, progress.discard)
    assert [path.name for path in found] == ["a.yaml", "b.yaml"]
    assert found[0].stat().st_mode & 0o200
    assert crds.files(config, progress.discard) == found
    asked = (go / "asked").read_text().splitlines()
    assert asked == [f"mod download -json sigs.k8s.io/kwok@{versions.KWOK}"]


def test_foreign_binaries_do_not_bring_their_own_definitions(tmp_path: Path, go: Path) -> None:
    """With a folder of one's own binaries the cache is still ours."""
    found = crds.files(configured(tmp_path, KWOKFLEET_BIN_DIR=str(tmp_path / "own")), progress.discard)
    assert {path.parent for path in found} == {tmp_path / "cache" / "crds" / f"kwok-{versions.KWOK}"}


def test_a_failed_download_says_why_and_leaves_nothing(
    tmp_path: Path, go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler's own words are shown, and the next try begins from nothing."""
    monkeypatch.setenv("FAKE_GO_FAILS", "dial tcp: no route to host")
    with pytest.raises(errors.HostError, match="no route to host") as caught:
        crds.files(configured(tmp_path), progress.discard)
    assert "GOPROXY" in caught.value.hint
    assert [path.name for path in (tmp_path / "cache" / "crds").iterdir()] == [f"kwok-{versions.KWOK}.lock"]
    monkeypatch.delenv("FAKE_GO_FAILS")
    assert crds.files(configured(tmp_path), progress.discard)


def test_a_module_without_definitions_is_said_so(tmp_path: Path, go: Path) -> None:
    """A kwok that keeps them elsewhere is not taken for one that has none."""
    (go / "module" / crds.KWOK.folder).rename(go / "module" / "elsewhere")
    with pytest.raises(errors.HostError, match="is missing"):
        crds.files(configured(tmp_path), progress.discard)


def test_a_cache_that_cannot_be_written_is_said_so(tmp_path: Path, go: Path) -> None:
    """A file where the folder should be ends in a sentence."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "crds").write_text("")
    with pytest.raises(errors.HostError, match="cannot write the cache of CRDs"):
        crds.files(configured(tmp_path), progress.discard)


@pytest.mark.skipif(toolchain.on_path() is None, reason="needs a real Go")
def test_a_module_that_go_sum_does_not_know_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that serves another kwok under the same version gets nowhere: go.sum decides."""
    versions_folder = tmp_path / "proxy" / crds.KWOK.module / "@v"
    versions_folder.mkdir(parents=True)
    (versions_folder / f"{versions.KWOK}.info").write_text(f'{{"Version": "{versions.KWOK}"}}')
    (versions_folder / f"{versions.KWOK}.mod").write_text(f"module {crds.KWOK.module}\n")
    with zipfile.ZipFile(versions_folder / f"{versions.KWOK}.zip", "w") as archive:
        archive.writestr(f"{crds.KWOK.module}@{versions.KWOK}/go.mod", f"module {crds.KWOK.module}\n")
        archive.writestr(f"{crds.KWOK.module}@{versions.KWOK}/{crds.KWOK.folder}/a.yaml", "forged")
    monkeypatch.setenv("GOPROXY", f"file://{tmp_path / 'proxy'}")
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "modules"))
    monkeypatch.setenv("GONOSUMDB", "*")
    with pytest.raises(errors.HostError, match="checksum mismatch"):
        crds.files(configured(tmp_path), progress.discard)
