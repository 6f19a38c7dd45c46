"""Last lines of log files, and new lines as they are written."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

POLL_S = 0.2
_BLOCK = 1 << 16


def lines(files: Sequence[Path], *, tail: int, follow: bool) -> Iterator[tuple[Path, str]]:
    """Yield the last *tail* lines of each file; with *follow*, also every new line."""
    positions: dict[Path, int] = {}
    for file in files:
        last_lines, positions[file] = _tail(file, tail, whole_lines=follow)
        for line in last_lines:
            yield file, line
    while follow and any(file.parent.exists() for file in files):
        for file in files:
            new_lines, positions[file] = _new_lines(file, positions[file])
            for line in new_lines:
                yield file, line
        time.sleep(POLL_S)


def _tail(file: Path, tail: int, *, whole_lines: bool) -> tuple[list[str], int]:
    """Read the last *tail* lines backwards, block by block: log files can be large."""
    if not file.exists():
        return [], 0
    with file.open("rb") as stream:
        size = position = stream.seek(0, 2)
        data = b""
        while position and data.count(b"\n") <= tail:
            position = max(0, position - _BLOCK)
            stream.seek(position)
            data = stream.read(size - position)
    if whole_lines:  # an incomplete last line is read later
        complete = data.rfind(b"\n") + 1
        size, data = size - (len(data) - complete), data[:complete]
    all_lines = data.decode(errors="replace").splitlines()
    return all_lines[max(0, len(all_lines) - tail) :], size


def _new_lines(file: Path, position: int) -> tuple[list[str], int]:
    if not file.exists():
        return [], 0
    with file.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(position if position <= size else 0)  # a shorter file was truncated
        data = stream.read()
    complete = data.rfind(b"\n") + 1
    return data[:complete].decode(errors="replace").splitlines(), size - (len(data) - complete)
