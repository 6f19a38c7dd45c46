"""Notes of a Book: who goes on after a crash knows what was seen before it, and what was not."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from kwokfleet.measure.collector import Collector
from kwokfleet.measure.pods import EventType
from kwokfleet.measure.result import Clock
from tests.harness.pod_timelines import T0, Event, PodTimeline, collector, condition, job, timestamp
from tests.unit.measure.test_collector import LONG_AFTER, at_leisure, many_lives

CAPACITY = {"general": {"cpu": 10.0, "pods": 110.0}}


def everything(pods: tuple[PodTimeline, ...]) -> Iterator[Event]:
    """Yield all events of all pods in order of time."""
    yield from sorted((event for pod in pods for event in pod.events()), key=lambda each: each[2])


def play(made: Collector, pods: tuple[PodTimeline, ...], until: int) -> list[bytes]:
    """Let a Run happen up to a step, and return what was noted, now and then."""
    lines: list[bytes] = []
    for step, event in enumerate(everything(pods)):
        if step == until:
            break
        made.pod(*event)
        made.submitted(step, event[2], event[2] + 0.001, "" if step % 3 else f"Pod p-{step}: 403 no", step % 2)
        made.tick(event[2], CAPACITY)
        if step % 2:
            lines += made.notes()
    made.mark(T0 + 1, "suspended")
    made.gap(T0 + 2, T0 + 3, "the connection was lost")
    return lines + made.notes()


@at_leisure
@given(many_lives, st.integers(0, 30))
def test_what_was_noted_gives_the_same_result_as_never_having_died(pods: tuple[PodTimeline, ...], until: int) -> None:
    """Every number, every pod, and whether it is over; and nothing is noted twice."""
    made, after = collector(len(pods)), collector(len(pods))
    after.restore(play(made, pods, until))
    assert after.result(LONG_AFTER) == made.result(LONG_AFTER)
    assert list(after.pods()) == list(made.pods())
    assert after.is_over() == made.is_over()
    assert after.notes() == []


@at_leisure
@given(many_lives, st.integers(0, 30), st.integers(0, 30))
def test_a_third_process_goes_on_as_well_as_the_second(pods: tuple[PodTimeline, ...], first: int, second: int) -> None:
    """Each adds its own notes to those that it found; the torn end of the first is not in the way."""
    one, two, three = collector(len(pods)), collector(len(pods)), collector(len(pods))
    file = b"\n".join([*play(one, pods, first), b'["p",0,1,18'])
    two.restore(file.split(b"\n"))
    file += b"\n".join(play(two, pods, second)) + b"\n"
    three.restore(file.split(b"\n"))
    assert three.result(LONG_AFTER) == two.result(LONG_AFTER)
    assert list(three.pods()) == list(two.pods())


@at_leisure
@given(many_lives, st.integers(0, 30), st.data())
def test_any_torn_end_is_survived(pods: tuple[PodTimeline, ...], until: int, data: st.DataObject) -> None:
    """A machine that loses power keeps any part of what was written."""
    file = b"\n".join(play(collector(len(pods)), pods, until))
    torn = file[: data.draw(st.integers(0, len(file)))]
    after = collector(len(pods))
    after.restore(torn.split(b"\n"))
    for event in everything(pods):
        after.pod(*event)
    told = collector(len(pods))
    for event in everything(pods):
        told.pod(*event)
    assert after.result(LONG_AFTER).latencies == told.result(LONG_AFTER).latencies


def test_the_time_of_the_last_note_is_when_the_gap_begins() -> None:
    """Nobody knows what happened from then on."""
    made, life = collector(), PodTimeline(0, 0, 1)
    for event in life.events():
        made.pod(*event)
    after = collector()
    assert after.restore(made.notes()) == T0 + 1.25
    assert collector().restore([]) is None


def test_a_list_after_a_restart_overwrites_nothing_that_was_seen() -> None:
    """What happened before the death is the watch's, what happened after it the API's alone."""
    made, after, life = collector(), collector(), PodTimeline(0, 0, 1, 2, 12)
    for event in list(life.events())[:2]:
        made.pod(*event)
    after.restore(made.notes())
    after.pod(EventType.LISTED, life.at(5), T0 + 8)
    after.listed("Pod", T0 + 8)
    for event in list(life.events())[3:]:
        after.pod(*event)
    result = after.result(LONG_AFTER)
    known = {each.name: (each.count, each.missing) for each in result.latencies if each.clock is Clock.WATCH}
    assert known == {"scheduling": (1, 0), "podStartup": (0, 1), "ready": (0, 1), "completion": (1, 0)}
    assert all(each.missing == 0 for each in result.latencies if each.clock is Clock.API)
    assert after.is_over()


def test_a_pod_that_vanished_while_nobody_watched_is_gone_at_an_unknown_time() -> None:
    """It counts as deleted, and the Run does not wait for it."""
    made, after = collector(2), collector(2)
    for event in (*PodTimeline(0, 0, 1, 2).events(), *PodTimeline(1, 0, 1, 2).events()):
        made.pod(*event)
    after.restore(made.notes())
    after.pod(EventType.LISTED, PodTimeline(1, 0, 1, 2, 5).at(6), T0 + 8)
    assert not after.is_over()
    after.listed("Pod", T0 + 8)
    gone, there = after.pods()
    assert (gone.deleted, "gone" in gone.seen) == (True, False)
    assert not there.deleted
    assert after.is_over()
    assert after.result(LONG_AFTER).pods.deleted == 1


def test_an_object_that_came_and_went_unseen_is_accounted_for() -> None:
    """It was sent before the crash, according to the notes or the Ledger, and is not there."""
    made = collector(3, "Job")
    made.submitted(0, T0, T0, "", 0)
    after = collector(3, "Job")
    after.restore(made.notes())
    done = {"startTime": timestamp(T0), "conditions": [condition("Complete", 3)]}
    after.workload(EventType.LISTED, job(1, done), T0 + 9)
    after.listed("Job", T0 + 9, submitted=2)
    assert not after.is_over()
    after.submitted(2, T0, T0 + 10, "", 0)
    assert not after.is_over()
    after.workload(EventType.ADDED, job(2, done), T0 + 11)
    assert after.is_over()
    result = after.result(LONG_AFTER)
    assert (result.objects.created, result.objects.deleted) == (3, 1)


def test_a_list_in_the_middle_of_a_run_finds_out_who_is_gone() -> None:
    """The watch broke and had to begin anew; what came meanwhile is not in doubt."""
    made = collector(3)
    for index in range(2):
        for event in PodTimeline(index, 0, 1, 2).events():
            made.pod(*event)
    made.listing("Pod")
    for event in PodTimeline(2, 5, 6).events():
        made.pod(*event)
    made.pod(EventType.LISTED, PodTimeline(0, 0, 1, 2).at(9), T0 + 9)
    made.listed("Pod", T0 + 9)
    assert [each.deleted for each in made.pods()] == [False, True, False]
    assert made.result(LONG_AFTER).latency("podStartup", "pods", Clock.WATCH).count == 2  # type: ignore[union-attr]


def test_jobs_and_their_pods_are_remembered_together() -> None:
    """Also the links between them."""
    made, own = collector(kind="Job"), job(0)
    made.workload(EventType.ADDED, own, T0 + 0.1)
    lines = made.notes()
    for event in PodTimeline(7, 1.2, 2, 3, 13, owner=own).events():
        made.pod(*event)
        lines += made.notes()
    made.workload(EventType.MODIFIED, job(0, {"conditions": [condition("Failed", 14)]}), T0 + 14.6)
    lines += made.notes()
    after = collector(kind="Job")
    assert after.restore(lines) == T0 + 14.6
    assert after.result(LONG_AFTER) == made.result(LONG_AFTER)
    assert list(after.pods()) == list(made.pods())
    assert after.is_over()
