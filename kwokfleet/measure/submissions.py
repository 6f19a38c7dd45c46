"""Submissions of a Run: lateness and rejections."""

import re
from array import array
from collections.abc import Iterator

from kwokfleet.measure import percentiles
from kwokfleet.measure.columns import Note
from kwokfleet.measure.result import FailureGroup, Pacing

MAX_FAILURE_GROUPS = 20
OTHER_FAILURES = "other failures"
_SENT, _REJECTED, _CONFIRMED, _VANISHED = 1, 2, 4, 8
_ACCOUNTED = _REJECTED | _CONFIRMED | _VANISHED
_NUMBER = re.compile(r"[0-9]+")


class FailureGroups:
    """Failures grouped by reason."""

    def __init__(self) -> None:
        self._groups: dict[str, tuple[str, int, str]] = {}
        self._new_notes: list[Note] = []

    def add(self, reason: str, example: str) -> None:
        """Record a failure; *example*: `KIND NAME` of the object."""
        self._new_notes.append(["x", reason, example])
        self._add(reason, example)

    def _add(self, reason: str, example: str) -> None:
        name = example.rpartition(" ")[2]
        group = _NUMBER.sub("0", reason.replace(name, "NAME") if name else reason)
        if group not in self._groups and len(self._groups) >= MAX_FAILURE_GROUPS - 1:
            group = reason = OTHER_FAILURES
        first_reason, count, first = self._groups.get(group, (reason, 0, example))
        self._groups[group] = (first_reason, count + 1, first)

    def groups(self) -> tuple[FailureGroup, ...]:
        """Return the groups, largest first."""
        groups = sorted(self._groups.values(), key=lambda group: (-group[1], group[0]))
        return tuple(FailureGroup(what=reason, count=count, example=example) for reason, count, example in groups)

    def notes(self) -> Iterator[Note]:
        """Yield the new notes since the last call."""
        yield from self._new_notes
        self._new_notes = []

    def restore_note(self, note: Note) -> float:
        """Restore a note; return 0: it has no time."""
        self._add(note[1], note[2])
        return 0.0


class Submissions:
    """Submission times, and which objects are accounted for: created or rejected."""

    def __init__(self, failures: FailureGroups) -> None:
        self.sent = self.accounted = self.rejected = self.vanished = self._retried = 0
        """Numbers of objects: sent; created or rejected; rejected; created and gone without an event."""
        self._unconfirmed: list[int] = []
        self.last_sent = 0.0
        self.failures = failures
        self._flags = bytearray()
        self._lateness = array("d")
        self._due_range = self._sent_range = (float("inf"), float("-inf"))
        self._new_notes: list[Note] = []

    def add(self, index: int, due: float, sent: float, error: str, retries: int) -> None:
        """Record a submission. Of a repeated one, the first time and the last answer count."""
        self._new_notes.append(["s", index, due, sent, error, retries])
        if error and not self._flag(index) & _REJECTED:
            name, _, reason = error.partition(": ")
            has_name = len(name.split()) == len(("KIND", "NAME")) and reason
            self.failures.add(reason if has_name else error, name if has_name else f"object {index}")
        self._add(index, due, sent, retries, rejected=bool(error))

    def _add(self, index: int, due: float, sent: float, retries: int, *, rejected: bool) -> None:
        self.last_sent = max(self.last_sent, sent)
        if not self._flag(index) & _SENT:
            self.sent += 1
            self._retried += retries > 0
            self._lateness.append(sent - due)
            self._due_range = min(self._due_range[0], due), max(self._due_range[1], due)
            self._sent_range = min(self._sent_range[0], sent), max(self._sent_range[1], sent)
        self._set(index, _SENT | (_REJECTED if rejected else 0), unset=0 if rejected else _REJECTED)

    def confirm(self, index: int) -> None:
        """Record that an object exists or existed."""
        if index >= 0:
            self._set(index, _CONFIRMED, unset=_VANISHED)
        else:
            self.accounted += 1

    def listing(self) -> None:
        """Mark objects that were sent and have no event as unconfirmed."""
        flags = enumerate(self._flags)
        self._unconfirmed = [index for index, bits in flags if bits & _SENT and not bits & _ACCOUNTED]

    def listed(self, submitted: int) -> None:
        """Mark unconfirmed objects as vanished, and those of the first *submitted* without an event."""
        for index in (*self._unconfirmed, *range(submitted)):
            if not self._flag(index) & _ACCOUNTED:
                self._set(index, _VANISHED)
        self._unconfirmed = []

    def _flag(self, index: int) -> int:
        return self._flags[index] if index < len(self._flags) else 0

    def _set(self, index: int, bits: int, unset: int = 0) -> None:
        if index >= len(self._flags):
            self._flags.extend(bytes(index + 1 - len(self._flags)))
        old = self._flags[index]
        new = self._flags[index] = old & ~unset | bits
        self.rejected += bool(new & _REJECTED) - bool(old & _REJECTED)
        self.vanished += bool(new & _VANISHED) - bool(old & _VANISHED)
        self.accounted += bool(new & _ACCOUNTED) - bool(old & _ACCOUNTED)

    def pacing(self) -> Pacing:
        """Return the Pacing."""
        lateness = sorted(round(seconds, 6) for seconds in self._lateness)
        return Pacing(
            count=len(lateness),
            p50=percentiles.percentile(lateness, 50),
            p90=percentiles.percentile(lateness, 90),
            p99=percentiles.percentile(lateness, 99),
            max=lateness[-1] if lateness else None,
            planned_rate=_rate(len(lateness), self._due_range),
            rate=_rate(len(lateness), self._sent_range),
            refused=self.rejected,
            retried=self._retried,
        )

    def notes(self) -> Iterator[Note]:
        """Yield the new notes since the last call."""
        yield from self._new_notes
        self._new_notes = []

    def restore_note(self, note: Note) -> float:
        """Restore a note; return its time."""
        _, index, due, sent, error, retries = note
        self._add(index, due, sent, retries, rejected=bool(error))
        return float(sent)


def _rate(count: int, span: tuple[float, float]) -> float | None:
    """Return the rate per second, from the first to the last."""
    return round((count - 1) / (span[1] - span[0]), 6) if span[1] > span[0] else None
