"""The Book of a Run: what each latency means, of whom it is known, and when a Run is over."""

import itertools
from collections.abc import Iterable
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwokfleet.measure import percentiles
from kwokfleet.measure.collector import Collector
from kwokfleet.measure.pods import EventType
from kwokfleet.measure.result import Clock, Latency, Result
from tests.harness.pod_timelines import DELAY_S, T0, PodTimeline, collector, condition, job, timestamp

LONG_AFTER = T0 + 10_000

at_leisure = settings(deadline=None, derandomize=True, database=None)
moments = st.integers(0, 400_000).map(lambda milliseconds: milliseconds / 1000)


@st.composite
def lives(draw: st.DrawFn, index: int = 0) -> PodTimeline:
    """Draw the life of a pod, which may end anywhere."""
    times = sorted(draw(st.lists(moments, min_size=5, max_size=5, unique=True)))
    reached = draw(st.integers(0, 3))
    known = [times[step] if step <= reached else None for step in range(4)]
    return PodTimeline(
        index,
        times[0],
        known[1],
        known[2],
        known[3],
        gone=times[4] if draw(st.booleans()) else None,
        failed=draw(st.booleans()),
        scheduler=draw(st.sampled_from(["default-scheduler", "other"])),
        volumes=draw(st.sampled_from([(), ({"name": "v", "persistentVolumeClaim": {}},)])),
    )


many_lives = st.integers(0, 8).flatmap(lambda count: st.tuples(*(lives(index) for index in range(count))))


def told(to: Collector, pods: Iterable[PodTimeline]) -> Collector:
    """Tell a Book everything, in order of time."""
    events = (event for pod in pods for event in pod.events())
    for event in sorted(events, key=lambda each: each[2]):
        to.pod(*event)
    return to


def one(result: Result, name: str, of: str = "pods", clock: Clock = Clock.WATCH) -> Latency:
    """Return a latency that must be there."""
    found = result.latency(name, of, clock)
    assert found is not None
    return found


def test_a_run_s_timeline_tells_when_it_started_what_was_marked_and_when_it_was_over() -> None:
    """In order; what has not happened is not in it."""
    made = collector(total=1)
    made.mark(T0 + 3, "suspended")
    assert [each.what for each in made.result(LONG_AFTER).marks] == ["started", "suspended"]
    made.submitted(0, T0, T0 + 0.5, "", 0)
    told(made, [PodTimeline(0, 0.9, 1.15, 2.2, 12.3)])
    marks = [each.what for each in made.result(LONG_AFTER).marks]
    assert marks == ["started", "last object submitted", "suspended", "all over"]


# ----------------------------------------------------------------------------------------
# definitions


def test_the_watch_tells_latencies_to_the_millisecond_and_the_api_to_the_second() -> None:
    """Both are kept, each under its name."""
    result = told(collector(), [PodTimeline(0, 0.9, 1.15, 2.2, 12.3)]).result(LONG_AFTER)
    for name, watched, by_api in (
        ("scheduling", 0.25, 1),
        ("podStartup", 1.3, 2),
        ("ready", 1.3, 2),
        ("completion", 11.4, 12),
    ):
        assert one(result, name).p99 == pytest.approx(watched)
        assert one(result, name, clock=Clock.API).p99 == by_api
        assert (one(result, name).count, one(result, name).missing) == (1, 0)


def test_clusterloader2_until_2026_mixes_api_times_events_and_the_watch() -> None:
    """A binding's time is the Scheduled Event's; the end is when the watch first told that the pod runs."""
    made = told(collector(), [PodTimeline(0, 0.9, 1.15, 2.2, 12.3)])
    made.scheduled_event("default", "lab-stress-0-0", T0 + 1.1)
    result = made.result(LONG_AFTER)
    got = {each.name: each.p50 for each in result.latencies if each.clock is Clock.CL2_2024 and each.of == "pods"}
    assert got == pytest.approx(
        {
            "create_to_schedule": 1.1,
            "schedule_to_run": 0.9,
            "run_to_watch": 0.2 + DELAY_S,
            "schedule_to_watch": 1.1 + DELAY_S,
            "pod_startup": 2.2 + DELAY_S,
        }
    )


