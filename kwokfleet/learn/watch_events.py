"""Parses recorded pods: the output of `kubectl get pods --output-watch-events --watch -o json`, or of one `get`.

kubectl writes JSON values of many lines each. Only a new value starts in the first column, so a truncated record
(Ctrl-C, full disk) does not affect the others.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kwokfleet.kube.objects import Manifest

_BETWEEN = re.compile(r"[\s,\[\]]*")
"""Also the punctuation of a JSON list, as other programs write."""
_DECODER = json.JSONDecoder()
_EVENT_TYPES = ("ADDED", "MODIFIED", "DELETED")
_HOW_TO_RECORD = "record with: kubectl get pods --watch --output-watch-events -o json"


@dataclass(frozen=True, slots=True)
class PodEvent:
    """A state of a pod."""

    line: int
    what: str
    """ADDED, MODIFIED or DELETED; LISTED without an event."""
    pod: Manifest


@dataclass(frozen=True, slots=True)
class UnreadableEvent:
    """A value that is not a state of a pod."""

    line: int
    column: int
    what: str

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {self.what}"


def read(lines: Iterable[str]) -> Iterator[PodEvent | UnreadableEvent]:
    """Yield the states in a recording, and the values that cannot be read; one value is in memory at a time."""
    first, pending = 1, list[str]()
    for number, line in enumerate(lines, start=1):
        if line.startswith("{"):
            yield from _values("".join(pending), first)
            first, pending = number, []
        pending.append(line)
    yield from _values("".join(pending), first)


def _values(text: str, first: int) -> Iterator[PodEvent | UnreadableEvent]:
    """Yield the states in a text, up to the first value that cannot be read."""
    at = _skip(text, 0)
    while at < len(text):
        line = first + text.count("\n", 0, at)
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            yield _broken(text, at, first, error)
            return
        yield from _states(value, line)
        at = _skip(text, end)


def _skip(text: str, at: int) -> int:
    match = _BETWEEN.match(text, at)
    return match.end() if match else at


def _broken(text: str, at: int, first: int, error: Exception) -> UnreadableEvent:
    place = error.pos if isinstance(error, json.JSONDecodeError) else at
    line, column = first + text.count("\n", 0, place), place - text.rfind("\n", 0, place)
    if text[at] != "{":
        return UnreadableEvent(first + text.count("\n", 0, at), 1, f"not JSON; {_HOW_TO_RECORD}")
    if place >= len(text.rstrip()):
        return UnreadableEvent(line, column, f"the record that starts in line {first} is truncated")
    why = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
    return UnreadableEvent(line, column, f"the record that starts in line {first} is not JSON: {why}")


def _states(value: Any, line: int) -> Iterator[PodEvent | UnreadableEvent]:  # noqa: ANN401  # any JSON
    """Yield the states in a value: an event, a pod, or a list of either."""
    match value:
        case {"type": "BOOKMARK"}:
            return
        case {"type": str(what), "object": {"kind": "Pod", "metadata": dict()} as pod} if what in _EVENT_TYPES:
            yield PodEvent(line, what, pod)
        case {"type": "ERROR", "object": {"message": str(why)}}:
            yield UnreadableEvent(line, 1, f"the watch ended here: {' '.join(why.split())}")
        case {"kind": "Pod", "metadata": dict()}:
            yield PodEvent(line, "LISTED", value)
        case {"kind": "List" | "PodList", "items": list(items)}:
            for item in items:  # the items of a PodList have no kind
                yield from _states({"kind": "Pod", **item} if isinstance(item, dict) else item, line)
        case {"kind": str(kind)} | {"object": {"kind": str(kind)}}:
            yield UnreadableEvent(line, 1, f"a {kind}, not a pod; {_HOW_TO_RECORD}")
        case _:
            yield UnreadableEvent(line, 1, f"neither an event nor a pod; {_HOW_TO_RECORD}")
