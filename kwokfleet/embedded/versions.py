"""Binaries of the control plane, with their versions and Go packages.

controlplane/go.mod has the same versions, and its go.sum pins the code. A test compares them.
"""

from dataclasses import dataclass
from pathlib import Path

MODULE = Path(__file__).with_name("controlplane")
"""The Go module of the control plane."""
KUBERNETES = "v1.36.3"
ETCD = "v3.6.8"
KWOK = "v0.8.0"
OLDEST_GO = (1, 26, 0)
"""Required by controlplane/go.mod."""

_KUBERNETES_STAMPS = tuple(
    f"-X {package}.{variable}={value}"
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    for variable, value in (
        ("gitVersion", KUBERNETES),
        ("gitMajor", KUBERNETES.removeprefix("v").split(".")[0]),
        ("gitMinor", KUBERNETES.split(".")[1]),
        ("gitTreeState", "clean"),
    )
)


@dataclass(frozen=True, slots=True)
class Binary:
    """A program of the control plane."""

    name: str
    project: str
    """kubernetes, etcd or kwok: decides version and address of the release."""
    version: str
    go_package: str
    usual_packages: int
    usual_build_s: int
    """Measured on two cores with a cold cache, in the order of `BINARIES`."""
    stamps: tuple[str, ...] = ()
    """Linker flags that set the version."""
    build_tags: str = ""
    module: Path = MODULE
    """The folder of the go.mod that pins it."""


def _kubernetes(name: str, usual_packages: int, usual_build_s: int) -> Binary:
    package = f"k8s.io/kubernetes/cmd/{name}"
    return Binary(name, "kubernetes", KUBERNETES, package, usual_packages, usual_build_s, _KUBERNETES_STAMPS)


BINARIES = (
    Binary("etcd", "etcd", ETCD, "go.etcd.io/etcd/server/v3", 575, 70),
    _kubernetes("kube-apiserver", 1570, 300),
    _kubernetes("kube-controller-manager", 380, 90),
    _kubernetes("kube-scheduler", 6, 10),
    _kubernetes("kubectl", 190, 40),
    Binary("kwok", "kwok", KWOK, "sigs.k8s.io/kwok/cmd/kwok", 75, 15),
    Binary("kwokctl", "kwok", KWOK, "sigs.k8s.io/kwok/cmd/kwokctl", 110, 15),
)

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
"""Binaries that run as the cluster; the others are tools."""


def cache_key(system: str, machine: str) -> str:
    """Return the name of the cache folder of these versions for one platform."""
    return f"kubernetes-{KUBERNETES}_etcd-{ETCD}_kwok-{KWOK}_{system}-{machine}"
