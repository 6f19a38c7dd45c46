"""The test tools: built once per version, and required."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from kwokfleet import settings
from kwokfleet.embedded import progress, versions
from tests import tools
from tests.harness import deploy_manifests, fake_releases

PACKAGES = [tool.go_package for tool in tools.TOOLS]


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the fake compiler first on PATH; return the file that lists the packages it built."""
    program = fake_releases.write_compiler(tmp_path / "compiler")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program.with_name("built")


def configured(tmp_path: Path, **variables: str) -> settings.Settings:
    """Return settings with an empty cache."""
    return settings.from_environment({"HOME": str(tmp_path), **variables})


def test_a_version_is_built_once(tmp_path: Path, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A raised version is built again."""
    config = configured(tmp_path)
    paths = tools.ensure(config, progress.discard)
    assert tools.ensure(config, progress.discard) == paths
    assert built.read_text().split() == PACKAGES
    monkeypatch.setattr(tools, "TOOLS", tuple(replace(tool, version="v99.0.0") for tool in tools.TOOLS))
    assert tools.ensure(config, progress.discard) != paths
    assert built.read_text().split() == 2 * PACKAGES


def test_a_tool_in_the_folder_of_binaries_is_not_built(tmp_path: Path, built: Path) -> None:
    """KWOKFLEET_BIN_DIR may hold any of them."""
    (tmp_path / "helm").write_bytes(fake_releases.PROGRAM)
    (tmp_path / "helm").chmod(0o755)
    paths = tools.ensure(configured(tmp_path, KWOKFLEET_BIN_DIR=str(tmp_path)), progress.discard)
    assert paths["helm"] == tmp_path / "helm"
    assert built.read_text().split() == PACKAGES[1:]


def test_a_missing_tool_fails_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the command that builds it."""
    monkeypatch.delenv("KWOKFLEET_BIN_DIR", raising=False)
    monkeypatch.setenv("KWOKFLEET_CACHE_DIR", str(tmp_path))
    with pytest.raises(pytest.fail.Exception, match=r"helm is not built.*make test.*-m tests\.tools"):
        deploy_manifests.find_program("helm")


def test_the_go_module_pins_exactly_the_tools() -> None:
    """`go mod tidy` keeps every package we build, and the compiler is the control plane's."""
    listed = re.search(r"^tool \((.*?)\)", tools.GO_MOD, re.DOTALL | re.MULTILINE)
    assert listed
    assert set(listed[1].split()) == set(PACKAGES)
    assert f"\ngo {'.'.join(map(str, versions.OLDEST_GO))}\n" in tools.GO_MOD
