"""Folder of an embedded cluster: its files, and whether kwokfleet created it.

kwokctl keeps its files there (kwok.yaml, pki, pids, logs, etcd). kwokfleet adds a marker, kwokfleet.json; a folder
without it is never changed.
"""

import json
import re
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from kwokfleet import errors
from kwokfleet.embedded import versions

MADE_BY = "kwokfleet"
_UNSAFE = re.compile(r"""[\s,;="'`$&|<>*?\\]""")
"""kwokctl splits some values at these characters, and then uses another folder."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


class FolderState(StrEnum):
    """State of a cluster folder."""

    ABSENT = "absent"
    FOREIGN = "foreign"
    INCOMPLETE = "incomplete"
    """Created by kwokfleet, which was interrupted: nothing in it can be used."""
    COMPLETE = "complete"
    DAMAGED = "damaged"
    """Was complete, and has lost files since."""


@dataclass(frozen=True, slots=True)
class Spec:
    """Options with which a cluster is created."""

    port: int = 0
    """Port of the API server; 0: any free port."""
    scheduler_config: str = ""
    scheduler_config_digest: str = ""
    extra_args: tuple[tuple[str, str, str], ...] = ()
    """(component, flag, value)."""
    binaries: tuple[tuple[str, str], ...] = ()
    """(name, path) of each binary, in the order of `versions.BINARIES`."""


@dataclass(frozen=True, slots=True)
class Ports:
    """One loopback port per socket. kwokctl could choose them, but does not report them."""

    kube_apiserver: int
    kube_controller_manager: int
    kube_scheduler: int
    etcd: int
    etcd_peer: int
    kwok: int
    """Reserved for the kwok controller."""

    def of(self, component: str) -> int:
        """Return the port of a component."""
        return int(getattr(self, component.replace("-", "_")))


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """Contents of the marker. Spec and Ports of a cluster never change."""

    finished: bool
    spec: Spec
    ports: Ports


@dataclass(frozen=True, slots=True)
class ClusterFolder:
    """Paths of the cluster *name*."""

    data_dir: Path
    name: str

    @property
    def root(self) -> Path:
        """Folder of the cluster; also kwokctl's, because KWOK_WORKDIR is the data folder."""
        return self.data_dir.resolve() / "clusters" / self.name

    @property
    def lock(self) -> Path:
        """One lock for all clusters: kwokctl chooses free ports without reserving them."""
        return self.data_dir.resolve() / "clusters.lock"

    @property
    def marker(self) -> Path:
        """The marker, written by kwokfleet."""
        return self.root / "kwokfleet.json"

    @property
    def kwokctl_config(self) -> Path:
        """Configuration for kwokctl."""
        return self.root / "kwokctl.yaml"

    @property
    def saved_config(self) -> Path:
        """Configuration as kwokctl saves it: components, flags and ports."""
        return self.root / "kwok.yaml"

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig for clients."""
        return self.root / "kubeconfig.yaml"

    def program(self, component: str) -> Path:
        """Return the link to the component's binary, through which kwokctl starts it."""
        return self.root / "bin" / component

    def pki(self, file: str) -> Path:
        """Return the path of a certificate or key."""
        return self.root / "pki" / file

    def pid_file(self, component: str) -> Path:
        """Return kwokctl's pid file of the component."""
        return self.root / "pids" / f"{component}.pid"

    def log(self, component: str) -> Path:
        """Return the log file of the component."""
        return self.root / "logs" / f"{component}.log"

    def previous_log(self, component: str) -> Path:
        """Return the log file of the component before its last restart."""
        return self.root / "logs" / f"{component}.previous.log"


def cluster_folder(data_dir: Path, name: str) -> ClusterFolder:
    """Return the folder of the cluster *name*; raise if the name is invalid."""
    if not _NAME.fullmatch(name):
        raise errors.InputError(
            f"the cluster name {name!r} is invalid",
            hint="use up to 40 lower-case letters, digits and hyphens, with a letter or digit at both ends",
        )
    if unsafe := _UNSAFE.search(str(data_dir.resolve())):
        raise errors.InputError(
            f"the path of the data folder {data_dir} contains {unsafe[0]!r}, which kwokctl does not support",
            hint="set KWOKFLEET_DATA_DIR to a path without white space, quotes, commas and shell characters",
        )
    return ClusterFolder(data_dir, name)


def cluster_names(data_dir: Path) -> tuple[str, ...]:
    """Return the names of all clusters with a marker, sorted."""
    markers = (data_dir / "clusters").glob("*/kwokfleet.json")
    return tuple(sorted(marker.parent.name for marker in markers))