def test_clusterloader2_since_2026_knows_the_watch_alone() -> None:
    """Running and seen running are one moment there."""
    result = told(collector(), [PodTimeline(0, 0.9, 1.15, 2.2, 12.3)]).result(LONG_AFTER)
    got = {each.name: each.p50 for each in result.latencies if each.clock is Clock.CL2_2026 and each.of == "pods"}
    assert got == pytest.approx(
        {
            "create_to_schedule": 0.25,
            "schedule_to_run": 1.05,
            "run_to_watch": 0.0,
            "schedule_to_watch": 1.05,
            "create_to_run": 1.3,
            "pod_startup": 1.3,
        }
    )


def test_without_scheduled_events_the_old_definition_has_no_data_of_scheduling() -> None:
    """No data is no number, and those it is unknown of are counted."""
    result = told(collector(), [PodTimeline(0, 0, 1, 2)]).result(LONG_AFTER)
    for name in ("create_to_schedule", "schedule_to_run", "schedule_to_watch"):
        latency = one(result, name, clock=Clock.CL2_2024)
        assert (latency.count, latency.missing, latency.p50, latency.cdf) == (0, 1, None, ())
    assert one(result, "pod_startup", clock=Clock.CL2_2024).count == 1


def test_of_a_pod_that_never_ran_clusterloader2_counts_at_most_its_binding() -> None:
    """Until 2026 nothing at all; neither as a number nor as missing: it has not started."""
    made = told(collector(), [PodTimeline(0, 0, 1)])
    made.scheduled_event("default", "lab-stress-0-0", T0 + 1)
    result = made.result(LONG_AFTER)
    for clock in (Clock.CL2_2024, Clock.CL2_2026):
        latency = one(result, "pod_startup", clock=clock)
        assert (latency.count, latency.missing) == (0, 0)
    assert one(result, "create_to_schedule", clock=Clock.CL2_2024).count == 0
    assert one(result, "create_to_schedule", clock=Clock.CL2_2026).p50 == 1


def test_a_latency_below_zero_counts_as_zero() -> None:
    """Clocks differ; an Event may be older than the second in which its pod was made."""
    made = told(collector(), [PodTimeline(0, 3.9, 4.0, 5.0)])
    made.scheduled_event("default", "lab-stress-0-0", T0 + 2.5)
    assert one(made.result(LONG_AFTER), "create_to_schedule", clock=Clock.CL2_2024).p50 == 0


def test_pods_that_keep_something_are_stateful() -> None:
    """Volumes that live and die with the pod, or only bring configuration, do not make it so."""
    claim = {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}
    token = {"name": "t", "projected": {}}
    made = told(
        collector(2), [PodTimeline(0, 0, 1, 2, volumes=(token,)), PodTimeline(1, 0, 1, 3, volumes=(token, claim))]
    )
    result = made.result(LONG_AFTER)
    for clock, first, second in ((Clock.CL2_2026, 2, 3), (Clock.CL2_2024, 2 + DELAY_S, 3 + DELAY_S)):
        assert one(result, "pod_startup", "pods/stateless", clock).max == pytest.approx(first)
        assert one(result, "pod_startup", "pods/stateful", clock).max == pytest.approx(second)
    assert [each.stateless for each in made.pods()] == [True, False]


def test_schedulers_are_told_apart_when_there_are_several() -> None:
    """One scheduler alone needs no row of its own."""
    result = told(collector(), [PodTimeline(0, 0, 1)]).result(LONG_AFTER)
    assert not [each for each in result.latencies if each.of.startswith("pods/scheduler=")]
    result = told(collector(2), [PodTimeline(0, 0, 1), PodTimeline(1, 0, 3, scheduler="slow")]).result(LONG_AFTER)
    assert one(result, "scheduling", "pods/scheduler=slow").max == 3
    assert one(result, "scheduling", "pods/scheduler=default-scheduler").max == 1
    assert [each.scheduler for each in result.throughput] == ["", "default-scheduler", "slow"]


def test_failed_pods_have_no_completion() -> None:
    """They are counted as failed, and why they failed is said once."""
    made = told(collector(3), [PodTimeline(index, 0, 1, 2, 3, failed=index > 0) for index in range(3)])
    result = made.result(LONG_AFTER)
    assert one(result, "completion").count == 1
    assert (result.pods.completed, result.pods.failed) == (1, 2)
    assert [(each.what, each.count, each.example) for each in result.troubles] == [
        ("pod failed: no reason given, exit code 1", 2, "Pod lab-stress-0-1")
    ]


