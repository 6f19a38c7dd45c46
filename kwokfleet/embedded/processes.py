"""Which processes belong to an embedded cluster: found by what they run, never by a bare number.

kwokctl trusts its pid files: after a reboot or a long time a number in one may belong to a stranger,
which kwokctl would take for its component, or kill. A process is ours if it runs a program by its
link in the cluster's folder, which is how kwokctl starts components; or has a file of that folder in
its flags and stands in a pid file; or is the kwokctl we started.
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
STOP_ROUNDS = 5
POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class RunningProcess:
    """One process of a cluster."""

    component: str
    pid: int
    started: float
    memory: int
    """Resident bytes."""


def find_processes(where: state.ClusterFolder) -> tuple[RunningProcess, ...]:
    """List the processes of the cluster at *where*, sorted by component."""
    noted = _noted(where)
    running = (_running(process, where, noted.get(process.pid, "")) for process in psutil.process_iter())
    return tuple(sorted((each for each in running if each), key=lambda each: (each.component, each.pid)))


def _noted(where: state.ClusterFolder) -> dict[int, str]:
    """Read kwokctl's pid files: which process it says is which component."""
    noted = {}
    for component in versions.COMPONENTS:
        with suppress(FileNotFoundError, ValueError):
            noted[int(where.pid_file(component).read_text())] = component
    return noted


def _running(process: psutil.Process, where: state.ClusterFolder, noted: str) -> RunningProcess | None:
    try:
        command = process.cmdline()  # empty for a zombie
        name = _component(command, where) or (noted if _uses(command, where) else "")
        return RunningProcess(name, process.pid, process.create_time(), process.memory_info().rss) if name else None
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _component(command: Sequence[str], where: state.ClusterFolder) -> str:
    """Return which component a command line runs; empty if none of this cluster's."""
    programs = {str(where.program(name)): name for name in versions.COMPONENTS}
    for word in command[:2]:  # the second, when the program is a script and the first its interpreter
        if word in programs:
            return programs[word]
    is_starter = bool(command) and Path(command[0]).name == "kwokctl" and str(where.kwokctl_config) in command
    return "kwokctl" if is_starter else ""


def _uses(command: Sequence[str], where: state.ClusterFolder) -> bool:
    """Tell whether a flag names a file of this cluster.

    With kwokctl's word for it that is enough: the program may have become another, as a wrapper does.
    """
    return any(word.partition("=")[2].startswith(f"{where.root}/") for word in command)


def stop(where: state.ClusterFolder, wanted: Sequence[RunningProcess]) -> None:
    """End the processes *wanted*.

    By SIGKILL, as kwokctl does: an API server asked politely takes 5 s to say goodbye to nobody,
    and etcd's log is made to survive worse.
    """
    alive = [process for each in wanted if (process := _same(each))]
    for process in alive:
        _kill(process)
    until = time.monotonic() + STOP_DEADLINE_S
    while any(_is_alive(process) for process in alive) and time.monotonic() < until:
        time.sleep(POLL_S)
    for each in wanted:
        where.pid_file(each.component).unlink(missing_ok=True)


def stop_all(where: state.ClusterFolder) -> bool:
    """End every process of the cluster; False if there was none.

    Looks again after each round: a kwokctl whose `up` was killed may start one more while it dies.
    """
    first = running = find_processes(where)
    for _ in range(STOP_ROUNDS):
        if not running:
            return bool(first)
        stop(where, running)
        running = find_processes(where)
    raise errors.DeadlineError(
        f"process {running[0].pid} ({running[0].component}) does not end", hint="see what it waits for, then try again"
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
    """Tell whether any of it still runs.

    A dead process that nobody has collected yet does not; but one whose first thread has died before
    the others looks just like it, and still holds its ports.
    """
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    return False


def _same(each: RunningProcess) -> psutil.Process | None:
    """Return the live process, unless its number has gone to another since."""
    try:
        process = psutil.Process(each.pid)
        return process if process.create_time() == each.started else None
    except psutil.NoSuchProcess:
        return None


def correct_pid_files(where: state.ClusterFolder, running: Sequence[RunningProcess]) -> None:
    """Make kwokctl's pid files true: drop those of dead processes, add those it had no time to write."""
    live = {each.component: str(each.pid) for each in running}
    for component in versions.COMPONENTS:
        file = where.pid_file(component)
        if component in live:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(live[component])
        else:
            file.unlink(missing_ok=True)
