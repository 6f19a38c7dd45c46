"""Collector notes: state restored after a crash."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from kwokfleet.measure.collector import Collector
from kwokfleet.measure.pods import EventType
from kwokfleet.measure.result import Clock
from tests.harness.pod_timelines import T0, Event, PodTimeline, condition, job, new_collector, timestamp
from tests.unit.measure.test_collector import LONG_AFTER, deterministic, pod_timeline_tuples

CAPACITY = {"general": {"cpu": 10.0, "pods": 110.0}}


def events_in_order(pods: tuple[PodTimeline, ...]) -> Iterator[Event]:
    """Yield all events of all pods in order of time."""
    yield from sorted((event for pod in pods for event in pod.events()), key=lambda event: event[2])


def run_until(collector: Collector, pods: tuple[PodTimeline, ...], until: int) -> list[bytes]:
    """Process events up to a step and return the notes."""
    lines: list[bytes] = []
    for step, event in enumerate(events_in_order(pods)):
        if step == until:
            break
        collector.pod(*event)
        collector.submitted(step, event[2], event[2] + 0.001, "" if step % 3 else f"Pod p-{step}: 403 no", step % 2)
        collector.tick(event[2], CAPACITY)
        if step % 2:
            lines += collector.notes()
    collector.mark(T0 + 1, "suspended")
    collector.gap(T0 + 2, T0 + 3, "the connection was lost")
    return lines + collector.notes()


@deterministic
@given(pod_timeline_tuples, st.integers(0, 30))
def test_a_restored_collector_has_the_same_result(pods: tuple[PodTimeline, ...], until: int) -> None:
    """Nothing is written to the notes twice."""
    original, restored = new_collector(len(pods)), new_collector(len(pods))
    restored.restore(run_until(original, pods, until))
    assert restored.result(LONG_AFTER) == original.result(LONG_AFTER)
    assert list(restored.pods()) == list(original.pods())
    assert restored.is_over() == original.is_over()
    assert restored.notes() == []


@deterministic
@given(pod_timeline_tuples, st.integers(0, 30), st.integers(0, 30))
def test_notes_of_two_processes_are_restored_together(pods: tuple[PodTimeline, ...], first: int, second: int) -> None:
    """The second appends to the file of the first; the truncated last line is ignored."""
    one, two, three = new_collector(len(pods)), new_collector(len(pods)), new_collector(len(pods))
    file = b"\n".join([*run_until(one, pods, first), b'["p",0,1,18'])
    two.restore(file.split(b"\n"))
    file += b"\n".join(run_until(two, pods, second)) + b"\n"
    three.restore(file.split(b"\n"))
    assert three.result(LONG_AFTER) == two.result(LONG_AFTER)
    assert list(three.pods()) == list(two.pods())


@deterministic
@given(pod_timeline_tuples, st.integers(0, 30), st.data())
def test_a_truncated_file_is_restored(pods: tuple[PodTimeline, ...], until: int, data: st.DataObject) -> None:
    """A power loss may truncate the file anywhere."""
    file = b"\n".join(run_until(new_collector(len(pods)), pods, until))
    torn = file[: data.draw(st.integers(0, len(file)))]
    restored = new_collector(len(pods))
    restored.restore(torn.split(b"\n"))
    for event in events_in_order(pods):
        restored.pod(*event)
    reference = new_collector(len(pods))
    for event in events_in_order(pods):
        reference.pod(*event)
    assert restored.result(LONG_AFTER).latencies == reference.result(LONG_AFTER).latencies


def test_the_gap_begins_at_the_last_note() -> None:
    """Nothing was observed after it."""
    original, timeline = new_collector(), PodTimeline(0, 0, 1)
    for event in timeline.events():
        original.pod(*event)
    restored = new_collector()
    assert restored.restore(original.notes()) == T0 + 1.25
    assert new_collector().restore([]) is None


def test_a_list_after_a_restart_keeps_earlier_watch_times() -> None:
    """Milestones before the crash have watch times; milestones in the gap have API times only."""
    original, restored, timeline = new_collector(), new_collector(), PodTimeline(0, 0, 1, 2, 12)
    for event in list(timeline.events())[:2]:
        original.pod(*event)
    restored.restore(original.notes())
    restored.pod(EventType.LISTED, timeline.at(5), T0 + 8)
    restored.listed("Pod", T0 + 8)
    for event in list(timeline.events())[3:]:
        restored.pod(*event)
    result = restored.result(LONG_AFTER)
    known = {
        latency.name: (latency.count, latency.missing) for latency in result.latencies if latency.clock is Clock.WATCH
    }
    assert known == {"scheduling": (1, 0), "podStartup": (0, 1), "ready": (0, 1), "completion": (1, 0)}
    assert all(latency.missing == 0 for latency in result.latencies if latency.clock is Clock.API)
    assert restored.is_over()


def test_a_pod_deleted_in_a_gap_has_no_deletion_time() -> None:
    """It counts as deleted, and the Run does not wait for it."""
    original, restored = new_collector(2), new_collector(2)
    for event in (*PodTimeline(0, 0, 1, 2).events(), *PodTimeline(1, 0, 1, 2).events()):
        original.pod(*event)
    restored.restore(original.notes())
    restored.pod(EventType.LISTED, PodTimeline(1, 0, 1, 2, 5).at(6), T0 + 8)
    assert not restored.is_over()
    restored.listed("Pod", T0 + 8)
    gone, present = restored.pods()
    assert (gone.deleted, "gone" in gone.seen) == (True, False)
    assert not present.deleted
    assert restored.is_over()
    assert restored.result(LONG_AFTER).pods.deleted == 1


def test_an_object_created_and_deleted_in_a_gap_is_counted() -> None:
    """The notes or the Ledger record its submission, and the list does not contain it."""
    original = new_collector(3, "Job")
    original.submitted(0, T0, T0, "", 0)
    restored = new_collector(3, "Job")
    restored.restore(original.notes())
    done = {"startTime": timestamp(T0), "conditions": [condition("Complete", 3)]}
    restored.workload(EventType.LISTED, job(1, done), T0 + 9)
    restored.listed("Job", T0 + 9, submitted=2)
    assert not restored.is_over()
    restored.submitted(2, T0, T0 + 10, "", 0)
    assert not restored.is_over()
    restored.workload(EventType.ADDED, job(2, done), T0 + 11)
    assert restored.is_over()
    result = restored.result(LONG_AFTER)
    assert (result.objects.created, result.objects.deleted) == (3, 1)


def test_a_list_during_a_run_detects_deleted_pods() -> None:
    """A pod added after the list began is not counted as deleted."""
    collector = new_collector(3)
    for index in range(2):
        for event in PodTimeline(index, 0, 1, 2).events():
            collector.pod(*event)
    collector.listing("Pod")
    for event in PodTimeline(2, 5, 6).events():
        collector.pod(*event)
    collector.pod(EventType.LISTED, PodTimeline(0, 0, 1, 2).at(9), T0 + 9)
    collector.listed("Pod", T0 + 9)
    assert [pod.deleted for pod in collector.pods()] == [False, True, False]
    assert collector.result(LONG_AFTER).latency("podStartup", "pods", Clock.WATCH).count == 2  # type: ignore[union-attr]


def test_jobs_and_their_pods_are_restored_together() -> None:
    """Owner links are restored too."""
    original, own = new_collector(kind="Job"), job(0)
    original.workload(EventType.ADDED, own, T0 + 0.1)
    lines = original.notes()
    for event in PodTimeline(7, 1.2, 2, 3, 13, owner=own).events():
        original.pod(*event)
        lines += original.notes()
    original.workload(EventType.MODIFIED, job(0, {"conditions": [condition("Failed", 14)]}), T0 + 14.6)
    lines += original.notes()
    restored = new_collector(kind="Job")
    assert restored.restore(lines) == T0 + 14.6
    assert restored.result(LONG_AFTER) == original.result(LONG_AFTER)
    assert list(restored.pods()) == list(original.pods())
    assert restored.is_over()
