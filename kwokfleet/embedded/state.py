"""An embedded cluster's folder: what is in it, and whether it is ours to use.

kwokctl keeps its own files there (kwok.yaml, pki, pids, logs, etcd). Beside them stands our
marker, kwokfleet.json: a folder without it was made by somebody else and is never touched.
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
"""kwokctl splits some values at these, and then works in another folder."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


class FolderState(StrEnum):
    """What a cluster folder is to us."""

    ABSENT = "absent"
    FOREIGN = "foreign"
    HALF_MADE = "half-made"
    """Ours, but whoever made it did not finish: nothing in it is of value."""
    MADE = "made"
    DAMAGED = "damaged"
    """Was finished once, and something in it has gone since."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What was asked for when the cluster was made."""

    port: int = 0
    """The API server's; 0: any free one."""
    scheduler_config: str = ""
    scheduler_config_digest: str = ""
    extra_args: tuple[tuple[str, str, str], ...] = ()
    """(component, flag, value)."""
    binaries: tuple[tuple[str, str], ...] = ()
    """(name, path) of every one, in the order of `versions.BINARIES`."""


@dataclass(frozen=True, slots=True)
class Ports:
    """One loopback port per socket; kwokctl would choose them too, but without telling anybody."""

    kube_apiserver: int
    kube_controller_manager: int
    kube_scheduler: int
    etcd: int
    etcd_peer: int
    kwok: int
    """Kept free for the kwok controller."""


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """What our marker remembers. A cluster keeps its Spec and Ports for life."""

    finished: bool
    spec: Spec
    ports: Ports


@dataclass(frozen=True, slots=True)
class ClusterFolder:
    """Where everything of the cluster *name* is."""

    data_dir: Path
    name: str

    @property
    def root(self) -> Path:
        """The cluster's own folder; kwokctl's too, with KWOK_WORKDIR at the data folder."""
        return self.data_dir.resolve() / "clusters" / self.name

    @property
    def lock(self) -> Path:
        """One lock for all clusters: kwokctl picks free ports without holding them."""
        return self.data_dir.resolve() / "clusters.lock"

    @property
    def marker(self) -> Path:
        """Our own file."""
        return self.root / "kwokfleet.json"

    @property
    def kwokctl_config(self) -> Path:
        """What we tell kwokctl."""
        return self.root / "kwokctl.yaml"

    @property
    def saved_config(self) -> Path:
        """What kwokctl made of it: components, flags and ports."""
        return self.root / "kwok.yaml"

    @property
    def kubeconfig(self) -> Path:
        """For clients."""
        return self.root / "kubeconfig.yaml"

    def program(self, component: str) -> Path:
        """Return the link to the component's binary, by which kwokctl starts it."""
        return self.root / "bin" / component

    def pki(self, file: str) -> Path:
        """Return the path of a certificate or key."""
        return self.root / "pki" / file

    def pid_file(self, component: str) -> Path:
        """Return where kwokctl wrote the component's process id."""
        return self.root / "pids" / f"{component}.pid"

    def log(self, component: str) -> Path:
        """Return the component's log."""
        return self.root / "logs" / f"{component}.log"

    def previous_log(self, component: str) -> Path:
        """Return the log of the component's life before this one."""
        return self.root / "logs" / f"{component}.previous.log"


def cluster_folder(data_dir: Path, name: str) -> ClusterFolder:
    """Return the folder of the cluster *name*, if that can be a name."""
    if not _NAME.fullmatch(name):
        raise errors.InputError(
            f"{name!r} cannot be a cluster's name",
            hint="use up to 40 lower-case letters, digits and hyphens, a letter or digit at both ends",
        )
    if unsafe := _UNSAFE.search(str(data_dir.resolve())):
        raise errors.InputError(
            f"the data folder {data_dir} has {unsafe[0]!r} in its name, which kwokctl cannot handle",
            hint="set KWOKFLEET_DATA_DIR to a folder without white space, quotes, commas and the like",
        )
    return ClusterFolder(data_dir, name)


