"""The embedded cluster's life: up, down, and how it is.

`up` leaves a healthy cluster or, when a new one could not be made, nothing at all. It is safe to
repeat, after any kind of death of any part, because it looks at the processes and files that are
there instead of trusting what the last command meant to do.
"""

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from kwokfleet import errors, settings
from kwokfleet.embedded import binaries, health, kwokctl, locks, ports, processes, progress, state, versions

READY_DEADLINE_S = 90
WAIT_FOR_OTHER_S = 300
NEEDED_BYTES = 256 << 20
"""etcd sets 128 MB aside before it stores anything."""


class ClusterCondition(StrEnum):
    """How a cluster is, in one word."""

    ABSENT = "absent"
    STARTING = "starting"
    """Some other command is making it right now."""
    RUNNING = "running"
    UNHEALTHY = "unhealthy"
    """Some component is not running or does not answer."""
    STOPPED = "stopped"
    BROKEN = "broken"
    """Its folder is foreign, half-made or damaged."""


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """One component as it is now."""

    name: str
    port: int
    running: processes.RunningProcess | None
    healthy: bool


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """One cluster as it is now."""

    name: str
    condition: ClusterCondition
    detail: str
    version: str
    """Of Kubernetes, as the API server says; empty if it does not answer."""
    kubeconfig: Path | None
    components: tuple[ComponentStatus, ...]


def up(config: settings.Settings, name: str, wanted: state.Spec, report: progress.ProgressReporter) -> ClusterStatus:
    """Make the cluster *name*, or bring it back, and wait until it is healthy."""
    where = state.cluster_folder(config.data_dir, name)
    wanted = _checked(wanted)
    tools = cluster_binaries(config, where, report)
    paths = tuple((each.name, str(tools.path(each.name))) for each in versions.BINARIES)
    with _exclusive(where, report):
        standing, detail = state.folder_state(where)
        match standing:
            case state.FolderState.FOREIGN | state.FolderState.DAMAGED:
                raise _refusal(where, standing, detail)
            case state.FolderState.MADE:
                given = replace(wanted, binaries=paths if config.bin_dir else ())
                _bring_back(where, given, tools, report)
            case _:
                _remove(where)
                _make(where, replace(wanted, binaries=paths), tools, report)
        return status(config, name)


def restart(
    config: settings.Settings, name: str, components: Sequence[str], report: progress.ProgressReporter
) -> ClusterStatus:
    """End *components* and start them again: the same flags, and whatever their binaries are now."""
    where = state.cluster_folder(config.data_dir, name)
    with _exclusive(where, report):
        processes.stop(where, [each for each in processes.find_processes(where) if each.component in components])
    return up(config, name, state.Spec(), report)


def cluster_binaries(
    config: settings.Settings, where: state.ClusterFolder, report: progress.ProgressReporter
) -> binaries.Binaries:
    """Return the binaries that the cluster was made with, if nobody asks for others; else get them."""
    if not config.bin_dir and state.folder_state(where)[0] is state.FolderState.MADE:
        made = binaries.Binaries(
            {each: binaries.LocatedBinary(Path(path), "made") for each, path in state.read_record(where).spec.binaries}
        )
        if all(found.path.exists() for found in made.found.values()):
            return made
    return binaries.ensure(config, report)


def down(config: settings.Settings, name: str, report: progress.ProgressReporter) -> bool:
    """Stop the cluster *name* and remove all its files; False if there was nothing to remove."""
    where = state.cluster_folder(config.data_dir, name)
    with _exclusive(where, report):
        standing, detail = state.folder_state(where)
        if standing is state.FolderState.FOREIGN:
            raise _refusal(where, standing, detail)
        return _remove(where) or standing is not state.FolderState.ABSENT


def status(config: settings.Settings, name: str) -> ClusterStatus:
    """Say how the cluster *name* is, without changing anything."""
    where = state.cluster_folder(config.data_dir, name)
    try:
        return _status(where)
    except FileNotFoundError:  # somebody takes it down while we look
        return ClusterStatus(name, ClusterCondition.ABSENT, "", "", None, ())


