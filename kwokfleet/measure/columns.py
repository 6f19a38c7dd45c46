"""Objects as rows of numbers: what is kept of each of 100,000, without their manifests.

A time in a row is seconds since 1970; NaN is "not so far". **Below 0 it means: by then, but
nobody knows when.** That is how it is kept that something happened while nobody was watching.
Of several times for the same thing the earliest stays, whatever its sign. So neither the order in
which events come nor how often each comes makes a difference.
"""

from array import array
from collections.abc import Iterator, Sequence
from math import nan
from typing import Any

NONE = -1
"""In a column of whole numbers: unknown."""
_UID = 36
_CUTS = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
TIMES = 32
"""Up to so many columns of times; a row's changes are bits, those of whole numbers above these."""

Key = int | str
Note = list[Any]
"""A line of notes, before it is JSON."""


def key(uid: str) -> Key:
    """Return what a UID is kept as: half the size of its text."""
    try:
        return int(uid.replace("-", ""), 16) if len(uid) == _UID else uid
    except ValueError:
        return uid


def uid(kept: Key) -> str:
    """Return the UID again."""
    if isinstance(kept, str):
        return kept
    text = f"{kept:032x}"
    return "-".join(text[start:end] for start, end in _CUTS)


class Names:
    """Texts that many rows share, each kept once and called by its number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._texts: list[str] = []
        self._noted = 0

    def number(self, text: str) -> int:
        """Return the number of a text."""
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self._texts)
            self._texts.append(text)
        return found

    def text(self, number: int) -> str:
        """Return the text of a number; empty if it is none."""
        return self._texts[number] if number >= 0 else ""

    def notes(self) -> Iterator[Note]:
        """Yield those that are new since the last call."""
        for each in self._texts[self._noted :]:
            yield ["n", each]
        self._noted = len(self._texts)

    def recall(self, note: Note) -> float:
        """Take one that somebody noted, under the number that it had there; it has no time."""
        self.number(note[1])
        self._noted = len(self._texts)
        return 0.0


class Table:
    """Rows, and which of their numbers are new since somebody last asked."""

    def __init__(self, tag: str, times: int, whole: int) -> None:
        self.tag = tag
        self.rows: dict[Key, int] = {}
        """Row by UID, in order."""
        self.names: list[str] = []
        self.times = tuple(array("d") for _ in range(times))
        self.whole = tuple(array("i") for _ in range(whole))
        self._fresh: dict[int, int] = {}
        self._born: dict[int, Key] = {}

    def __len__(self) -> int:
        return len(self.names)

    def add(self, key: Key, name: str) -> int:
        """Add a row, and return its number."""
        row = self.rows[key] = len(self.names)
        self.names.append(name)
        for column in self.times:
            column.append(nan)
        for whole in self.whole:
            whole.append(NONE)
        self._born[row], self._fresh[row] = key, 0
        return row

    def merge(self, row: int, column: int, value: float) -> None:
        """Note a time, unless an earlier one is known; NaN says nothing."""
        old = self.times[column][row]
        if (not abs(old) <= abs(value) and value == value) or (old == -value and value > 0):  # noqa: PLR0124  # NaN
            self.times[column][row] = value
            self._fresh[row] = self._fresh.get(row, 0) | 1 << column

    def put(self, row: int, column: int, value: int) -> None:
        """Note a whole number."""
        if self.whole[column][row] != value:
            self.whole[column][row] = value
            self._fresh[row] = self._fresh.get(row, 0) | 1 << (TIMES + column)

    def is_fresh(self, row: int, columns: Sequence[int]) -> bool:
        """Return whether one of some times is new since notes were last taken."""
        bits = self._fresh.get(row, 0)
        return any(bits >> column & 1 for column in columns)

    def notes(self) -> Iterator[Note]:
        """Yield what is new since the last call: `[p, row, column, value, ...]`, a new row's with UID and name."""
        for row, bits in self._fresh.items():
            key = self._born.get(row)
            line: Note = [self.tag, row] if key is None else [self.tag, row, uid(key), self.names[row]]
            for column, values in enumerate(self.times):
                if bits >> column & 1:
                    line += (column, values[row])
            for column, numbers in enumerate(self.whole, start=TIMES):
                if bits >> column & 1:
                    line += (column, numbers[row])
            yield line
        self._fresh, self._born = {}, {}

    def recall(self, note: Note) -> tuple[int, Sequence[Any]] | None:
        """Find the row that a note is about, or add it; return it, and its columns and values. None: there is none."""
        row, rest = note[1], note[2:]
        if rest and isinstance(rest[0], str):
            if row != len(self):
                return None
            self.add(key(rest[0]), rest[1])
            del self._fresh[row], self._born[row]
            rest = rest[2:]
        return (row, rest) if row < len(self) else None

    def restore(self, row: int, pairs: Sequence[Any], *, whole_only: bool = False) -> None:
        """Put columns and values of a note where they were."""
        for column, value in zip(pairs[::2], pairs[1::2], strict=True):
            if column >= TIMES:
                self.whole[column - TIMES][row] = value
            elif not whole_only:
                self.times[column][row] = value


def latest(pairs: Sequence[Any], last: int) -> float:
    """Return the latest time of a note in the columns up to *last*: those that our watch wrote."""
    return max(
        (abs(value) for column, value in zip(pairs[::2], pairs[1::2], strict=True) if column <= last), default=0.0
    )