def test_a_pod_made_again_under_its_name_is_another_pod() -> None:
    """Churn deletes and makes again; Events name pods, not their UIDs."""
    first, second = PodTimeline(0, 0, 1, 2, gone=10), PodTimeline(1, 20, 22)
    made = told(collector(), [first])
    manifest = second.at(22)
    manifest["metadata"]["name"] = first.name
    made.pod(EventType.ADDED, manifest, T0 + 22)
    made.scheduled_event("default", first.name, T0 + 1.5)
    made.scheduled_event("default", first.name, T0 + 22.5)
    assert [each.api.get("event") for each in made.pods()] == [T0 + 1.5, T0 + 22.5]


# ----------------------------------------------------------------------------------------
# workloads


def test_a_jobs_dispatch_start_and_completion() -> None:
    """Its first pod exists, it says that it started, it is complete."""
    made, own = collector(kind="Job"), job(0)
    made.workload(EventType.ADDED, own, T0 + 0.1)
    for event in PodTimeline(7, 1.2, 2, 3, 13, owner=own).events():
        made.pod(*event)
    started = {"startTime": timestamp(T0 + 1)}
    made.workload(EventType.MODIFIED, job(0, started), T0 + 1.5)
    done = {**started, "completionTime": timestamp(T0 + 14), "conditions": [condition("Complete", 14)]}
    assert not made.is_over()
    made.workload(EventType.MODIFIED, job(0, done), T0 + 14.6)
    result = made.result(LONG_AFTER)
    for name, watched, by_api in (("dispatch", 1.2 + DELAY_S - 0.1, 1), ("start", 1.4, 1), ("completion", 14.5, 14)):
        assert one(result, name, "Job").p50 == pytest.approx(watched)
        assert one(result, name, "Job", Clock.API).p50 == by_api
    assert made.is_over()
    assert result.end is not None
    assert result.end.timestamp() == pytest.approx(T0 + 14.6)
    (pod,) = made.pods()
    assert (pod.owner, pod.index) == ("Job/lab-stress-0-0", 0)


def test_a_failed_job_is_over_and_says_why() -> None:
    """Its completion is not measured."""
    made = collector(kind="Job")
    failed = condition("Failed", 5, reason="BackoffLimitExceeded", message="too often")
    made.workload(EventType.ADDED, job(0, {"conditions": [failed]}), T0 + 5)
    result = made.result(LONG_AFTER)
    assert made.is_over()
    assert (result.objects.failed, result.objects.completed) == (1, 0)
    assert one(result, "completion", "Job").count == 0
    assert result.troubles[0].what == "Job failed: BackoffLimitExceeded: too often"


@pytest.mark.parametrize("pods_first", [True, False])
def test_a_deployments_pods_belong_to_it_though_a_replica_set_is_between(*, pods_first: bool) -> None:
    """Whichever watch is quicker."""
    made = collector(kind="Deployment", ends=False)
    own, between = job(0, kind="Deployment"), job(8, kind="ReplicaSet")
    between["metadata"]["name"] = "lab-stress-0-0-7d9c5b"
    pod_events = list(PodTimeline(3, 1, 2, 4, owner=between).events())
    for event in pod_events if pods_first else ():
        made.pod(*event)
    made.tick(T0 + 1, {})
    made.workload(EventType.ADDED, own, T0 + 0.25)
    for event in () if pods_first else pod_events:
        made.pod(*event)
    made.tick(T0 + 9, {})
    ready = {"readyReplicas": 2, "conditions": [condition("Available", 5)]}
    assert not made.is_over()
    made.workload(EventType.MODIFIED, job(0, ready, kind="Deployment"), T0 + 5.25)
    result = made.result(LONG_AFTER)
    assert one(result, "dispatch", "Deployment").p50 == 1
    assert one(result, "start", "Deployment").p50 == 4
    assert one(result, "completion", "Deployment").p50 == 5
    assert made.is_over()
    assert [(each.owner, each.index) for each in made.pods()] == [("Deployment/lab-stress-0-0", 0)]
    assert result.objects.created == result.objects.completed == 1


# ----------------------------------------------------------------------------------------
# what nobody saw


