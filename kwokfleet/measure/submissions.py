"""How a Run's objects were submitted: how exactly on time, and what was refused."""

import re
from array import array
from collections.abc import Iterator

from kwokfleet.measure import percentiles
from kwokfleet.measure.columns import Note
from kwokfleet.measure.result import FailureGroup, Pacing

MAX_FAILURE_GROUPS = 20
OTHER_FAILURES = "other trouble"
_SENT, _REFUSED, _MET, _VANISHED = 1, 2, 4, 8
_ACCOUNTED = _REFUSED | _MET | _VANISHED
_NUMBER = re.compile(r"[0-9]+")


class FailureGroups:
    """What went wrong, said once for all objects that it is the same for."""

    def __init__(self) -> None:
        self._groups: dict[str, tuple[str, int, str]] = {}
        self._fresh: list[Note] = []

    def add(self, what: str, example: str) -> None:
        """Note what went wrong with an object."""
        self._fresh.append(["x", what, example])
        self._add(what, example)

    def _add(self, what: str, example: str) -> None:
        name = example.rpartition(" ")[2]
        group = _NUMBER.sub("0", what.replace(name, "NAME") if name else what)
        if group not in self._groups and len(self._groups) >= MAX_FAILURE_GROUPS - 1:
            group = what = OTHER_FAILURES
        said, count, first = self._groups.get(group, (what, 0, example))
        self._groups[group] = (said, count + 1, first)

    def groups(self) -> tuple[FailureGroup, ...]:
        """Return what went wrong, what is most frequent first."""
        made = [FailureGroup(what=what, count=count, example=example) for what, count, example in self._groups.values()]
        return tuple(sorted(made, key=lambda each: (-each.count, each.what)))

    def notes(self) -> Iterator[Note]:
        """Yield what is new."""
        yield from self._fresh
        self._fresh = []

    def recall(self, note: Note) -> float:
        """Take what somebody noted; it has no time."""
        self._add(note[1], note[2])
        return 0.0


class Submissions:
    """When each object was sent, and which of them are accounted for: they are there, or were refused."""

    def __init__(self, troubles: FailureGroups) -> None:
        self.sent = self.accounted = self.refused = self.vanished = self._retried = 0
        """How many different objects were sent; are there, were or were refused; were refused; came and went unseen."""
        self._doubted: list[int] = []
        self.last_sent = 0.0
        self.troubles = troubles
        self._flags = bytearray()
        self._late = array("d")
        self._due = self._out = (float("inf"), float("-inf"))
        self._fresh: list[Note] = []

    def add(self, index: int, due: float, sent: float, trouble: str, retries: int) -> None:
        """Note that an object was sent; of one that is sent again, the first time counts, and the last answer."""
        self._fresh.append(["s", index, due, sent, trouble, retries])
        if trouble and not self._flag(index) & _REFUSED:
            name, _, what = trouble.partition(": ")
            named = len(name.split()) == len(("KIND", "NAME")) and what
            self.troubles.add(what if named else trouble, name if named else f"object {index}")
        self._add(index, due, sent, bool(trouble), retries)

    def _add(self, index: int, due: float, sent: float, refused: bool, retries: int) -> None:  # noqa: FBT001  # a fact
        self.last_sent = max(self.last_sent, sent)
        if not self._flag(index) & _SENT:
            self.sent += 1
            self._retried += retries > 0
            self._late.append(sent - due)
            self._due = min(self._due[0], due), max(self._due[1], due)
            self._out = min(self._out[0], sent), max(self._out[1], sent)
        self._set(index, _SENT | (_REFUSED if refused else 0), unset=0 if refused else _REFUSED)

    def met(self, index: int) -> None:
        """Note that an object is there, or was."""
        if index >= 0:
            self._set(index, _MET, unset=_VANISHED)
        else:
            self.accounted += 1

    def listing(self) -> None:
        """Doubt what was sent and has not been seen since."""
        self._doubted = [index for index, flags in enumerate(self._flags) if flags & _SENT and not flags & _ACCOUNTED]

    def listed(self, first: int) -> None:
        """Take as gone what is still not there, of what was doubted and of the *first* objects."""
        for index in (*self._doubted, *range(first)):
            if not self._flag(index) & _ACCOUNTED:
                self._set(index, _VANISHED)
        self._doubted = []

    def _flag(self, index: int) -> int:
        return self._flags[index] if index < len(self._flags) else 0

    def _set(self, index: int, bits: int, unset: int = 0) -> None:
        if index >= len(self._flags):
            self._flags.extend(bytes(index + 1 - len(self._flags)))
        old = self._flags[index]
        new = self._flags[index] = old & ~unset | bits
        self.refused += bool(new & _REFUSED) - bool(old & _REFUSED)
        self.vanished += bool(new & _VANISHED) - bool(old & _VANISHED)
        self.accounted += bool(new & _ACCOUNTED) - bool(old & _ACCOUNTED)

    def pacing(self) -> Pacing:
        """Return how exactly it was."""
        late = sorted(round(each, 6) for each in self._late)
        return Pacing(
            count=len(late),
            p50=percentiles.percentile(late, 50),
            p90=percentiles.percentile(late, 90),
            p99=percentiles.percentile(late, 99),
            max=late[-1] if late else None,
            planned_rate=_rate(len(late), self._due),
            rate=_rate(len(late), self._out),
            refused=self.refused,
            retried=self._retried,
        )

    def notes(self) -> Iterator[Note]:
        """Yield what is new."""
        yield from self._fresh
        self._fresh = []

    def recall(self, note: Note) -> float:
        """Take what somebody noted; return the time in it."""
        _, index, due, sent, trouble, retries = note
        self._add(index, due, sent, bool(trouble), retries)
        return float(sent)


def _rate(count: int, ends: tuple[float, float]) -> float | None:
    """Return how many there were per second, from the first to the last."""
    return round((count - 1) / (ends[1] - ends[0]), 6) if ends[1] > ends[0] else None
