"""The objects of a Run that are no pods, one by one, as a Book tells them."""

from kwokfleet.measure.pods import EventType
from tests.harness.pod_timelines import T0, PodTimeline, collector, condition, job


def test_every_job_is_told_with_its_times_and_owners_of_pods_that_are_none_of_the_run_are_not() -> None:
    """Both clocks; what was not seen is not there."""
    made = collector(2, "Job")
    for index in range(2):
        life = job(index, status={})
        made.workload(EventType.ADDED, life, T0 + index)
        for event in PodTimeline(index, 1, 2, 3, 4, owner=life).events():
            made.pod(*event)
    found = list(made.workloads())
    assert [(each.kind, each.index, each.failed) for each in found] == [("Job", 0, False), ("Job", 1, False)]
    assert found[0].seen == {"created": T0, "dispatched": T0 + 1.25, "started": T0 + 3.25}
    assert "over" not in found[0].api


def test_a_job_that_is_over_says_so_by_both_clocks() -> None:
    """And one that failed, that it did."""
    made = collector(1, "Job")
    made.workload(EventType.ADDED, job(0), T0)
    made.workload(EventType.MODIFIED, job(0, {"conditions": [condition("Failed", 9)]}), T0 + 9.5)
    [found] = made.workloads()
    assert (found.failed, found.seen["over"], found.api["over"]) == (True, T0 + 9.5, T0 + 9)


def test_what_never_ends_is_over_for_us_once_it_is_ready() -> None:
    """As its completion is reckoned."""
    made = collector(1, "Deployment", ends=False)
    made.workload(EventType.ADDED, job(0, kind="Deployment"), T0)
    ready = {"readyReplicas": 2, "conditions": [condition("Available", 5)]}
    made.workload(EventType.MODIFIED, job(0, ready, kind="Deployment"), T0 + 5.5)
    [found] = made.workloads()
    assert found.seen == {"created": T0, "over": T0 + 5.5}
