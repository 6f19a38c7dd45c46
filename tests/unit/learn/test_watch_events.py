"""Recordings of kubectl, whole and broken."""

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
    """Return what a text holds, and what of it is broken."""
    found = list(watch_events.read(text.splitlines(keepends=True)))
    return [each for each in found if isinstance(each, PodEvent)], [
        each for each in found if isinstance(each, UnreadableEvent)
    ]


def named(index: int) -> Manifest:
    """Return a pod."""
    return pod_states.PodState(f"pod-{index}").now


PRETTY = "".join(json.dumps({"type": "ADDED", "object": named(index)}, indent=4) + "\n" for index in range(3))
COMPACT = "".join(json.dumps({"type": "ADDED", "object": named(index)}) + "\n" for index in range(3))


@pytest.mark.parametrize(
    "text",
    [
        PRETTY,
        COMPACT,
        COMPACT.replace("\n", ""),
        PRETTY.replace("\n", "\r\n"),
        f"[{','.join(COMPACT.splitlines())}]",
        "[\n" + ",\n".join(COMPACT.splitlines()) + "\n]\n",
        "".join(json.dumps(named(index)) + "\n" for index in range(3)),
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [named(index) for index in range(3)]}, indent=4),
        json.dumps({"kind": "PodList", "items": [{"metadata": {"name": f"pod-{index}"}} for index in range(3)]}),
    ],
    ids=["pretty", "compact", "one line", "windows", "array", "array of lines", "pods", "list", "pod list"],
)
def test_every_way_to_write_pods_is_read(text: str) -> None:
    """One after the other, as a list, over many lines or one."""
    records, broken = read(text)
    assert [each.pod["metadata"]["name"] for each in records] == ["pod-0", "pod-1", "pod-2"]
    assert not broken


@given(st.lists(st.sampled_from(["ADDED", "MODIFIED", "DELETED"]), min_size=1, max_size=6), st.booleans(), st.data())
def test_a_record_that_breaks_off_costs_no_other(kinds: list[str], indented: bool, data: st.DataObject) -> None:  # noqa: FBT001  # drawn
    """Wherever it was cut: it is told with its line, and all others are read."""
    texts = [
        json.dumps({"type": what, "object": named(index)}, indent=4 if indented else None) + "\n"
        for index, what in enumerate(kinds)
    ]
    cut = data.draw(st.integers(0, len(texts) - 1))
    length = data.draw(st.integers(1, len(texts[cut]) - 3))
    before = sum(text.count("\n") for text in texts[:cut])
    broken_text = texts[cut][:length] + "\n"
    records, broken = read("".join([*texts[:cut], broken_text, *texts[cut + 1 :]]))
    assert [each.pod["metadata"]["name"] for each in records] == [f"pod-{i}" for i in range(len(kinds)) if i != cut]
    [trouble] = broken
    assert before < trouble.line <= before + broken_text.count("\n") + 1
    assert f"starts in line {before + 1}" in trouble.what


@given(st.text(max_size=200))
def test_any_text_is_read_or_told(text: str) -> None:
    """Nothing is raised."""
    records, broken = read(text)
    assert records == []
    assert bool(broken) == bool(text.strip(" \t\r\n\x0b\x0c,[]\x1c\x1d\x1e\x1f\x85\xa0") and text.strip())


@pytest.mark.parametrize(
    ("text", "said"),
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
def test_what_is_wrong_is_said_with_its_place(text: str, said: str) -> None:
    """And what to do about it, where that helps."""
    records, broken = read(text)
    assert not records
    assert [said in str(each) for each in broken] == ([True] if said else [])


def test_bookmarks_are_no_pods() -> None:
    """They say how far the watch is."""
    assert read('{"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {}}}') == ([], [])
