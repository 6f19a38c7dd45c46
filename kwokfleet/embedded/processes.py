"""Processes of an embedded cluster, identified by their command line, not by pid files alone.

After a reboot a pid in kwokctl's pid files may belong to another process, and kwokctl would kill it. A process
belongs to the cluster if it runs a program through its link in the cluster's folder, as kwokctl starts components;
or if its pid is in a pid file and a flag names a file of that folder; or if it is the kwokctl of this cluster.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from kwokfleet import errors
from kwokfleet.embedded import state, versions

STOP_DEADLINE_S = 10
STOP_ATTEMPTS = 5
POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class RunningProcess:
    """A process of a cluster."""

    component: str
    pid: int
    started: float
    memory: int
    """Resident bytes."""


def find_processes(where: state.ClusterFolder) -> tuple[RunningProcess, ...]:
    """Return the processes of the cluster at *where*, sorted by component."""
    components = _read_pid_files(where)
    candidates = (_running(process, where, components.get(process.pid, "")) for process in psutil.process_iter())
    running = [process for process in candidates if process]
    return tuple(sorted(running, key=lambda process: (process.component, process.pid)))


def _read_pid_files(where: state.ClusterFolder) -> dict[int, str]:
    """Return the component of each pid, by kwokctl's pid files."""
    components = {}
    for component in versions.COMPONENTS:
        with suppress(FileNotFoundError, ValueError):
            components[int(where.pid_file(component).read_text())] = component
    return components


def _running(process: psutil.Process, where: state.ClusterFolder, pid_file_component: str) -> RunningProcess | None:
    try:
        command = process.cmdline()  # empty for a zombie
        name = _component(command, where) or (pid_file_component if _uses(command, where) else "")
        return RunningProcess(name, process.pid, process.create_time(), process.memory_info().rss) if name else None
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _component(command: Sequence[str], where: state.ClusterFolder) -> str:
    """Return the component that a command line runs; empty if it is not of this cluster."""
    programs = {str(where.program(name)): name for name in versions.COMPONENTS}
    for word in command[:2]:  # the second word, if the first is the interpreter of a script
        if word in programs:
            return programs[word]
    is_starter = bool(command) and Path(command[0]).name == "kwokctl" and str(where.kwokctl_config) in command
    return "kwokctl" if is_starter else ""


def _uses(command: Sequence[str], where: state.ClusterFolder) -> bool:
    """Return whether a flag names a file of this cluster.

    Together with a pid file this is enough: a wrapper script may have replaced the program.
    """
    return any(word.partition("=")[2].startswith(f"{where.root}/") for word in command)


def stop(where: state.ClusterFolder, running: Sequence[RunningProcess]) -> None:
    """Kill processes.

    SIGKILL, as kwokctl does: on SIGTERM the API server waits 5 s for clients, and etcd's log survives a crash.
    """
    alive = [process for target in running if (process := _same_process(target))]
    for process in alive:
        _kill(process)
    until = time.monotonic() + STOP_DEADLINE_S
    while any(_is_alive(process) for process in alive) and time.monotonic() < until:
        time.sleep(POLL_S)
    for target in running:
        where.pid_file(target.component).unlink(missing_ok=True)


def stop_all(where: state.ClusterFolder) -> bool:
    """Kill every process of the cluster; return False if there was none.

    Repeats the search: a kwokctl whose `up` was killed may start another component before it ends.
    """
    first = running = find_processes(where)
    for _ in range(STOP_ATTEMPTS):
        if not running:
            return bool(first)
        stop(where, running)
        running = find_processes(where)
    raise errors.DeadlineError(
        f"process {running[0].pid} ({running[0].component}) does not end",
        hint="find out what blocks it, then try again",
    )


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied as exc:
        raise errors.HostError(
            f"process {process.pid} of this cluster belongs to another user", hint="stop the cluster as that user"
        ) from exc


def _is_alive(process: psutil.Process) -> bool:
    """Return whether any thread still runs.

    A zombie does not run. But a process whose first thread ended before the others also looks like a zombie, and
    still holds its ports.
    """
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    return False


def _same_process(running: RunningProcess) -> psutil.Process | None:
    """Return the live process, or None if its pid now belongs to another."""
    try:
        process = psutil.Process(running.pid)
        return process if process.create_time() == running.started else None
    except psutil.NoSuchProcess:
        return None


def correct_pid_files(where: state.ClusterFolder, running: Sequence[RunningProcess]) -> None:
    """Correct kwokctl's pid files: remove those of dead processes, add missing ones."""
    live = {process.component: str(process.pid) for process in running}
    for component in versions.COMPONENTS:
        file = where.pid_file(component)
        if component in live:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(live[component])
        else:
            file.unlink(missing_ok=True)
