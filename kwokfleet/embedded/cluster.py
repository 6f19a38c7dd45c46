"""Life cycle of the embedded cluster: up, restart, down, status.

`up` leaves a healthy cluster; if it cannot create a new one, it leaves no files. It can be repeated after any crash:
it checks processes and files instead of a record of the last command.
"""

import hashlib
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from kwokfleet import errors, settings
from kwokfleet.embedded import binaries, health, kwokctl, locks, ports, processes, progress, state, versions
from kwokfleet.embedded.progress import ProgressPhase, ProgressReporter, ProgressUpdate

READY_DEADLINE_S = 90
WAIT_FOR_OTHER_S = 300
NEEDED_BYTES = 256 << 20
"""etcd reserves 128 MB at the start."""


class ClusterCondition(StrEnum):
    """Condition of a cluster."""

    ABSENT = "absent"
    STARTING = "starting"
    """Another command is creating it."""
    RUNNING = "running"
    UNHEALTHY = "unhealthy"
    """A component does not run or does not answer."""
    STOPPED = "stopped"
    BROKEN = "broken"
    """Its folder is foreign, incomplete or damaged."""


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """Current state of a component."""

    name: str
    port: int
    running: processes.RunningProcess | None
    healthy: bool


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """Current state of a cluster."""

    name: str
    condition: ClusterCondition
    detail: str = ""
    version: str = ""
    """Kubernetes version of the API server; empty if it does not answer."""
    kubeconfig: Path | None = None
    components: tuple[ComponentStatus, ...] = ()


def up(config: settings.Settings, name: str, spec: state.Spec, report: ProgressReporter) -> ClusterStatus:
    """Create the cluster *name*, or start missing components, and wait until it is healthy."""
    where = state.cluster_folder(config.data_dir, name)
    spec = _check_scheduler_config(spec)
    programs = cluster_binaries(config, where, report)
    paths = tuple((binary.name, str(programs.path(binary.name))) for binary in versions.BINARIES)
    with _exclusive(where, report):
        folder_state, detail = state.folder_state(where)
        match folder_state:
            case state.FolderState.FOREIGN | state.FolderState.DAMAGED:
                raise _refusal(where, folder_state, detail)
            case state.FolderState.COMPLETE:
                requested = replace(spec, binaries=paths if config.bin_dir else ())
                _resume(where, requested, programs, report)
            case _:
                _remove(where)
                _create(where, replace(spec, binaries=paths), programs, report)
        return status(config, name)


def restart(config: settings.Settings, name: str, components: Sequence[str], report: ProgressReporter) -> ClusterStatus:
    """Restart *components* with the same flags and their current binaries."""
    where = state.cluster_folder(config.data_dir, name)
    with _exclusive(where, report):
        running = processes.find_processes(where)
        processes.stop(where, [process for process in running if process.component in components])
    return up(config, name, state.Spec(), report)


def cluster_binaries(
    config: settings.Settings, where: state.ClusterFolder, report: ProgressReporter
) -> binaries.Binaries:
    """Return the binaries of an existing cluster, unless settings name others; else find or build them."""
    if not config.bin_dir and state.folder_state(where)[0] is state.FolderState.COMPLETE:
        paths = {name: Path(path) for name, path in state.read_record(where).spec.binaries}
        if all(path.exists() for path in paths.values()):
            return binaries.Binaries({name: binaries.LocatedBinary(path, "cluster") for name, path in paths.items()})
    return binaries.ensure(config, report)


def down(config: settings.Settings, name: str, report: ProgressReporter) -> bool:
    """Stop the cluster *name* and remove its files; return False if there was none."""
    where = state.cluster_folder(config.data_dir, name)
    with _exclusive(where, report):
        folder_state, detail = state.folder_state(where)
        if folder_state is state.FolderState.FOREIGN:
            raise _refusal(where, folder_state, detail)
        return _remove(where) or folder_state is not state.FolderState.ABSENT


def status(config: settings.Settings, name: str) -> ClusterStatus:
    """Return the status of the cluster *name*."""
    where = state.cluster_folder(config.data_dir, name)
    try:
        return _status(where)
    except FileNotFoundError:  # another command is removing it
        return ClusterStatus(name, ClusterCondition.ABSENT)