def folder_state(where: ClusterFolder) -> tuple[FolderState, str]:
    """Return the state of *where*, and the reason if it is damaged."""
    if not where.root.exists():
        return FolderState.ABSENT, ""
    if not where.marker.exists():
        empty = where.root.is_dir() and not any(where.root.iterdir())
        return (FolderState.ABSENT, "") if empty else (FolderState.FOREIGN, "")
    try:
        finished = read_record(where).finished
    except (ValueError, KeyError, TypeError, OSError) as exc:
        return FolderState.DAMAGED, f"{where.marker.name} cannot be read ({exc})"
    if not finished:
        return FolderState.INCOMPLETE, ""
    damage = _damage(where)
    return (FolderState.DAMAGED, damage) if damage else (FolderState.COMPLETE, "")


def _damage(where: ClusterFolder) -> str:
    """Return the damage of a complete cluster; empty if there is none."""
    needed = (where.saved_config, where.kubeconfig, where.pki("ca.crt"), where.pki("admin.crt"), where.pki("admin.key"))
    missing = [str(path.relative_to(where.root)) for path in needed if not path.is_file() or not path.stat().st_size]
    if missing:
        return f"missing or empty: {', '.join(missing)}"
    try:
        client_context(where)
    except OSError as exc:  # ssl.SSLError is one
        return f"its certificates are invalid ({exc})"
    return ""


def client_context(where: ClusterFolder) -> ssl.SSLContext:
    """Return the TLS context of the cluster's administrator."""
    context = ssl.create_default_context(cafile=str(where.pki("ca.crt")))
    context.load_cert_chain(where.pki("admin.crt"), where.pki("admin.key"))
    return context


def differences(current: Spec, requested: Spec) -> Iterator[str]:
    """Yield the differences of two Specs; unset fields of *requested* do not differ."""
    if requested.port and current.port != requested.port:
        yield f"--port {current.port} at creation, {requested.port} now"
    if requested.scheduler_config and current.scheduler_config != requested.scheduler_config:
        before, now = current.scheduler_config or "none", requested.scheduler_config
        yield f"--kube-scheduler-config {before} at creation, {now} now"
    elif requested.scheduler_config and current.scheduler_config_digest != requested.scheduler_config_digest:
        yield f"{current.scheduler_config} has changed since the creation"
    if requested.extra_args and _by_component(current) != _by_component(requested):
        before, now = (
            ", ".join("=".join(argument) for argument in spec.extra_args) or "none" for spec in (current, requested)
        )
        yield f"--extra-args {before} at creation, {now} now"
    current_paths = dict(current.binaries)
    for component, path in requested.binaries:
        if path != current_paths[component]:
            yield f"{component} from {current_paths[component]} at creation, from {path} now"


def _by_component(spec: Spec) -> list[tuple[str, str, str]]:
    """Sort flags by component. Within one component the order stays: the last flag wins."""
    return sorted(spec.extra_args, key=lambda argument: argument[0])


def write_record(where: ClusterFolder, record: ClusterRecord) -> None:
    """Write the marker, atomically."""
    where.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = where.marker.with_suffix(".part")
    part.write_text(json.dumps({"madeBy": MADE_BY, **asdict(record)}, indent=2) + "\n")
    part.replace(where.marker)


def read_record(where: ClusterFolder) -> ClusterRecord:
    """Read the marker."""
    raw = json.loads(where.marker.read_text())
    if raw["madeBy"] != MADE_BY:
        raise ValueError(f"created by {raw['madeBy']}")
    spec = raw["spec"] | {
        "extra_args": tuple(tuple(argument) for argument in raw["spec"]["extra_args"]),
        "binaries": tuple(tuple(binary) for binary in raw["spec"]["binaries"]),
    }
    if {name for name, _ in spec["binaries"]} != {binary.name for binary in versions.BINARIES}:
        raise ValueError("it lists other binaries than this version")
    return ClusterRecord(finished=bool(raw["finished"]), spec=Spec(**spec), ports=Ports(**raw["ports"]))


def ports_of_others(where: ClusterFolder) -> frozenset[int]:
    """Return the ports of all other clusters in the same data folder, running or not."""
    taken: set[int] = set()
    for name in cluster_names(where.data_dir):
        if name != where.name:
            with suppress(ValueError, KeyError, TypeError, OSError):
                taken.update(asdict(read_record(ClusterFolder(where.data_dir, name)).ports).values())
    return frozenset(taken)
