"""Collector: latency definitions, missing samples and the end of a Run."""

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
from tests.harness.pod_timelines import DELAY_S, T0, PodTimeline, condition, job, new_collector, timestamp

LONG_AFTER = T0 + 10_000

deterministic = settings(deadline=None, derandomize=True, database=None)
times_s = st.integers(0, 400_000).map(lambda milliseconds: milliseconds / 1000)


@st.composite
def pod_timelines(draw: st.DrawFn, index: int = 0) -> PodTimeline:
    """Draw a pod timeline that may stop at any step."""
    times = sorted(draw(st.lists(times_s, min_size=5, max_size=5, unique=True)))
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


pod_timeline_tuples = st.integers(0, 8).flatmap(
    lambda count: st.tuples(*(pod_timelines(index) for index in range(count)))
)


def observe_pods(collector: Collector, pods: Iterable[PodTimeline]) -> Collector:
    """Pass all pod events to a Collector in order of time."""
    events = (event for pod in pods for event in pod.events())
    for event in sorted(events, key=lambda event: event[2]):
        collector.pod(*event)
    return collector


def require_latency(result: Result, name: str, of: str = "pods", clock: Clock = Clock.WATCH) -> Latency:
    """Return a latency; fail if it is missing."""
    latency = result.latency(name, of, clock)
    assert latency is not None
    return latency


def test_marks_include_start_last_submission_custom_marks_and_end() -> None:
    """Marks are in order of time; pending ones are absent."""
    collector = new_collector(total=1)
    collector.mark(T0 + 3, "suspended")
    assert [mark.what for mark in collector.result(LONG_AFTER).marks] == ["started", "suspended"]
    collector.submitted(0, T0, T0 + 0.5, "", 0)
    observe_pods(collector, [PodTimeline(0, 0.9, 1.15, 2.2, 12.3)])
    marks = [mark.what for mark in collector.result(LONG_AFTER).marks]
    assert marks == ["started", "last object submitted", "suspended", "all over"]


# ----------------------------------------------------------------------------------------
# definitions


def test_watch_latencies_have_milliseconds_and_api_latencies_whole_seconds() -> None:
    """Both clocks are reported."""
    result = observe_pods(new_collector(), [PodTimeline(0, 0.9, 1.15, 2.2, 12.3)]).result(LONG_AFTER)
    for name, watched, by_api in (
        ("scheduling", 0.25, 1),
        ("podStartup", 1.3, 2),
        ("ready", 1.3, 2),
        ("completion", 11.4, 12),
    ):
        assert require_latency(result, name).p99 == pytest.approx(watched)
        assert require_latency(result, name, clock=Clock.API).p99 == by_api
        assert (require_latency(result, name).count, require_latency(result, name).missing) == (1, 0)


def test_clusterloader2_2024_combines_api_times_events_and_the_watch() -> None:
    """Binding time: the Scheduled Event. End: the first watch event with phase Running."""
    collector = observe_pods(new_collector(), [PodTimeline(0, 0.9, 1.15, 2.2, 12.3)])
    collector.scheduled_event("default", "lab-stress-0-0", T0 + 1.1)
    result = collector.result(LONG_AFTER)
    got = {
        latency.name: latency.p50
        for latency in result.latencies
        if latency.clock is Clock.CL2_2024 and latency.of == "pods"
    }
    assert got == pytest.approx(
        {
            "create_to_schedule": 1.1,
            "schedule_to_run": 0.9,
            "run_to_watch": 0.2 + DELAY_S,
            "schedule_to_watch": 1.1 + DELAY_S,
            "pod_startup": 2.2 + DELAY_S,
        }
    )


def test_clusterloader2_2026_uses_only_the_watch() -> None:
    """run_to_watch is always 0."""
    result = observe_pods(new_collector(), [PodTimeline(0, 0.9, 1.15, 2.2, 12.3)]).result(LONG_AFTER)
    got = {
        latency.name: latency.p50
        for latency in result.latencies
        if latency.clock is Clock.CL2_2026 and latency.of == "pods"
    }
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


def test_clusterloader2_2024_has_no_scheduling_data_without_scheduled_events() -> None:
    """Percentiles are None and the pods count as missing."""
    result = observe_pods(new_collector(), [PodTimeline(0, 0, 1, 2)]).result(LONG_AFTER)
    for name in ("create_to_schedule", "schedule_to_run", "schedule_to_watch"):
        latency = require_latency(result, name, clock=Clock.CL2_2024)
        assert (latency.count, latency.missing, latency.p50, latency.cdf) == (0, 1, None, ())
    assert require_latency(result, "pod_startup", clock=Clock.CL2_2024).count == 1


