"""Stored Results: one folder per Run.

ROOT/FLEET/WAVE/20261117T090000Z-RUN/result.json        the Result
                                     pods.ndjson        one line per pod
                                     workloads.ndjson   one line per workload other than a pod
                                     notes.ndjson       raw measurements, to continue after a crash
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

from kwokfleet import errors
from kwokfleet.measure import result as results
from kwokfleet.measure.result import PodTimes, Result, ResultModel, WorkloadTimes

RESULT, PODS, WORKLOADS, NOTES = "result.json", "pods.ndjson", "workloads.ndjson", "notes.ndjson"
Model = TypeVar("Model", bound=ResultModel)
_TIME_FORMAT = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.:+]*")
"""Names of Fleets, Waves, Runs and folders: no path separator and no glob pattern."""


@dataclass(frozen=True, slots=True)
class _Rows(Generic[Model]):
    """Rows of a file. Can be iterated repeatedly; empty if the file does not exist."""

    file: Path
    model: type[Model]

    def __iter__(self) -> Iterator[Model]:
        with contextlib.suppress(FileNotFoundError), self.file.open("rb") as lines:
            yield from map(self.model.model_validate_json, lines)


@dataclass(frozen=True, slots=True)
class StoredResult:
    """The folder of one Run."""

    folder: Path
    fleet: str
    wave: str
    run: str
    start: datetime

    def result(self) -> Result:
        """Load the Result; raise InputError if it cannot be read."""
        return load(self.folder / RESULT)

    def pods(self) -> Iterable[PodTimes]:
        """Return the pods."""
        return _Rows(self.folder / PODS, PodTimes)

    def workloads(self) -> Iterable[WorkloadTimes]:
        """Return the workloads other than pods."""
        return _Rows(self.folder / WORKLOADS, WorkloadTimes)


def load(path: Path) -> Result:
    """Load a Result from its file, or from the folder of a Run."""
    file = path / RESULT if path.is_dir() else path
    try:
        return Result.model_validate_json(file.read_bytes())
    except OSError as error:
        raise errors.InputError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise errors.InputError(f"{file} is not a Result", hint="pass a result.json, or the folder of a Run") from error


class ResultStore:
    """The stored Results below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, fleet: str, wave: str, run: str, start: datetime) -> Path:
        """Return the folder of a Run. It may not exist."""
        return self.root / fleet / wave / f"{start.astimezone(UTC).strftime(_TIME_FORMAT)}-{run}"

    def put(
        self, result: Result, pods: Iterable[PodTimes] | None = None, workloads: Iterable[WorkloadTimes] | None = None
    ) -> Path:
        """Store a Result, and pods and workloads if given. Replaces earlier files."""
        folder = self.folder(result.fleet, result.wave, result.run, result.start)
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in ((PODS, pods), (WORKLOADS, workloads)):
            if rows is not None:
                _replace(folder / name, (f"{row.model_dump_json(by_alias=True, exclude_none=True)}\n" for row in rows))
        _replace(folder / RESULT, [results.serialize(result)])
        return folder

    def find(self, fleet: str = "", wave: str = "", run: str = "") -> list[StoredResult]:
        """Return the stored Runs, latest first; *run*: a Run's name or the name of its folder."""
        if any(name and not _NAME.fullmatch(name) for name in (fleet, wave, run)):
            return []
        folders = self.root.glob(f"{fleet or '*'}/{wave or '*'}/*-*")
        stored = [item for folder in folders if folder.is_dir() and (item := _parse_folder(folder))]
        matching = (item for item in stored if not run or run in (item.run, item.folder.name))
        return sorted(matching, key=lambda item: (item.start, item.fleet, item.wave, item.run), reverse=True)

    def remove_oldest(self, fleet: str, wave: str, *, keep: int) -> None:
        """Remove the oldest Runs of a Wave above *keep*. A folder with foreign files is not removed."""
        for stored in self.find(fleet, wave)[keep:]:
            if all(_is_result_file(file.name) for file in stored.folder.iterdir()):
                shutil.rmtree(stored.folder)


class Notes:
    """The notes file of a Run, to continue its measurement after a crash or a retry."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NOTES
        self._file: BinaryIO | None = None

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines."""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as lines:
            yield from lines

    def add(self, lines: Iterable[bytes]) -> None:
        """Append lines. Removes an incomplete last line first."""
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab")
            _truncate_incomplete_line(self._path, self._file)
        self._file.writelines(line.rstrip(b"\n") + b"\n" for line in lines)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _is_result_file(name: str) -> bool:
    """Return whether a file belongs to a Run, or is its unfinished draft."""
    return any(name == file or name.startswith(f".{file}.") for file in (RESULT, PODS, WORKLOADS, NOTES))


def _truncate_incomplete_line(path: Path, file: BinaryIO) -> None:
    """Remove a last line without an end: a crash interrupted its write."""
    size = path.read_bytes().rfind(b"\n") + 1
    if size != file.tell():
        file.truncate(size)
        file.seek(size)


def _parse_folder(folder: Path) -> StoredResult | None:
    time, _, run = folder.name.partition("-")
    try:
        start = datetime.strptime(time, _TIME_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None
    return StoredResult(folder, folder.parent.parent.name, folder.parent.name, run, start)


def _replace(file: Path, parts: Iterable[str]) -> None:
    """Write a file atomically."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    with draft.open("w", encoding="utf-8") as out:
        out.writelines(parts)
    draft.replace(file)