def _status(where: state.ClusterFolder) -> ClusterStatus:
    name = where.name
    standing, detail = state.folder_state(where)
    if standing is state.FolderState.ABSENT:
        return ClusterStatus(name, ClusterCondition.ABSENT, "", "", None, ())
    if standing is state.FolderState.HALF_MADE and locks.is_held(where.lock):
        return ClusterStatus(name, ClusterCondition.STARTING, "", "", None, ())
    if standing is not state.FolderState.MADE:
        return ClusterStatus(name, ClusterCondition.BROKEN, detail or f"{where.root} is {standing}", "", None, ())
    components = tuple(_components(where))
    if all(each.healthy for each in components):
        condition = ClusterCondition.RUNNING
    elif any(each.running for each in components):
        condition = ClusterCondition.UNHEALTHY
    else:
        condition = ClusterCondition.STOPPED
    return ClusterStatus(
        name, condition, "", health.version(where, state.read_record(where).ports), where.kubeconfig, components
    )


def _components(where: state.ClusterFolder) -> Iterator[ComponentStatus]:
    chosen = state.read_record(where).ports
    running = {each.component: each for each in processes.find_processes(where)}

    def look_at(name: str) -> ComponentStatus:
        alive = running.get(name)
        healthy = alive is not None and health.answers(where, name, chosen)
        return ComponentStatus(name, getattr(chosen, name.replace("-", "_")), alive, healthy)

    # At once: a component that has lost another may take its whole time to not answer.
    with ThreadPoolExecutor(len(versions.COMPONENTS)) as pool:
        yield from pool.map(look_at, versions.COMPONENTS)


def _checked(wanted: state.Spec) -> state.Spec:
    """Complete *wanted* by what is in the file it names."""
    if not wanted.scheduler_config:
        return wanted
    path = Path(wanted.scheduler_config).absolute()
    try:
        if not path.is_file():
            raise _no_scheduler_config(path, "Is a directory" if path.is_dir() else "No such file")
        content = path.read_bytes()
        kinds = [document["kind"] for document in YAML(typ="safe", pure=True).load_all(content)]
    except OSError as exc:
        raise _no_scheduler_config(path, exc.strerror or str(exc)) from exc
    except MarkedYAMLError as exc:
        mark = exc.problem_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise _no_scheduler_config(place, f"it is not YAML: {exc.problem}") from exc
    except (YAMLError, TypeError, KeyError, UnicodeError) as exc:
        raise _no_scheduler_config(path, "it is not a manifest with a kind") from exc
    if kinds != ["KubeSchedulerConfiguration"]:
        raise _no_scheduler_config(path, f"it holds {', '.join(map(str, kinds)) or 'nothing'}")
    return replace(wanted, scheduler_config=str(path), scheduler_config_digest=hashlib.sha256(content).hexdigest())


def _no_scheduler_config(path: Path | str, why: str) -> errors.InputError:
    return errors.InputError(
        f"cannot use the scheduler's configuration {path}: {why}",
        hint="--kube-scheduler-config takes a file with one KubeSchedulerConfiguration",
    )


def _make(
    where: state.ClusterFolder, wanted: state.Spec, tools: binaries.Binaries, report: progress.ProgressReporter
) -> None:
    _require_space(where.data_dir)
    chosen = ports.choose(wanted.port, state.ports_of_others(where), str(where.root))
    record = state.ClusterRecord(finished=False, spec=wanted, ports=chosen)
    try:
        state.write_record(where, record)
        kwokctl.write_configuration(where, wanted, chosen)
        _start(where, chosen, tools, report, create=True)
        state.write_record(where, replace(record, finished=True))
    except BaseException:  # also Ctrl-C: a cluster that was never finished is of no use to anybody
        _remove(where)
        raise


def _bring_back(
    where: state.ClusterFolder, wanted: state.Spec, tools: binaries.Binaries, report: progress.ProgressReporter
) -> None:
    record = state.read_record(where)
    _require_same(where, record.spec, wanted)
    running = processes.find_processes(where)
    strays = [each for each in running if each.component == "kwokctl"]
    processes.stop(where, strays)
    alive = [each for each in running if each not in strays]
    processes.correct_pid_files(where, alive)
    _require_space(where.data_dir)
    dead = [name for name in versions.COMPONENTS if name not in {each.component for each in alive}]
    _require_ports(where, record.ports, dead)
    _keep_logs(where, dead)
    kwokctl.write_configuration(where, record.spec, record.ports)
    try:
        _start(where, record.ports, tools, _only(dead, report), create=False)
    except BaseException:  # what ran before goes on: `up` never makes things worse
        processes.stop(
            where, [each for each in processes.find_processes(where) if each.pid not in {old.pid for old in alive}]
        )
        raise


def _only(dead: Sequence[str], report: progress.ProgressReporter) -> progress.ProgressReporter:
    """Report of what is started, not of what was running all along."""

    def filtered(update: progress.ProgressUpdate) -> None:
        if update.subject in dead:
            report(update)
        elif update.phase is progress.ProgressPhase.DONE:
            report(replace(update, detail="was running"))

    return filtered