def test_clusterloader2_counts_at_most_the_binding_of_a_pod_that_never_ran() -> None:
    """The 2024 definition ignores the pod: it is neither measured nor missing."""
    collector = observe_pods(new_collector(), [PodTimeline(0, 0, 1)])
    collector.scheduled_event("default", "lab-stress-0-0", T0 + 1)
    result = collector.result(LONG_AFTER)
    for clock in (Clock.CL2_2024, Clock.CL2_2026):
        latency = require_latency(result, "pod_startup", clock=clock)
        assert (latency.count, latency.missing) == (0, 0)
    assert require_latency(result, "create_to_schedule", clock=Clock.CL2_2024).count == 0
    assert require_latency(result, "create_to_schedule", clock=Clock.CL2_2026).p50 == 1


def test_a_latency_below_zero_counts_as_zero() -> None:
    """Clocks differ: an Event may be older than the creationTimestamp of its pod."""
    collector = observe_pods(new_collector(), [PodTimeline(0, 3.9, 4.0, 5.0)])
    collector.scheduled_event("default", "lab-stress-0-0", T0 + 2.5)
    assert require_latency(collector.result(LONG_AFTER), "create_to_schedule", clock=Clock.CL2_2024).p50 == 0


def test_pods_with_persistent_volumes_are_stateful() -> None:
    """Ephemeral and configuration volumes do not count."""
    claim = {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}
    token = {"name": "t", "projected": {}}
    collector = observe_pods(
        new_collector(2), [PodTimeline(0, 0, 1, 2, volumes=(token,)), PodTimeline(1, 0, 1, 3, volumes=(token, claim))]
    )
    result = collector.result(LONG_AFTER)
    for clock, first, second in ((Clock.CL2_2026, 2, 3), (Clock.CL2_2024, 2 + DELAY_S, 3 + DELAY_S)):
        assert require_latency(result, "pod_startup", "pods/stateless", clock).max == pytest.approx(first)
        assert require_latency(result, "pod_startup", "pods/stateful", clock).max == pytest.approx(second)
    assert [pod.stateless for pod in collector.pods()] == [True, False]


def test_several_schedulers_are_reported_separately() -> None:
    """A single scheduler gets no separate row."""
    result = observe_pods(new_collector(), [PodTimeline(0, 0, 1)]).result(LONG_AFTER)
    assert not [latency for latency in result.latencies if latency.of.startswith("pods/scheduler=")]
    result = observe_pods(new_collector(2), [PodTimeline(0, 0, 1), PodTimeline(1, 0, 3, scheduler="slow")]).result(
        LONG_AFTER
    )
    assert require_latency(result, "scheduling", "pods/scheduler=slow").max == 3
    assert require_latency(result, "scheduling", "pods/scheduler=default-scheduler").max == 1
    assert [throughput.scheduler for throughput in result.throughput] == ["", "default-scheduler", "slow"]


def test_failed_pods_have_no_completion() -> None:
    """They count as failed, and the reason is reported once."""
    collector = observe_pods(new_collector(3), [PodTimeline(index, 0, 1, 2, 3, failed=index > 0) for index in range(3)])
    result = collector.result(LONG_AFTER)
    assert require_latency(result, "completion").count == 1
    assert (result.pods.completed, result.pods.failed) == (1, 2)
    assert [(group.what, group.count, group.example) for group in result.troubles] == [
        ("pod failed: no reason given, exit code 1", 2, "Pod lab-stress-0-1")
    ]


def test_a_recreated_pod_with_the_same_name_is_a_new_pod() -> None:
    """Churn recreates pods, and Events are matched by pod name, not by UID."""
    first, second = PodTimeline(0, 0, 1, 2, gone=10), PodTimeline(1, 20, 22)
    collector = observe_pods(new_collector(), [first])
    manifest = second.at(22)
    manifest["metadata"]["name"] = first.name
    collector.pod(EventType.ADDED, manifest, T0 + 22)
    collector.scheduled_event("default", first.name, T0 + 1.5)
    collector.scheduled_event("default", first.name, T0 + 22.5)
    assert [pod.api.get("event") for pod in collector.pods()] == [T0 + 1.5, T0 + 22.5]


