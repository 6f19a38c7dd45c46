"""The ends of log files, and what is added to them."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

POLL_S = 0.2
_BLOCK = 1 << 16


def lines(files: Sequence[Path], *, tail: int, follow: bool) -> Iterator[tuple[Path, str]]:
    """Yield the last *tail* lines of each file and, to *follow*, every line added from then on."""
    positions: dict[Path, int] = {}
    for file in files:
        past, positions[file] = _end(file, tail, whole_lines=follow)
        for line in past:
            yield file, line
    while follow and any(file.parent.exists() for file in files):
        for file in files:
            added, positions[file] = _added(file, positions[file])
            for line in added:
                yield file, line
        time.sleep(POLL_S)


def _end(file: Path, tail: int, *, whole_lines: bool) -> tuple[list[str], int]:
    """Read the last *tail* lines backwards, block by block: logs of a long run are large."""
    if not file.exists():
        return [], 0
    with file.open("rb") as stream:
        size = position = stream.seek(0, 2)
        data = b""
        while position and data.count(b"\n") <= tail:
            position = max(0, position - _BLOCK)
            stream.seek(position)
            data = stream.read(size - position)
    if whole_lines:  # what is being written right now is read when it is complete
        complete = data.rfind(b"\n") + 1
        size, data = size - (len(data) - complete), data[:complete]
    past = data.decode(errors="replace").splitlines()
    return past[max(0, len(past) - tail) :], size


def _added(file: Path, position: int) -> tuple[list[str], int]:
    if not file.exists():
        return [], 0
    with file.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(position if position <= size else 0)  # shorter than before: it was started anew
        data = stream.read()
    complete = data.rfind(b"\n") + 1
    return data[:complete].decode(errors="replace").splitlines(), size - (len(data) - complete)
