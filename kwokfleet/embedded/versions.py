"""Which binaries make up the control plane, at which versions, and where each comes from.

The same versions stand in controlplane/go.mod, whose go.sum pins the code; a test compares them.
"""

from dataclasses import dataclass
from pathlib import Path

MODULE = Path(__file__).with_name("controlplane")
"""The Go module of the control plane."""
KUBERNETES = "v1.36.3"
ETCD = "v3.6.8"
KWOK = "v0.8.0"
OLDEST_GO = (1, 26, 0)
"""What controlplane/go.mod asks for."""

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
    """One program of the control plane."""

    name: str
    project: str
    """kubernetes, etcd or kwok: decides version and place of its release."""
    version: str
    go_package: str
    usual_packages: int
    usual_build_s: int
    """Compiled packages and seconds, on two cores with a cold cache, in the order of `BINARIES`."""
    stamps: tuple[str, ...] = ()
    """Linker flags without which it would not know its own version."""
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
"""The binaries that keep running as the cluster; the rest are tools."""


def cache_key(system: str, machine: str) -> str:
    """Name the folder that caches these versions for one platform."""
    return f"kubernetes-{KUBERNETES}_etcd-{ETCD}_kwok-{KWOK}_{system}-{machine}"
