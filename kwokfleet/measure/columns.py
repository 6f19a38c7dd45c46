"""Tables of numbers: the times of up to 100,000 objects, without their manifests.

A time is seconds since 1970; NaN means "not reached". **A negative time means: reached by then, at an unknown
time.** That is how states reached during a gap are kept. Of several times for one state the earliest stays,
regardless of its sign. So the order and the number of events make no difference.
"""

from array import array
from collections.abc import Iterator, Sequence
from math import nan
from typing import Any

NONE = -1
"""Unknown, in a column of integers."""
_UID_CHARS = 36
_UID_PARTS = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
MAX_TIME_COLUMNS = 32
"""Changed columns of a row are bits; those of integers start at this bit."""

Key = int | str
Note = list[Any]
"""One note, before it becomes a line of JSON."""


def key(uid: str) -> Key:
    """Return a UID as a number, which takes half the space."""
    try:
        return int(uid.replace("-", ""), 16) if len(uid) == _UID_CHARS else uid
    except ValueError:
        return uid


def uid(key: Key) -> str:
    """Return the UID of a key."""
    if isinstance(key, str):
        return key
    text = f"{key:032x}"
    return "-".join(text[start:end] for start, end in _UID_PARTS)


class Names:
    """Texts shared by many rows, each stored once and referenced by number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._texts: list[str] = []
        self._noted = 0

    def number(self, text: str) -> int:
        """Return the number of a text."""
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self._texts)
            self._texts.append(text)
        return number

    def text(self, number: int) -> str:
        """Return the text of a number; empty for NONE."""
        return self._texts[number] if number >= 0 else ""

    def notes(self) -> Iterator[Note]:
        """Yield the new notes since the last call."""
        for text in self._texts[self._noted :]:
            yield ["n", text]
        self._noted = len(self._texts)

    def restore_note(self, note: Note) -> float:
        """Restore a text under its old number; return 0: it has no time."""
        self.number(note[1])
        self._noted = len(self._texts)
        return 0.0


class Table:
    """Rows of times and integers, with their changes since the last notes."""

    def __init__(self, tag: str, times: int, integers: int) -> None:
        self.tag = tag
        self.rows: dict[Key, int] = {}
        """Row by UID, in order of creation."""
        self.names: list[str] = []
        self.times = tuple(array("d") for _ in range(times))
        self.integers = tuple(array("i") for _ in range(integers))
        self._changes: dict[int, int] = {}
        """Changed columns of a row, as bits."""
        self._new_rows: dict[int, Key] = {}

    def __len__(self) -> int:
        return len(self.names)

    def add(self, key: Key, name: str) -> int:
        """Add a row; return its number."""
        row = self.rows[key] = len(self.names)
        self.names.append(name)
        for times in self.times:
            times.append(nan)
        for integers in self.integers:
            integers.append(NONE)
        self._new_rows[row], self._changes[row] = key, 0
        return row

    def merge(self, row: int, column: int, value: float) -> None:
        """Set a time, unless an earlier one is set. NaN is ignored."""
        old = self.times[column][row]
        if (not abs(old) <= abs(value) and value == value) or (old == -value and value > 0):  # noqa: PLR0124  # NaN
            self.times[column][row] = value
            self._changes[row] = self._changes.get(row, 0) | 1 << column

    def put(self, row: int, column: int, value: int) -> None:
        """Set an integer."""
        if self.integers[column][row] != value:
            self.integers[column][row] = value
            self._changes[row] = self._changes.get(row, 0) | 1 << (MAX_TIME_COLUMNS + column)

    def is_changed(self, row: int, columns: Sequence[int]) -> bool:
        """Return whether one of some times has changed since the last notes."""
        bits = self._changes.get(row, 0)
        return any(bits >> column & 1 for column in columns)

    def notes(self) -> Iterator[Note]:
        """Yield the changes since the last call: `[TAG, row, column, value, ...]`; a new row with UID and name."""
        for row, bits in self._changes.items():
            key = self._new_rows.get(row)
            note: Note = [self.tag, row] if key is None else [self.tag, row, uid(key), self.names[row]]
            for column, times in enumerate(self.times):
                if bits >> column & 1:
                    note += (column, times[row])
            for column, integers in enumerate(self.integers, start=MAX_TIME_COLUMNS):
                if bits >> column & 1:
                    note += (column, integers[row])
            yield note
        self._changes, self._new_rows = {}, {}

    def restore_row(self, note: Note) -> tuple[int, Sequence[Any]] | None:
        """Find or add the row of a note; return it with the note's columns and values. None: invalid note."""
        row, pairs = note[1], note[2:]
        if pairs and isinstance(pairs[0], str):
            if row != len(self):
                return None
            self.add(key(pairs[0]), pairs[1])
            del self._changes[row], self._new_rows[row]
            pairs = pairs[2:]
        return (row, pairs) if row < len(self) else None

    def restore_values(self, row: int, pairs: Sequence[Any], *, integers_only: bool = False) -> None:
        """Set the columns and values of a note."""
        for column, value in zip(pairs[::2], pairs[1::2], strict=True):
            if column >= MAX_TIME_COLUMNS:
                self.integers[column - MAX_TIME_COLUMNS][row] = value
            elif not integers_only:
                self.times[column][row] = value


def latest(pairs: Sequence[Any], last: int) -> float:
    """Return the latest time in the columns up to *last*: the watch clock."""
    return max(
        (abs(value) for column, value in zip(pairs[::2], pairs[1::2], strict=True) if column <= last), default=0.0
    )