def _start(
    where: state.ClusterFolder,
    chosen: state.Ports,
    tools: binaries.Binaries,
    report: progress.ProgressReporter,
    *,
    create: bool,
) -> None:
    for component in versions.COMPONENTS:
        report(progress.ProgressUpdate(component, progress.ProgressPhase.STARTING, usual_s=4))
    on_ready = _reporter(report)
    until = time.monotonic() + READY_DEADLINE_S
    while True:
        try:
            with closing(kwokctl.KwokctlProcess(where, tools, create=create)) as starter:
                return health.wait_until_ready(where, chosen, starter, until=until, on_ready=on_ready)
        except health.ApiServerTimeoutError:
            if time.monotonic() > until:
                raise
            processes.correct_pid_files(where, processes.find_processes(where))
            create = False


def _reporter(report: progress.ProgressReporter) -> Callable[[str], None]:
    start = time.monotonic()

    def on_ready(component: str) -> None:
        report(
            progress.ProgressUpdate(
                component, progress.ProgressPhase.DONE, f"ready after {time.monotonic() - start:.1f} s"
            )
        )

    return on_ready


def _require_same(where: state.ClusterFolder, made: state.Spec, wanted: state.Spec) -> None:
    differences = [*state.differences(made, wanted)]
    differences += [
        f"{where.program(name)} is gone" for name in versions.COMPONENTS if not where.program(name).exists()
    ]
    if differences:
        raise errors.NotOursError(
            f"cluster {where.name} was made with other options: {'; '.join(differences)}",
            hint=f"leave them out, or make it anew: {_anew(where)}",
        )


def _anew(where: state.ClusterFolder) -> str:
    return f"kwokfleet cluster down --name {where.name}, then up"


def _keep_logs(where: state.ClusterFolder, dead: Sequence[str]) -> None:
    """Keep why a component ended: kwokctl empties its log when it starts it again."""
    where.log("any").parent.mkdir(exist_ok=True)
    for component in dead:
        if where.log(component).exists():
            where.log(component).replace(where.previous_log(component))


def _require_space(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise errors.HostError(
            f"a cluster needs {NEEDED_BYTES >> 20} MB to start with; {folder} has {free >> 20} MB left",
            hint="free some space, or set KWOKFLEET_DATA_DIR to a larger disk",
        )


def _require_ports(where: state.ClusterFolder, chosen: state.Ports, dead: Sequence[str]) -> None:
    hint = f"end that program, or make the cluster anew on other ports: {_anew(where)}"
    for component in dead:
        ports.require_free(getattr(chosen, component.replace("-", "_")), component, hint)
    if "etcd" in dead:
        ports.require_free(chosen.etcd_peer, "etcd", hint)


def _remove(where: state.ClusterFolder) -> bool:
    """Stop and delete whatever there is of the cluster; False if there was nothing."""
    ran = processes.stop_all(where)
    existed = where.root.exists()
    if existed:
        shutil.rmtree(where.root)
    return existed or ran


@contextmanager
def _exclusive(where: state.ClusterFolder, report: progress.ProgressReporter) -> Iterator[None]:
    """Work on clusters alone; afterwards leave no folder or lock without a cluster."""

    def on_wait(holder: str) -> None:
        report(
            progress.ProgressUpdate(
                "cluster", progress.ProgressPhase.NOTE, f"{holder} is at work on a cluster; waiting"
            )
        )

    try:
        with locks.exclusive(where.lock, deadline_s=WAIT_FOR_OTHER_S, on_wait=on_wait):
            try:
                yield
            finally:
                _remove_if_empty(where)
    except OSError as exc:
        raise errors.HostError(
            f"cannot work in {exc.filename or where.root}: {exc.strerror or exc}",
            hint="free some space or mend its permissions, or set KWOKFLEET_DATA_DIR to another folder",
        ) from exc


def _remove_if_empty(where: state.ClusterFolder) -> None:
    with suppress(OSError):
        if where.root.parent.exists():
            where.root.parent.rmdir()
        where.lock.unlink()
        where.data_dir.rmdir()


def _refusal(where: state.ClusterFolder, standing: state.FolderState, detail: str) -> errors.NotOursError:
    if standing is state.FolderState.FOREIGN:
        return errors.NotOursError(
            f"{where.root} was not made by kwokfleet",
            hint="move it away, or choose another name: --name",
        )
    return errors.NotOursError(
        f"{where.root} is damaged: {detail}",
        hint=f"its state cannot be used; make it anew: {_anew(where)}",
    )