def test_what_was_there_when_the_watch_began_is_missing_for_the_watch_and_known_to_the_api() -> None:
    """And events that follow do not make up for it."""
    made, life = collector(), PodTimeline(0, 0, 1, 2, 12)
    made.pod(EventType.LISTED, life.at(3), T0 + 5)
    made.pod(EventType.MODIFIED, life.at(12), T0 + 12.25)
    result = made.result(LONG_AFTER)
    for name in ("scheduling", "podStartup", "ready", "completion"):
        assert (one(result, name).count, one(result, name).missing) == (0, 1)
        assert (one(result, name, clock=Clock.API).count, one(result, name, clock=Clock.API).missing) == (1, 0)
    assert one(result, "pod_startup", clock=Clock.CL2_2024).missing == 1
    (pod,) = made.pods()
    assert pod.seen == {"over": T0 + 12.25}


def test_a_pod_found_complete_has_run_and_been_ready_unseen() -> None:
    """Its Ready condition is false by then, so that not even the API knows since when it was true."""
    made = collector()
    made.pod(EventType.LISTED, PodTimeline(0, 0, 1, 2, 12).at(13), T0 + 20)
    result = made.result(LONG_AFTER)
    assert one(result, "ready", clock=Clock.API).missing == 1
    assert one(result, "podStartup", clock=Clock.API).p50 == 2
    assert result.pods.running == 1


def test_what_is_told_late_because_of_a_gap_is_missing_for_the_watch() -> None:
    """A watch that goes on where it broke tells all at once: when it was is known to the API alone."""
    made, life = collector(), PodTimeline(0, 0.3, 10.3, 20.3, 30.3)
    made.gap(T0 + 5, T0 + 25, "the connection was lost")
    for seen, manifest, received in life.events():
        made.pod(seen, manifest, T0 + 25.5 if 5 < received - T0 < 25 else received)
    made.gap(T0 + 30.2, T0 + 30.5, "too short to matter")
    result = made.result(LONG_AFTER)
    known = {each.name: (each.count, each.missing) for each in result.latencies if each.clock is Clock.WATCH}
    assert known == {"scheduling": (0, 1), "podStartup": (0, 1), "ready": (0, 1), "completion": (1, 0)}
    assert [each.p50 for each in result.latencies if each.clock is Clock.API] == [10, 20, 20, 30]
    assert next(made.pods()).seen.keys() == {"created", "over"}


# ----------------------------------------------------------------------------------------
# when it is over


def test_a_run_is_over_when_all_is_submitted_and_every_object_is() -> None:
    """Complete, failed, deleted and refused are all ways to be over."""
    made = collector(4)
    ends = [PodTimeline(0, 0, 1, 2, 3), PodTimeline(1, 0, 1, 2, 4, failed=True), PodTimeline(2, 0, gone=6)]
    for pod in ends:
        made.submitted(pod.index, T0, T0, "", 0)
        assert not told(made, [pod]).is_over()
    made.submitted(3, T0, T0 + 1, "Pod lab-stress-0-3: 403 exceeded quota", 0)
    assert made.is_over()
    end = made.result(LONG_AFTER).end
    assert end is not None
    assert end.timestamp() == T0 + 6 + DELAY_S


def test_what_never_ends_is_over_when_it_is_ready() -> None:
    """If it is known that it never ends."""
    assert told(collector(ends=False), [PodTimeline(0, 0, 1, 2)]).is_over()
    assert not told(collector(ends=False), [PodTimeline(0, 0, 1)]).is_over()
    assert not told(collector(ends=True), [PodTimeline(0, 0, 1, 2)]).is_over()


def test_trouble_is_said_once_for_all_that_it_is_the_same_for() -> None:
    """Names and numbers make no difference; an answer that changes its mind counts."""
    made = collector(30)
    for index in range(25):
        text = f'403 jobs.batch "lab-{index}" is forbidden: exceeded quota, used: {index}'
        made.submitted(index, T0, T0, f"Job lab-{index}: {text}", 1)
    made.submitted(25, T0, T0, "no answer from https://127.0.0.1: refused", 0)
    result = made.result(LONG_AFTER)
    assert [(each.count, each.example) for each in result.troubles] == [(25, "Job lab-0"), (1, "object 25")]
    assert (result.pacing.refused, result.pacing.retried, result.pacing.count) == (26, 25, 26)
    made.submitted(25, T0, T0 + 60, "", 0)
    assert made.result(LONG_AFTER).pacing.refused == 25


def test_troubles_of_many_kinds_are_bounded() -> None:
    """And still add up."""
    made = collector(100)
    for index in range(100):
        made.submitted(index, T0, T0, f"Job lab-{index}: {'x' * index} is bad", 0)
    troubles = made.result(LONG_AFTER).troubles
    assert len(troubles) == 20
    assert sum(each.count for each in troubles) == 100


