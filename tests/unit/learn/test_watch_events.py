"""Parsing of recorded watch events."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwokfleet.learn import watch_events
from kwokfleet.learn.watch_events import PodEvent, UnreadableEvent
from tests.harness import pod_states

Manifest = dict[str, Any]
POD = pod_states.PodState("one").now


def read(text: str) -> tuple[list[PodEvent], list[UnreadableEvent]]:
    """Return the readable and the unreadable events of a text."""
    events = list(watch_events.read(text.splitlines(keepends=True)))
    return [event for event in events if isinstance(event, PodEvent)], [
        event for event in events if isinstance(event, UnreadableEvent)
    ]


def numbered_pod(index: int) -> Manifest:
    """Return a pod."""
    return pod_states.PodState(f"pod-{index}").now


PRETTY = "".join(json.dumps({"type": "ADDED", "object": numbered_pod(index)}, indent=4) + "\n" for index in range(3))
COMPACT = "".join(json.dumps({"type": "ADDED", "object": numbered_pod(index)}) + "\n" for index in range(3))


@pytest.mark.parametrize(
    "text",
    [
        PRETTY,
        COMPACT,
        COMPACT.replace("\n", ""),
        PRETTY.replace("\n", "\r\n"),
        f"[{','.join(COMPACT.splitlines())}]",
        "[\n" + ",\n".join(COMPACT.splitlines()) + "\n]\n",
        "".join(json.dumps(numbered_pod(index)) + "\n" for index in range(3)),
        json.dumps(
            {"apiVersion": "v1", "kind": "List", "items": [numbered_pod(index) for index in range(3)]}, indent=4
        ),
        json.dumps({"kind": "PodList", "items": [{"metadata": {"name": f"pod-{index}"}} for index in range(3)]}),
    ],
    ids=["pretty", "compact", "one line", "windows", "array", "array of lines", "pods", "list", "pod list"],
)
def test_all_formats_of_pods_are_read(text: str) -> None:
    """Events, pods and lists, on one line or several."""
    records, broken = read(text)
    assert [event.pod["metadata"]["name"] for event in records] == ["pod-0", "pod-1", "pod-2"]
    assert not broken


@given(st.lists(st.sampled_from(["ADDED", "MODIFIED", "DELETED"]), min_size=1, max_size=6), st.booleans(), st.data())
def test_a_truncated_event_does_not_affect_others(kinds: list[str], indented: bool, data: st.DataObject) -> None:  # noqa: FBT001  # drawn
    """It is reported with its line."""
    texts = [
        json.dumps({"type": kind, "object": numbered_pod(index)}, indent=4 if indented else None) + "\n"
        for index, kind in enumerate(kinds)
    ]
    cut = data.draw(st.integers(0, len(texts) - 1))
    length = data.draw(st.integers(1, len(texts[cut]) - 3))
    before = sum(text.count("\n") for text in texts[:cut])
    broken_text = texts[cut][:length] + "\n"
    records, broken = read("".join([*texts[:cut], broken_text, *texts[cut + 1 :]]))
    assert [event.pod["metadata"]["name"] for event in records] == [f"pod-{i}" for i in range(len(kinds)) if i != cut]
    [unreadable] = broken
    assert before < unreadable.line <= before + broken_text.count("\n") + 1
    assert f"starts in line {before + 1}" in unreadable.what


@given(st.text(max_size=200))
def test_any_text_is_read_or_reported(text: str) -> None:
    """No text raises an exception."""
    records, broken = read(text)
    assert records == []
    assert bool(broken) == bool(text.strip(" \t\r\n\x0b\x0c,[]\x1c\x1d\x1e\x1f\x85\xa0") and text.strip())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("type: ADDED\nobject:\n  kind: Pod\n", "1:1: not JSON; record with: kubectl get pods --watch"),
        ('{"type": "ADDED", "object": {"kind": "Node", "metadata": {}}}', "1:1: a Node, not a pod"),
        ('\n\n{"type": "WHAT", "object": 3}', "3:1: neither an event nor a pod"),
        (
            '{"type": "ERROR", "object": {"kind": "Status", "message": "too\\nold"}}',
            "the watch ended here: too old",
        ),
        ('{"a": }', "1:7: the record that starts in line 1 is not JSON"),
        ('{"kind": "List", "items": [3]}', "1:1: neither an event nor a pod"),
        ("[" * 100_000, ""),
    ],
    ids=["yaml", "node", "unknown", "error", "wrong", "number", "deep"],
)
def test_errors_have_a_position(text: str, message: str) -> None:
    """And a hint, where there is one."""
    records, broken = read(text)
    assert not records
    assert [message in str(event) for event in broken] == ([True] if message else [])


def test_bookmarks_are_skipped() -> None:
    """They contain only a resource version."""
    assert read('{"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {}}}') == ([], [])
