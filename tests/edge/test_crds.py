"""Source of kwok's CRDs, and failures to get them."""

import os
import zipfile
from pathlib import Path

import pytest

from kwokfleet import errors, settings
from kwokfleet.embedded import crds, progress, toolchain, versions
from tests.harness import fake_releases

COMPILER = """\
#!/bin/sh
# Fake Go: prints its version, "downloads" the module in its folder, and records each call.
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
    """Put a fake Go first on PATH, with a read-only module of two CRDs."""
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


def test_the_files_of_the_pinned_module_are_cached(tmp_path: Path, go: Path) -> None:
    """They are copied once, and the copies are writable."""
    config = configured(tmp_path)
    crd_files = crds.files(config, progress.discard)
    assert [path.name for path in crd_files] == ["a.yaml", "b.yaml"]
    assert crd_files[0].stat().st_mode & 0o200
    assert crds.files(config, progress.discard) == crd_files
    asked = (go / "asked").read_text().splitlines()
    assert asked == [f"mod download -json sigs.k8s.io/kwok@{versions.KWOK}"]


def test_a_binary_folder_does_not_change_the_crds(tmp_path: Path, go: Path) -> None:
    """The CRDs come from the cache also with KWOKFLEET_BIN_DIR."""
    crd_files = crds.files(configured(tmp_path, KWOKFLEET_BIN_DIR=str(tmp_path / "own")), progress.discard)
    assert {path.parent for path in crd_files} == {tmp_path / "cache" / "crds" / f"kwok-{versions.KWOK}"}


def test_a_failed_download_is_reported_and_leaves_no_files(
    tmp_path: Path, go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error quotes Go; the next attempt starts from an empty folder."""
    monkeypatch.setenv("FAKE_GO_FAILS", "dial tcp: no route to host")
    with pytest.raises(errors.HostError, match="no route to host") as caught:
        crds.files(configured(tmp_path), progress.discard)
    assert "GOPROXY" in caught.value.hint
    assert [path.name for path in (tmp_path / "cache" / "crds").iterdir()] == [f"kwok-{versions.KWOK}.lock"]
    monkeypatch.delenv("FAKE_GO_FAILS")
    assert crds.files(configured(tmp_path), progress.discard)


def test_a_module_without_crds_is_an_error(tmp_path: Path, go: Path) -> None:
    """A new kwok may have them in another folder."""
    (go / "module" / crds.KWOK.folder).rename(go / "module" / "elsewhere")
    with pytest.raises(errors.HostError, match="is missing"):
        crds.files(configured(tmp_path), progress.discard)


def test_a_read_only_cache_is_reported(tmp_path: Path, go: Path) -> None:
    """A file in place of the folder is an error with a message."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "crds").write_text("")
    with pytest.raises(errors.HostError, match="cannot write the cache of CRDs"):
        crds.files(configured(tmp_path), progress.discard)


@pytest.mark.skipif(toolchain.on_path() is None, reason="needs a real Go")
def test_a_module_with_a_wrong_checksum_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """go.sum protects against a proxy that serves another kwok."""
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