def test_pacing_compares_when_it_was_sent_with_when_it_was_due() -> None:
    """By the same percentiles; rates from the first object to the last."""
    made = collector(4)
    for index, late in enumerate((0.001, 0.002, 0.003, 0.5)):
        made.submitted(index, T0 + index, T0 + index + late, "", 0)
    pacing = made.result(LONG_AFTER).pacing
    assert (pacing.p50, pacing.p90, pacing.max) == (0.002, 0.5, 0.5)
    assert pacing.planned_rate == 1.0
    assert pacing.rate == pytest.approx(3 / 3.499, abs=1e-5)
    assert collector().result(LONG_AFTER).pacing.p50 is None


# ----------------------------------------------------------------------------------------
# properties


@at_leisure
@given(many_lives, st.randoms(use_true_random=False))
def test_neither_order_nor_repetition_matters(pods: tuple[PodTimeline, ...], chance: object) -> None:
    """Two watches race, and a list repeats what was told before."""
    events = [event for pod in pods for event in pod.events()]
    listed = [
        (EventType.LISTED, pod.at(200), T0 + 200.5) for pod in pods if pod.created <= 200 and not (pod.gone or 0) > 0
    ]
    in_order, shuffled = collector(len(pods)), [*events, *listed, *events]
    for event in sorted([*events, *listed], key=lambda each: each[2]):
        in_order.pod(*event)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis has no name for its type
    disordered = collector(len(pods))
    for event in shuffled:
        disordered.pod(*event)
    assert _comparable(disordered) == _comparable(in_order)
    assert disordered.is_over() == in_order.is_over()


def _comparable(made: Collector) -> tuple[object, object]:
    result = made.result(LONG_AFTER)
    told_of = [(each.what, each.count) for each in result.troubles]
    rows = sorted((pod.model_dump() for pod in made.pods()), key=lambda each: str(each["uid"]))
    return (result.model_dump(exclude={"troubles"}), told_of), rows


@at_leisure
@given(many_lives)
def test_percentiles_are_those_of_a_naive_computation(pods: tuple[PodTimeline, ...]) -> None:
    """Of every pod whose life was watched from the beginning."""
    result = told(collector(len(pods)), pods).result(LONG_AFTER)
    reached = {
        "scheduling": [pod.scheduled - pod.created for pod in pods if pod.scheduled is not None],
        "podStartup": [pod.running - pod.created for pod in pods if pod.running is not None],
        "completion": [pod.over - pod.created for pod in pods if pod.over is not None and not pod.failed],
    }
    for name, values in reached.items():
        latency = one(result, name)
        assert (latency.count, latency.missing) == (len(values), 0)
        for percent in (50, 90, 95, 99):
            want = sorted(values)[ceil(len(values) * percent / 100) - 1] if values else None
            got = getattr(latency, f"p{percent}")
            assert got == pytest.approx(want, abs=1e-5) if want is not None else got is None


@at_leisure
@given(many_lives)
def test_counts_add_up(pods: tuple[PodTimeline, ...]) -> None:
    """Each pod is counted once for every step that it took."""
    made = told(collector(len(pods)), pods)
    objects, counted = made.counts()
    assert counted.created == len(pods)
    assert counted.scheduled == sum(pod.scheduled is not None for pod in pods)
    assert counted.running == sum(pod.running is not None for pod in pods)
    assert counted.completed + counted.failed == sum(pod.over is not None for pod in pods)
    assert counted.deleted == sum(pod.gone is not None for pod in pods)
    assert objects.model_copy(update={"total": counted.total}) == counted
    assert made.is_over() == all(pod.over is not None or pod.gone is not None for pod in pods)


@at_leisure
@given(st.lists(st.floats(0, 1e6), max_size=700))
def test_a_curve_has_few_points_and_tells_the_truth_at_each(values: list[float]) -> None:
    """How many are not above a value, of all."""
    ordered = sorted(values)
    points = percentiles.cdf(ordered)
    assert len(points) <= percentiles.CDF_POINTS
    for value, fraction in points:
        assert fraction == pytest.approx(sum(each <= value for each in ordered) / len(ordered), abs=1e-6)
    assert all(first < second for first, second in itertools.pairwise(points))
    assert not ordered or points[-1] == (ordered[-1], 1.0)