# ----------------------------------------------------------------------------------------
# workloads


def test_a_jobs_dispatch_start_and_completion() -> None:
    """First pod created, startTime set, condition Complete."""
    collector, own = new_collector(kind="Job"), job(0)
    collector.workload(EventType.ADDED, own, T0 + 0.1)
    for event in PodTimeline(7, 1.2, 2, 3, 13, owner=own).events():
        collector.pod(*event)
    started = {"startTime": timestamp(T0 + 1)}
    collector.workload(EventType.MODIFIED, job(0, started), T0 + 1.5)
    done = {**started, "completionTime": timestamp(T0 + 14), "conditions": [condition("Complete", 14)]}
    assert not collector.is_over()
    collector.workload(EventType.MODIFIED, job(0, done), T0 + 14.6)
    result = collector.result(LONG_AFTER)
    for name, watched, by_api in (("dispatch", 1.2 + DELAY_S - 0.1, 1), ("start", 1.4, 1), ("completion", 14.5, 14)):
        assert require_latency(result, name, "Job").p50 == pytest.approx(watched)
        assert require_latency(result, name, "Job", Clock.API).p50 == by_api
    assert collector.is_over()
    assert result.end is not None
    assert result.end.timestamp() == pytest.approx(T0 + 14.6)
    (pod,) = collector.pods()
    assert (pod.owner, pod.index) == ("Job/lab-stress-0-0", 0)


def test_a_failed_job_is_over_and_reports_the_reason() -> None:
    """Its completion is not measured."""
    collector = new_collector(kind="Job")
    failed = condition("Failed", 5, reason="BackoffLimitExceeded", message="too often")
    collector.workload(EventType.ADDED, job(0, {"conditions": [failed]}), T0 + 5)
    result = collector.result(LONG_AFTER)
    assert collector.is_over()
    assert (result.objects.failed, result.objects.completed) == (1, 0)
    assert require_latency(result, "completion", "Job").count == 0
    assert result.troubles[0].what == "Job failed: BackoffLimitExceeded: too often"


@pytest.mark.parametrize("pods_first", [True, False])
def test_pods_of_a_replica_set_belong_to_its_deployment(*, pods_first: bool) -> None:
    """The order of the two watches does not matter."""
    collector = new_collector(kind="Deployment", ends=False)
    own, between = job(0, kind="Deployment"), job(8, kind="ReplicaSet")
    between["metadata"]["name"] = "lab-stress-0-0-7d9c5b"
    pod_events = list(PodTimeline(3, 1, 2, 4, owner=between).events())
    for event in pod_events if pods_first else ():
        collector.pod(*event)
    collector.tick(T0 + 1, {})
    collector.workload(EventType.ADDED, own, T0 + 0.25)
    for event in () if pods_first else pod_events:
        collector.pod(*event)
    collector.tick(T0 + 9, {})
    ready = {"readyReplicas": 2, "conditions": [condition("Available", 5)]}
    assert not collector.is_over()
    collector.workload(EventType.MODIFIED, job(0, ready, kind="Deployment"), T0 + 5.25)
    result = collector.result(LONG_AFTER)
    assert require_latency(result, "dispatch", "Deployment").p50 == 1
    assert require_latency(result, "start", "Deployment").p50 == 4
    assert require_latency(result, "completion", "Deployment").p50 == 5
    assert collector.is_over()
    assert [(pod.owner, pod.index) for pod in collector.pods()] == [("Deployment/lab-stress-0-0", 0)]
    assert result.objects.created == result.objects.completed == 1


# ----------------------------------------------------------------------------------------
# watch gaps


def test_milestones_before_the_watch_are_missing_by_watch_and_measured_by_api() -> None:
    """Later events do not fill them in."""
    collector, timeline = new_collector(), PodTimeline(0, 0, 1, 2, 12)
    collector.pod(EventType.LISTED, timeline.at(3), T0 + 5)
    collector.pod(EventType.MODIFIED, timeline.at(12), T0 + 12.25)
    result = collector.result(LONG_AFTER)
    for name in ("scheduling", "podStartup", "ready", "completion"):
        assert (require_latency(result, name).count, require_latency(result, name).missing) == (0, 1)
        assert (
            require_latency(result, name, clock=Clock.API).count,
            require_latency(result, name, clock=Clock.API).missing,
        ) == (1, 0)
    assert require_latency(result, "pod_startup", clock=Clock.CL2_2024).missing == 1
    (pod,) = collector.pods()
    assert pod.seen == {"over": T0 + 12.25}