def _status(where: state.ClusterFolder) -> ClusterStatus:
    name = where.name
    folder_state, detail = state.folder_state(where)
    if folder_state is state.FolderState.ABSENT:
        return ClusterStatus(name, ClusterCondition.ABSENT)
    if folder_state is state.FolderState.INCOMPLETE and locks.is_held(where.lock):
        return ClusterStatus(name, ClusterCondition.STARTING)
    if folder_state is not state.FolderState.COMPLETE:
        return ClusterStatus(name, ClusterCondition.BROKEN, detail or f"{where.root} is {folder_state}")
    components = tuple(_components(where))
    if all(component.healthy for component in components):
        condition = ClusterCondition.RUNNING
    elif any(component.running for component in components):
        condition = ClusterCondition.UNHEALTHY
    else:
        condition = ClusterCondition.STOPPED
    version = health.version(where, state.read_record(where).ports)
    return ClusterStatus(name, condition, "", version, where.kubeconfig, components)


def _components(where: state.ClusterFolder) -> Iterator[ComponentStatus]:
    cluster_ports = state.read_record(where).ports
    running = {process.component: process for process in processes.find_processes(where)}

    def check(name: str) -> ComponentStatus:
        alive = running.get(name)
        healthy = alive is not None and health.answers(where, name, cluster_ports)
        return ComponentStatus(name, cluster_ports.of(name), alive, healthy)

    # In parallel: a component without its API server may take the whole timeout.
    with ThreadPoolExecutor(len(versions.COMPONENTS)) as pool:
        yield from pool.map(check, versions.COMPONENTS)


def _check_scheduler_config(spec: state.Spec) -> state.Spec:
    """Check the scheduler configuration; return the Spec with its absolute path and digest."""
    if not spec.scheduler_config:
        return spec
    path = Path(spec.scheduler_config).absolute()
    try:
        if not path.is_file():
            raise _scheduler_config_error(path, "Is a directory" if path.is_dir() else "No such file")
        content = path.read_bytes()
        kinds = [document["kind"] for document in YAML(typ="safe", pure=True).load_all(content)]
    except OSError as exc:
        raise _scheduler_config_error(path, exc.strerror or str(exc)) from exc
    except MarkedYAMLError as exc:
        mark = exc.problem_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise _scheduler_config_error(place, f"invalid YAML: {exc.problem}") from exc
    except (YAMLError, TypeError, KeyError, UnicodeError) as exc:
        raise _scheduler_config_error(path, "not a manifest with a kind") from exc
    if kinds != ["KubeSchedulerConfiguration"]:
        raise _scheduler_config_error(path, f"it contains {', '.join(map(str, kinds)) or 'nothing'}")
    return replace(spec, scheduler_config=str(path), scheduler_config_digest=hashlib.sha256(content).hexdigest())


def _scheduler_config_error(path: Path | str, reason: str) -> errors.InputError:
    return errors.InputError(
        f"cannot use the scheduler configuration {path}: {reason}",
        hint="--kube-scheduler-config needs a file with one KubeSchedulerConfiguration",
    )


def _create(
    where: state.ClusterFolder, spec: state.Spec, programs: binaries.Binaries, report: ProgressReporter
) -> None:
    _require_space(where.data_dir)
    cluster_ports = ports.choose(spec.port, state.ports_of_others(where), str(where.root))
    record = state.ClusterRecord(finished=False, spec=spec, ports=cluster_ports)
    try:
        state.write_record(where, record)
        kwokctl.write_configuration(where, spec, cluster_ports)
        _start(where, cluster_ports, programs, report, create=True)
        state.write_record(where, replace(record, finished=True))
    except BaseException:  # also Ctrl-C: an incomplete cluster cannot be used
        _remove(where)
        raise


def _resume(
    where: state.ClusterFolder, spec: state.Spec, programs: binaries.Binaries, report: ProgressReporter
) -> None:
    record = state.read_record(where)
    _require_same(where, record.spec, spec)
    running = processes.find_processes(where)
    strays = [process for process in running if process.component == "kwokctl"]
    processes.stop(where, strays)
    alive = [process for process in running if process not in strays]
    processes.correct_pid_files(where, alive)
    _require_space(where.data_dir)
    dead = [name for name in versions.COMPONENTS if name not in {process.component for process in alive}]
    _require_ports(where, record.ports, dead)
    _rotate_logs(where, dead)
    kwokctl.write_configuration(where, record.spec, record.ports)
    try:
        _start(where, record.ports, programs, _only_started(dead, report), create=False)
    except BaseException:  # components that ran before keep running
        pids = {process.pid for process in alive}
        processes.stop(where, [process for process in processes.find_processes(where) if process.pid not in pids])
        raise


