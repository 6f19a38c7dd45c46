import re
from pathlib import Path

from kwokfleet.embedded import versions

GO_MOD = (versions.MODULE / "go.mod").read_text()
CONTAINERFILE = (Path(__file__).parents[3] / "Containerfile").read_text()


def test_go_module_builds_the_versions_we_name() -> None:
    """What is downloaded, stamped and shown is what the Go module pins."""
    assert f"go.etcd.io/etcd/server/v3 {versions.ETCD}" in GO_MOD
    assert f"k8s.io/kubernetes {versions.KUBERNETES}" in GO_MOD
    assert f"sigs.k8s.io/kwok {versions.KWOK}" in GO_MOD


def test_go_module_lists_exactly_our_binaries_as_tools() -> None:
    """`go mod tidy` keeps every package we build, and none that we do not."""
    tools = re.search(r"tool \((.*?)\)", GO_MOD, re.DOTALL)
    assert tools
    assert set(tools[1].split()) == {binary.go_package for binary in versions.BINARIES}


def test_oldest_go_is_the_modules_own() -> None:
    """A compiler we accept is one the module accepts."""
    assert f"\ngo {'.'.join(map(str, versions.OLDEST_GO))}\n" in GO_MOD


def test_the_image_is_built_by_the_modules_go() -> None:
    """Its base follows when the module asks for a newer one: a compiler that is too old would only fail there."""
    base = re.search(r"^ARG GO=\S+golang:(\d+)\.(\d+)", CONTAINERFILE, re.MULTILINE)
    assert base
    assert tuple(map(int, base.groups())) >= versions.OLDEST_GO[:2]


def test_staging_modules_are_replaced_by_releases_of_the_same_version() -> None:
    """No Kubernetes library of another version slips in."""
    replaced = re.findall(r"^\t(k8s\.io/\S+) => \1 (\S+)$", GO_MOD, re.MULTILINE)
    assert len(replaced) == 33
    assert {version for _, version in replaced} == {versions.KUBERNETES.replace("v1.", "v0.")}
