"""Which processes belong to an embedded cluster: found by what they run, never by a bare number.

kwokctl trusts its pid files: after a reboot or a long time a number in one may belong to a stranger,
which kwokctl would take for its component, or kill. A process is ours if it is one of the
cluster's programs and its command line names a file in the cluster's folder.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from kwokfleet import errors
from kwokfleet.embedded import state, versions

STOP_DEADLINE_S = 10
STOP_ROUNDS = 5
_PROGRAMS = frozenset((*versions.COMPONENTS, "kwokctl"))


@dataclass(frozen=True, slots=True)
class Running:
    """One process of a cluster."""

    component: str
    pid: int
    started: float
    memory: int
    """Resident bytes."""


def find(where: state.Folder) -> tuple[Running, ...]:
    """List the processes of the cluster at *where*, sorted by component."""
    running = (_running(process, f"{where.root}/") for process in psutil.process_iter())
    return tuple(sorted((each for each in running if each), key=lambda each: (each.component, each.pid)))


def _running(process: psutil.Process, root: str) -> Running | None:
    try:
        command = process.cmdline()  # empty for a zombie
        name = Path(command[0]).name if command else ""
        if name not in _PROGRAMS or not any(root in argument for argument in command):
            return None
        return Running(name, process.pid, process.create_time(), process.memory_info().rss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def stop(where: state.Folder, wanted: Sequence[Running]) -> None:
    """End the processes *wanted*.

    By SIGKILL, as kwokctl does: an API server asked politely takes 5 s to say goodbye to nobody,
    and etcd's log is made to survive worse.
    """
    alive = [process for each in wanted if (process := _same(each))]
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=STOP_DEADLINE_S)
    for each in wanted:
        where.pid_file(each.component).unlink(missing_ok=True)


def stop_all(where: state.Folder) -> bool:
    """End every process of the cluster; False if there was none.

    Looks again after each round: a kwokctl whose `up` was killed may start one more while it dies.
    """
    first = running = find(where)
    for _ in range(STOP_ROUNDS):
        if not running:
            return bool(first)
        stop(where, running)
        running = find(where)
    raise errors.HostError(
        f"process {running[0].pid} ({running[0].component}) does not end", hint="does it belong to another user?"
    )


def _same(each: Running) -> psutil.Process | None:
    """Return the live process, unless its number has gone to another since."""
    try:
        process = psutil.Process(each.pid)
        return process if process.create_time() == each.started else None
    except psutil.NoSuchProcess:
        return None


def correct_pid_files(where: state.Folder, running: Sequence[Running]) -> None:
    """Make kwokctl's pid files true: drop those of dead processes, add those it had no time to write."""
    live = {each.component: str(each.pid) for each in running}
    for component in versions.COMPONENTS:
        file = where.pid_file(component)
        if component in live:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(live[component])
        else:
            file.unlink(missing_ok=True)