def _only_started(dead: Sequence[str], report: ProgressReporter) -> ProgressReporter:
    """Return a reporter that hides the phases of components that were already running."""

    def filtered(update: ProgressUpdate) -> None:
        if update.subject in dead:
            report(update)
        elif update.phase is ProgressPhase.DONE:
            report(replace(update, detail="already running"))

    return filtered


def _start(
    where: state.ClusterFolder,
    cluster_ports: state.Ports,
    programs: binaries.Binaries,
    report: ProgressReporter,
    *,
    create: bool,
) -> None:
    for component in versions.COMPONENTS:
        report(ProgressUpdate(component, ProgressPhase.STARTING, usual_s=4))
    start = time.monotonic()
    until = start + READY_DEADLINE_S

    def on_ready(component: str) -> None:
        detail = f"ready after {time.monotonic() - start:.1f} s"
        report(ProgressUpdate(component, ProgressPhase.DONE, detail))

    while True:
        try:
            with closing(kwokctl.KwokctlProcess(where, programs, create=create)) as starter:
                return health.wait_until_ready(where, cluster_ports, starter, until=until, on_ready=on_ready)
        except health.ApiServerTimeoutError:
            if time.monotonic() > until:
                raise
            processes.correct_pid_files(where, processes.find_processes(where))
            create = False


def _require_same(where: state.ClusterFolder, current: state.Spec, requested: state.Spec) -> None:
    differences = [*state.differences(current, requested)]
    programs = map(where.program, versions.COMPONENTS)
    differences += [f"{program} is missing" for program in programs if not program.exists()]
    if differences:
        raise errors.NotOursError(
            f"cluster {where.name} was created with other options: {'; '.join(differences)}",
            hint=f"omit these options, or create the cluster again: {_recreate_command(where)}",
        )


def _recreate_command(where: state.ClusterFolder) -> str:
    return f"kwokfleet cluster down --name {where.name}, then up"


def _rotate_logs(where: state.ClusterFolder, dead: Sequence[str]) -> None:
    """Keep the logs of ended components: kwokctl truncates a log at the start."""
    where.log("any").parent.mkdir(exist_ok=True)
    for component in dead:
        if where.log(component).exists():
            where.log(component).replace(where.previous_log(component))


def _require_space(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise errors.HostError(
            f"a cluster needs {NEEDED_BYTES >> 20} MB; {folder} has {free >> 20} MB free",
            hint="free disk space, or set KWOKFLEET_DATA_DIR to a larger disk",
        )


def _require_ports(where: state.ClusterFolder, cluster_ports: state.Ports, dead: Sequence[str]) -> None:
    hint = f"end that program, or create the cluster again on other ports: {_recreate_command(where)}"
    for component in dead:
        ports.require_free(cluster_ports.of(component), component, hint)
    if "etcd" in dead:
        ports.require_free(cluster_ports.etcd_peer, "etcd", hint)


def _remove(where: state.ClusterFolder) -> bool:
    """Kill the processes and remove the files of the cluster; return False if there were none."""
    ran = processes.stop_all(where)
    existed = where.root.exists()
    if existed:
        shutil.rmtree(where.root)
    return existed or ran


@contextmanager
def _exclusive(where: state.ClusterFolder, report: ProgressReporter) -> Iterator[None]:
    """Hold the lock of all clusters; remove empty folders at the end."""
    on_wait = progress.waiting(report, "cluster", "changes a cluster")
    try:
        with locks.exclusive(where.lock, deadline_s=WAIT_FOR_OTHER_S, on_wait=on_wait):
            try:
                yield
            finally:
                _remove_if_empty(where)
    except OSError as exc:
        raise errors.HostError(
            f"cannot use {exc.filename or where.root}: {exc.strerror or exc}",
            hint="free disk space, fix the permissions, or set KWOKFLEET_DATA_DIR to another folder",
        ) from exc


def _remove_if_empty(where: state.ClusterFolder) -> None:
    with suppress(OSError):
        if where.root.parent.exists():
            where.root.parent.rmdir()
        where.lock.unlink()
        where.data_dir.rmdir()


def _refusal(where: state.ClusterFolder, folder_state: state.FolderState, detail: str) -> errors.NotOursError:
    if folder_state is state.FolderState.FOREIGN:
        return errors.NotOursError(
            f"{where.root} was not created by kwokfleet", hint="move that folder, or use another name: --name"
        )
    return errors.NotOursError(
        f"{where.root} is damaged: {detail}", hint=f"create the cluster again: {_recreate_command(where)}"
    )
