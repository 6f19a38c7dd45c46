"""Recorded pods: the output of `kubectl get pods --output-watch-events --watch -o json`, or of one `get`.

kubectl writes one JSON value after the other, over many lines each, and nothing around them. Each
begins at the start of a line and nothing inside one does, so a record that broke off, because somebody
pressed Ctrl-C or a disk was full, costs no other record.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kwokfleet.kube.objects import Manifest

_BETWEEN = re.compile(r"[\s,\[\]]*")
"""Also what is around the values of a JSON list, as other programs write them."""
_DECODER = json.JSONDecoder()
_HAPPENED = ("ADDED", "MODIFIED", "DELETED")
_RECORD = "record with: kubectl get pods --watch --output-watch-events -o json"


@dataclass(frozen=True, slots=True)
class PodEvent:
    """A state of a pod."""

    line: int
    what: str
    """ADDED, MODIFIED or DELETED; LISTED if nothing says what had happened."""
    pod: Manifest


@dataclass(frozen=True, slots=True)
class UnreadableEvent:
    """Something that is no state of a pod."""

    line: int
    column: int
    what: str

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {self.what}"


def read(lines: Iterable[str]) -> Iterator[PodEvent | UnreadableEvent]:
    """Yield the states in a recording, in their order, and what cannot be read; no more than one is held at a time."""
    first, held = 1, list[str]()
    for number, line in enumerate(lines, start=1):
        if line.startswith("{"):
            yield from _values("".join(held), first)
            first, held = number, []
        held.append(line)
    yield from _values("".join(held), first)


def _values(text: str, first: int) -> Iterator[PodEvent | UnreadableEvent]:
    """Yield what the values in a piece of text stand for, up to the first that cannot be read."""
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
    found = _BETWEEN.match(text, at)
    return found.end() if found else at


def _broken(text: str, at: int, first: int, error: Exception) -> UnreadableEvent:
    place = error.pos if isinstance(error, json.JSONDecodeError) else at
    line, column = first + text.count("\n", 0, place), place - text.rfind("\n", 0, place)
    if text[at] != "{":
        return UnreadableEvent(first + text.count("\n", 0, at), 1, f"not JSON; {_RECORD}")
    if place >= len(text.rstrip()):
        return UnreadableEvent(line, column, f"the record that begins in line {first} breaks off")
    why = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
    return UnreadableEvent(line, column, f"the record that begins in line {first} is not JSON: {why}")


def _states(value: Any, line: int) -> Iterator[PodEvent | UnreadableEvent]:  # noqa: ANN401  # whatever JSON can be
    """Yield the states that a value stands for: an event, a pod, or a list of either."""
    match value:
        case {"type": "BOOKMARK"}:
            return
        case {"type": str(what), "object": {"kind": "Pod", "metadata": dict()} as pod} if what in _HAPPENED:
            yield PodEvent(line, what, pod)
        case {"type": "ERROR", "object": {"message": str(why)}}:
            yield UnreadableEvent(line, 1, f"the watch had ended here: {' '.join(why.split())}")
        case {"kind": "Pod", "metadata": dict()}:
            yield PodEvent(line, "LISTED", value)
        case {"kind": "List" | "PodList", "items": list(items)}:
            for item in items:  # the items of a PodList do not say what they are
                yield from _states({"kind": "Pod", **item} if isinstance(item, dict) else item, line)
        case {"kind": str(kind)} | {"object": {"kind": str(kind)}}:
            yield UnreadableEvent(line, 1, f"a {kind}, not a pod; {_RECORD}")
        case _:
            yield UnreadableEvent(line, 1, f"neither an event nor a pod; {_RECORD}")
