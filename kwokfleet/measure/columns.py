"""Tables of numbers: the times of up to 100,000 objects, without their manifests.

A time is seconds since 1970; NaN means "not reached". **A negative time means: reached by then, at an unknown
time.** That is how states reached during a gap are kept. Of several times for one state the earliest stays,
regardless of its sign. So the order and the number of events make no difference.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from math import isnan, nan
from typing import Any, ClassVar

NONE = -1
"""Unknown, in a column of integers."""
_UID_CHARS = 36
MAX_TIME_COLUMNS = 32
"""Changed columns of a row are bits; those of integers start at this bit."""

SHORTEST_GAP_S = 1.0
"""The error of a shorter gap is below that of API timestamps, which have whole seconds."""

Key = int | str
State = tuple[int, ...]
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
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


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


class Table(ABC):
    """Rows of times and integers, with their changes since the last notes. Counts follow every change of a row."""

    tag: ClassVar[str]
    """Of its notes."""
    gone: ClassVar[int]
    """Column of the deletion."""
    clock_pairs: ClassVar[Sequence[tuple[int, int]]]
    """Columns of the watch clock with their API timestamps."""

    def __init__(self, texts: Names, times: int, watch_times: int, integers: int) -> None:
        self.rows: dict[Key, int] = {}
        """Row by UID, in order of creation."""
        self.names: list[str] = []
        self.times = tuple(array("d") for _ in range(times))
        self.integers = tuple(array("i") for _ in range(integers))
        self._texts, self._watch_times = texts, watch_times
        self._changes: dict[int, int] = {}
        """Changed columns of a row, as bits."""
        self._new_rows: dict[int, Key] = {}
        self._unconfirmed: set[int] = set()

    def __len__(self) -> int:
        return len(self.names)

    @abstractmethod
    def is_object(self, row: int) -> bool:
        """Return whether a row is an observed object."""

    @abstractmethod
    def _state(self, row: int) -> State:
        """Return the state of a row, for `_update_counts`."""

    @abstractmethod
    def _update_counts(self, row: int, before: State) -> None:
        """Update all counts after a change of a row."""

    @abstractmethod
    def _count_row(self, row: int) -> None:
        """Update all counts for a new row with its integers, without times."""

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

    def put_text(self, row: int, column: int, text: str) -> None:
        """Set a text, as its number."""
        self.put(row, column, self._texts.number(text))

    def text(self, row: int, column: int) -> str:
        """Return a text; empty if it is unknown."""
        return self._texts.text(self.integers[column][row])

    def is_reached(self, row: int, column: int) -> bool:
        """Return whether a time is set, known or not."""
        return not isnan(self.times[column][row])

    def is_changed(self, row: int, columns: Sequence[int]) -> bool:
        """Return whether one of some times has changed since the last notes."""
        bits = self._changes.get(row, 0)
        return any(bits >> column & 1 for column in columns)

    def listing(self) -> None:
        """Mark all objects that are not gone as unconfirmed."""
        rows = range(len(self))
        self._unconfirmed = {row for row in rows if self.is_object(row) and not self.is_reached(row, self.gone)}

    def listed(self, at: float) -> None:
        """Mark unconfirmed objects as gone, at an unknown time."""
        for row in sorted(self._unconfirmed):
            before = self._state(row)
            self.merge(row, self.gone, -at)
            self._update_counts(row, before)
        self._unconfirmed = set()

    def discard_delayed_times(self, gaps: Iterable[tuple[float, float, str]]) -> None:
        """Mark receive times that a gap has delayed as unknown: a resumed watch delivers all missed events at once."""
        long = [(start, end) for start, end, _ in gaps if end - start >= SHORTEST_GAP_S]
        for watch, api in self.clock_pairs if long else ():
            received, timestamps = self.times[watch], self.times[api]
            for row, second in enumerate(timestamps):
                if received[row] > 0 and any(start < second + 1 <= end <= received[row] for start, end in long):
                    received[row] = -received[row]

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

    def restore_note(self, note: Note) -> float:
        """Restore a note; return its latest receive time. An invalid note is ignored."""
        _, row, *values = note
        is_new = bool(values) and isinstance(values[0], str)
        if is_new and row == len(self):
            self.add(key(values[0]), values[1])
            del self._changes[row], self._new_rows[row]
        elif is_new or row >= len(self):
            return 0.0
        start = 2 if is_new else 0
        pairs = list(zip(values[start::2], values[start + 1 :: 2], strict=True))
        integers = [(column - MAX_TIME_COLUMNS, value) for column, value in pairs if column >= MAX_TIME_COLUMNS]
        times = [(column, value) for column, value in pairs if column < MAX_TIME_COLUMNS]
        before = self._state(row)
        for column, value in integers:
            self.integers[column][row] = value
        if is_new:
            self._count_row(row)
            before = self._state(row)
        for column, value in times:
            self.times[column][row] = value
        self._update_counts(row, before)
        return max((abs(value) for column, value in times if column < self._watch_times), default=0.0)
