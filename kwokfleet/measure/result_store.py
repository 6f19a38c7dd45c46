"""Where Results are kept: a folder for each Run, readable without us.

ROOT/FLEET/WAVE/20261117T090000Z-RUN/result.json    the Result
                                     pods.ndjson    a line for each pod
                                     workloads.ndjson   a line for each workload that is no pod
                                     notes.ndjson   what was seen while it ran: for who goes on with it
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from kwokfleet import errors
from kwokfleet.measure import result
from kwokfleet.measure.result import PodTimes, Result, WorkloadTimes

RESULT, PODS, NOTES = "result.json", "pods.ndjson", "notes.ndjson"
WORKLOADS = "workloads.ndjson"
_TIME = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.:+]*")
"""What Fleets, Waves, Runs and their folders may be called: nothing that leads out of a folder, and no pattern."""


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A Run of which there is a folder."""

    folder: Path
    fleet: str
    wave: str
    run: str
    start: datetime

    def result(self) -> Result:
        """Return its Result; raise if there is none that can be read."""
        return load(self.folder / RESULT)

    def pods(self) -> Iterator[PodTimes]:
        """Yield its pods; none if that file is not there."""
        with contextlib.suppress(FileNotFoundError), (self.folder / PODS).open(encoding="utf-8") as lines:
            for line in lines:
                yield PodTimes.model_validate_json(line)

    def workloads(self) -> Iterator[WorkloadTimes]:
        """Yield its workloads that are no pods; none if that file is not there."""
        with contextlib.suppress(FileNotFoundError), (self.folder / WORKLOADS).open(encoding="utf-8") as lines:
            for line in lines:
                yield WorkloadTimes.model_validate_json(line)


def load(file: Path) -> Result:
    """Read a Result from a file, or from the folder that holds it."""
    file = file / RESULT if file.is_dir() else file
    try:
        return result.parse(file.read_bytes())
    except OSError as error:
        raise errors.InputError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise errors.InputError(f"{file} holds no Result", hint="name a result.json, or the folder of a Run") from error


class ResultStore:
    """The folders below one root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, fleet: str, wave: str, run: str, start: datetime) -> Path:
        """Return where a Run is kept; the folder need not be there."""
        return self.root / fleet / wave / f"{start.astimezone(UTC).strftime(_TIME)}-{run}"

    def put(
        self,
        made: Result,
        pods: Iterable[PodTimes] | None = None,
        workloads: Iterable[WorkloadTimes] | None = None,
    ) -> Path:
        """Keep a Result, and its pods and workloads if they are given, in the place of what was kept of it before."""
        folder = self.folder(made.fleet, made.wave, made.run, made.start)
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in ((PODS, pods), (WORKLOADS, workloads)):
            if rows is not None:
                _replace(
                    folder / name, (f"{each.model_dump_json(by_alias=True, exclude_none=True)}\n" for each in rows)
                )
        _replace(folder / RESULT, [result.serialize(made)])
        return folder

    def find(self, fleet: str = "", wave: str = "", run: str = "") -> list[StoredResult]:
        """Return the Runs there are, the latest first; *run* is its name, or that of its folder."""
        if any(name and not _NAME.fullmatch(name) for name in (fleet, wave, run)):
            return []
        found = [_kept(folder) for folder in self.root.glob(f"{fleet or '*'}/{wave or '*'}/*-*") if folder.is_dir()]
        wanted = (each for each in found if each and (not run or run in (each.run, each.folder.name)))
        return sorted(wanted, key=lambda each: (each.start, each.fleet, each.wave, each.run), reverse=True)

    def thin(self, fleet: str, wave: str, most: int) -> None:
        """Remove the oldest Runs of a Wave, if there are more than *most*; what is not ours is left alone."""
        for each in self.find(fleet, wave)[most:]:
            if all(_is_ours(file.name) for file in each.folder.iterdir()):
                shutil.rmtree(each.folder)


class Notes:
    """What was seen of a Run, line by line, for who goes on after a crash, or when it is retried."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NOTES
        self._file: BinaryIO | None = None

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines there are."""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as lines:
            yield from lines

    def add(self, lines: Iterable[bytes]) -> None:
        """Write more of them; a line that was torn by a crash goes first."""
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab")
            _mend(self._path, self._file)
        self._file.writelines(line.rstrip(b"\n") + b"\n" for line in lines)
        self._file.flush()

    def close(self) -> None:
        """Leave them."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _is_ours(name: str) -> bool:
    """Return whether a file is one of a Run's, or what somebody who died left of one."""
    return any(name == own or name.startswith(f".{own}.") for own in (RESULT, PODS, WORKLOADS, NOTES))


def _mend(path: Path, file: BinaryIO) -> None:
    """Cut off a last line without an end: what is written next would become a part of it."""
    whole = path.read_bytes().rfind(b"\n") + 1
    if whole != file.tell():
        file.truncate(whole)
        file.seek(whole)


def _kept(folder: Path) -> StoredResult | None:
    time, _, run = folder.name.partition("-")
    try:
        start = datetime.strptime(time, _TIME).replace(tzinfo=UTC)
    except ValueError:
        return None
    return StoredResult(folder, folder.parent.parent.name, folder.parent.name, run, start)


def _replace(file: Path, parts: Iterable[str]) -> None:
    """Write a file that nobody ever sees half of."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    with draft.open("w", encoding="utf-8") as out:
        out.writelines(parts)
    draft.replace(file)