def test_a_pod_listed_as_complete_counts_as_run_without_ready_time() -> None:
    """Its Ready condition is False again, so the API has no Ready time either."""
    collector = new_collector()
    collector.pod(EventType.LISTED, PodTimeline(0, 0, 1, 2, 12).at(13), T0 + 20)
    result = collector.result(LONG_AFTER)
    assert require_latency(result, "ready", clock=Clock.API).missing == 1
    assert require_latency(result, "podStartup", clock=Clock.API).p50 == 2
    assert result.pods.running == 1


def test_events_delayed_by_a_gap_are_missing_by_watch() -> None:
    """A resumed watch delivers them all at once, so only API times are valid."""
    collector, timeline = new_collector(), PodTimeline(0, 0.3, 10.3, 20.3, 30.3)
    collector.gap(T0 + 5, T0 + 25, "the connection was lost")
    for seen, manifest, received in timeline.events():
        collector.pod(seen, manifest, T0 + 25.5 if 5 < received - T0 < 25 else received)
    collector.gap(T0 + 30.2, T0 + 30.5, "too short to matter")
    result = collector.result(LONG_AFTER)
    known = {
        latency.name: (latency.count, latency.missing) for latency in result.latencies if latency.clock is Clock.WATCH
    }
    assert known == {"scheduling": (0, 1), "podStartup": (0, 1), "ready": (0, 1), "completion": (1, 0)}
    assert [latency.p50 for latency in result.latencies if latency.clock is Clock.API] == [10, 20, 20, 30]
    assert next(collector.pods()).seen.keys() == {"created", "over"}


# ----------------------------------------------------------------------------------------
# end of a Run


def test_a_run_is_over_when_all_objects_are_submitted_and_over() -> None:
    """An object is over if it completed, failed, was deleted or was rejected."""
    collector = new_collector(4)
    ends = [PodTimeline(0, 0, 1, 2, 3), PodTimeline(1, 0, 1, 2, 4, failed=True), PodTimeline(2, 0, gone=6)]
    for pod in ends:
        collector.submitted(pod.index, T0, T0, "", 0)
        assert not observe_pods(collector, [pod]).is_over()
    collector.submitted(3, T0, T0 + 1, "Pod lab-stress-0-3: 403 exceeded quota", 0)
    assert collector.is_over()
    end = collector.result(LONG_AFTER).end
    assert end is not None
    assert end.timestamp() == T0 + 6 + DELAY_S


def test_objects_that_never_complete_are_over_when_ready() -> None:
    """Applies only with ends=False."""
    assert observe_pods(new_collector(ends=False), [PodTimeline(0, 0, 1, 2)]).is_over()
    assert not observe_pods(new_collector(ends=False), [PodTimeline(0, 0, 1)]).is_over()
    assert not observe_pods(new_collector(ends=True), [PodTimeline(0, 0, 1, 2)]).is_over()


def test_equal_failures_are_grouped() -> None:
    """Names and numbers are ignored; a later success replaces a failure."""
    collector = new_collector(30)
    for index in range(25):
        text = f'403 jobs.batch "lab-{index}" is forbidden: exceeded quota, used: {index}'
        collector.submitted(index, T0, T0, f"Job lab-{index}: {text}", 1)
    collector.submitted(25, T0, T0, "no answer from https://127.0.0.1: refused", 0)
    result = collector.result(LONG_AFTER)
    assert [(group.count, group.example) for group in result.troubles] == [(25, "Job lab-0"), (1, "object 25")]
    assert (result.pacing.refused, result.pacing.retried, result.pacing.count) == (26, 25, 26)
    collector.submitted(25, T0, T0 + 60, "", 0)
    assert collector.result(LONG_AFTER).pacing.refused == 25


def test_the_number_of_failure_groups_is_bounded() -> None:
    """Their counts still add up to the total."""
    collector = new_collector(100)
    for index in range(100):
        collector.submitted(index, T0, T0, f"Job lab-{index}: {'x' * index} is bad", 0)
    troubles = collector.result(LONG_AFTER).troubles
    assert len(troubles) == 20
    assert sum(group.count for group in troubles) == 100


