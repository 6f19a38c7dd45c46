"""Workload times of a Run, as reported by a Collector."""

from kwokfleet.measure.pods import EventType
from tests.harness.pod_timelines import T0, PodTimeline, condition, job, new_collector


def test_each_job_has_times_by_both_clocks() -> None:
    """Only objects of the Run are reported; milestones that were not observed are absent."""
    collector = new_collector(2, "Job")
    for index in range(2):
        manifest = job(index, status={})
        collector.workload(EventType.ADDED, manifest, T0 + index)
        for event in PodTimeline(index, 1, 2, 3, 4, owner=manifest).events():
            collector.pod(*event)
    workloads = list(collector.workloads())
    assert [(workload.kind, workload.index, workload.failed) for workload in workloads] == [
        ("Job", 0, False),
        ("Job", 1, False),
    ]
    assert workloads[0].seen == {"created": T0, "dispatched": T0 + 1.25, "started": T0 + 3.25}
    assert "over" not in workloads[0].api


def test_a_failed_job_has_an_end_time_by_both_clocks() -> None:
    """It is reported as failed."""
    collector = new_collector(1, "Job")
    collector.workload(EventType.ADDED, job(0), T0)
    collector.workload(EventType.MODIFIED, job(0, {"conditions": [condition("Failed", 9)]}), T0 + 9.5)
    [workload] = collector.workloads()
    assert (workload.failed, workload.seen["over"], workload.api["over"]) == (True, T0 + 9.5, T0 + 9)


def test_a_workload_that_never_completes_is_over_when_ready() -> None:
    """Its completion latency uses the same time."""
    collector = new_collector(1, "Deployment", ends=False)
    collector.workload(EventType.ADDED, job(0, kind="Deployment"), T0)
    ready = {"readyReplicas": 2, "conditions": [condition("Available", 5)]}
    collector.workload(EventType.MODIFIED, job(0, ready, kind="Deployment"), T0 + 5.5)
    [workload] = collector.workloads()
    assert workload.seen == {"created": T0, "over": T0 + 5.5}