def cluster_names(data_dir: Path) -> tuple[str, ...]:
    """List the clusters that we made, sorted."""
    markers = (data_dir / "clusters").glob("*/kwokfleet.json")
    return tuple(sorted(marker.parent.name for marker in markers))


def folder_state(where: ClusterFolder) -> tuple[FolderState, str]:
    """Say what *where* is to us, and why if it is damaged."""
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
        return FolderState.HALF_MADE, ""
    damage = _damage(where)
    return (FolderState.DAMAGED, damage) if damage else (FolderState.MADE, "")


def _damage(where: ClusterFolder) -> str:
    """Say what is wrong with a cluster that was finished once; empty if nothing is."""
    needed = (where.saved_config, where.kubeconfig, where.pki("ca.crt"), where.pki("admin.crt"), where.pki("admin.key"))
    gone = [str(path.relative_to(where.root)) for path in needed if not path.is_file() or not path.stat().st_size]
    if gone:
        return f"{', '.join(gone)} missing or empty"
    try:
        client_context(where)
    except OSError as exc:  # ssl.SSLError is one
        return f"its certificates cannot be used ({exc})"
    return ""


def client_context(where: ClusterFolder) -> ssl.SSLContext:
    """Make the TLS context of the cluster's administrator."""
    context = ssl.create_default_context(cafile=str(where.pki("ca.crt")))
    context.load_cert_chain(where.pki("admin.crt"), where.pki("admin.key"))
    return context


def differences(made: Spec, wanted: Spec) -> Iterator[str]:
    """Put into words where *wanted* is not what was *made*; what it leaves open is as made."""
    if wanted.port and made.port != wanted.port:
        yield f"--port {made.port} then, {wanted.port} now"
    if wanted.scheduler_config and made.scheduler_config != wanted.scheduler_config:
        yield f"--kube-scheduler-config {made.scheduler_config or 'none'} then, {wanted.scheduler_config} now"
    elif wanted.scheduler_config and made.scheduler_config_digest != wanted.scheduler_config_digest:
        yield f"{made.scheduler_config} has changed since"
    if wanted.extra_args and _by_component(made) != _by_component(wanted):
        then, now = (", ".join("=".join(each) for each in spec.extra_args) or "none" for spec in (made, wanted))
        yield f"--extra-args {then} then, {now} now"
    then_from = dict(made.binaries)
    for component, path in wanted.binaries:
        if path != then_from[component]:
            yield f"{component} from {then_from[component]} then, from {path} now"


def _by_component(spec: Spec) -> list[tuple[str, str, str]]:
    """Sort flags by component; among those of one component the order counts, the last wins."""
    return sorted(spec.extra_args, key=lambda each: each[0])


def write_record(where: ClusterFolder, record: ClusterRecord) -> None:
    """Write our marker, atomically."""
    where.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = where.marker.with_suffix(".part")
    part.write_text(json.dumps({"madeBy": MADE_BY, **asdict(record)}, indent=2) + "\n")
    part.replace(where.marker)


def read_record(where: ClusterFolder) -> ClusterRecord:
    """Read our marker back."""
    raw = json.loads(where.marker.read_text())
    if raw["madeBy"] != MADE_BY:
        raise ValueError(f"made by {raw['madeBy']}")
    spec = raw["spec"] | {
        "extra_args": tuple(tuple(each) for each in raw["spec"]["extra_args"]),
        "binaries": tuple(tuple(each) for each in raw["spec"]["binaries"]),
    }
    if {name for name, _ in spec["binaries"]} != {binary.name for binary in versions.BINARIES}:
        raise ValueError("it lists other binaries")
    return ClusterRecord(finished=bool(raw["finished"]), spec=Spec(**spec), ports=Ports(**raw["ports"]))


def ports_of_others(where: ClusterFolder) -> frozenset[int]:
    """List the ports that other clusters in the same data folder count on, running or not."""
    taken: set[int] = set()
    for name in cluster_names(where.data_dir):
        if name != where.name:
            with suppress(ValueError, KeyError, TypeError, OSError):
                taken.update(asdict(read_record(ClusterFolder(where.data_dir, name)).ports).values())
    return frozenset(taken)