def test_pacing_compares_send_times_with_due_times() -> None:
    """Rates are measured from the first object to the last."""
    collector = new_collector(4)
    for index, late in enumerate((0.001, 0.002, 0.003, 0.5)):
        collector.submitted(index, T0 + index, T0 + index + late, "", 0)
    pacing = collector.result(LONG_AFTER).pacing
    assert (pacing.p50, pacing.p90, pacing.max) == (0.002, 0.5, 0.5)
    assert pacing.planned_rate == 1.0
    assert pacing.rate == pytest.approx(3 / 3.499, abs=1e-5)
    assert new_collector().result(LONG_AFTER).pacing.p50 is None


# ----------------------------------------------------------------------------------------
# properties


@deterministic
@given(pod_timeline_tuples, st.randoms(use_true_random=False))
def test_event_order_and_repetition_do_not_matter(pods: tuple[PodTimeline, ...], chance: object) -> None:
    """Two watches race, and a list repeats earlier events."""
    events = [event for pod in pods for event in pod.events()]
    listed = [
        (EventType.LISTED, pod.at(200), T0 + 200.5) for pod in pods if pod.created <= 200 and not (pod.gone or 0) > 0
    ]
    in_order, shuffled = new_collector(len(pods)), [*events, *listed, *events]
    for event in sorted([*events, *listed], key=lambda event: event[2]):
        in_order.pod(*event)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis has no name for its type
    disordered = new_collector(len(pods))
    for event in shuffled:
        disordered.pod(*event)
    assert _comparable(disordered) == _comparable(in_order)
    assert disordered.is_over() == in_order.is_over()


def _comparable(collector: Collector) -> tuple[object, object]:
    result = collector.result(LONG_AFTER)
    troubles = [(group.what, group.count) for group in result.troubles]
    rows = sorted((pod.model_dump() for pod in collector.pods()), key=lambda row: str(row["uid"]))
    return (result.model_dump(exclude={"troubles"}), troubles), rows


@deterministic
@given(pod_timeline_tuples)
def test_percentiles_equal_a_naive_computation(pods: tuple[PodTimeline, ...]) -> None:
    """For pods watched from their creation."""
    result = observe_pods(new_collector(len(pods)), pods).result(LONG_AFTER)
    reached = {
        "scheduling": [pod.scheduled - pod.created for pod in pods if pod.scheduled is not None],
        "podStartup": [pod.running - pod.created for pod in pods if pod.running is not None],
        "completion": [pod.over - pod.created for pod in pods if pod.over is not None and not pod.failed],
    }
    for name, values in reached.items():
        latency = require_latency(result, name)
        assert (latency.count, latency.missing) == (len(values), 0)
        for percent in (50, 90, 95, 99):
            want = sorted(values)[ceil(len(values) * percent / 100) - 1] if values else None
            got = getattr(latency, f"p{percent}")
            assert got == pytest.approx(want, abs=1e-5) if want is not None else got is None


@deterministic
@given(pod_timeline_tuples)
def test_counts_add_up(pods: tuple[PodTimeline, ...]) -> None:
    """Each pod is counted once per milestone."""
    collector = observe_pods(new_collector(len(pods)), pods)
    objects, counted = collector.counts()
    assert counted.created == len(pods)
    assert counted.scheduled == sum(pod.scheduled is not None for pod in pods)
    assert counted.running == sum(pod.running is not None for pod in pods)
    assert counted.completed + counted.failed == sum(pod.over is not None for pod in pods)
    assert counted.deleted == sum(pod.gone is not None for pod in pods)
    assert objects.model_copy(update={"total": counted.total}) == counted
    assert collector.is_over() == all(pod.over is not None or pod.gone is not None for pod in pods)


@deterministic
@given(st.lists(st.floats(0, 1e6), max_size=700))
def test_a_cdf_has_a_bounded_number_of_exact_points(values: list[float]) -> None:
    """Each point is the fraction of values at or below its value."""
    ordered = sorted(values)
    points = percentiles.cdf(ordered)
    assert len(points) <= percentiles.CDF_POINTS
    for value, fraction in points:
        assert fraction == pytest.approx(sum(number <= value for number in ordered) / len(ordered), abs=1e-6)
    assert all(first < second for first, second in itertools.pairwise(points))
    assert not ordered or points[-1] == (ordered[-1], 1.0)
