"""Generated results of a Run: consistent and deterministic."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from pathlib import Path

from kwokfleet.measure import result_store
from kwokfleet.measure.result import (
    Clock,
    Counts,
    FailureGroup,
    Gap,
    GateResult,
    Latency,
    Mark,
    Pacing,
    PodTimes,
    Result,
    Series,
    Throughput,
    WorkloadTimes,
)

START = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
SCHEDULERS = ("default-scheduler", "bin-packer")
POOLS = ("general", "gpu")


@dataclass(frozen=True)
class SampleRun:
    """The result, pods and workloads of a Run."""

    result: Result
    pods: tuple[PodTimes, ...]
    workloads: tuple[WorkloadTimes, ...]

    def store(self, root: Path) -> result_store.StoredResult:
        """Write it to a result store."""
        store = result_store.ResultStore(root)
        store.put(self.result, self.pods, self.workloads)
        return store.find(self.result.fleet, self.result.wave, self.result.run)[0]


def sample_run(  # noqa: PLR0913  # parameters of a Run
    pods: int = 1000,
    *,
    name: str = "1",
    wave: str = "stress",
    seed: int = 42,
    rate: float = 20.0,
    slower: float = 1.0,
    at: datetime = START,
    gap: tuple[float, float] | None = None,
    job: bool = True,
) -> SampleRun:
    """Generate a Run of *pods* one-pod Jobs (or pods) at *rate* per second; a few fail."""
    seeded_random = random.Random(f"{seed}/{name}")  # noqa: S311 - an example, no secret
    times = [_pod(seeded_random, index, at.timestamp() + index / rate, slower, job=job) for index in range(pods)]
    observed = [_without_gap(pod, at.timestamp(), gap) for pod in times] if gap else times
    jobs = [_workload(pod, seeded_random) for pod in times] if job else []
    end = max(pod.seen["over"] for pod in times)
    last = at.timestamp() + (pods - 1) / rate
    failed = sum(pod.phase == "Failed" for pod in times)
    counts = Counts(total=pods, created=pods, scheduled=pods, running=pods, completed=pods - failed, failed=failed)
    result = Result(
        fleet="lab",
        wave=wave,
        run=name,
        cluster="https://127.0.0.1:6443",
        revision="main@9f2c1d7",
        version="0.1.0",
        start=at,
        end=datetime.fromtimestamp(end, UTC),
        state="Done",
        template_kind="Job" if job else "Pod",
        objects=counts,
        pods=counts,
        pacing=_pacing(seeded_random, pods, rate),
        latencies=tuple(_latencies(observed, jobs)),
        throughput=tuple(_throughput(times, at.timestamp())),
        series=_series(times, at, ceil(end - at.timestamp()) + 2, gap),
        gaps=_gaps(at, gap),
        marks=(
            Mark(at=at, what="started"),
            Mark(at=datetime.fromtimestamp(last, UTC), what="last object submitted"),
            Mark(at=datetime.fromtimestamp(end, UTC), what="all complete"),
        ),
        troubles=(FailureGroup(what="OOMKilled, exit code 137", count=failed, example="lab-stress-1-17"),)
        if failed
        else (),
    )
    return SampleRun(result.model_copy(update={"gates": _gates(result)}), tuple(observed), tuple(jobs))


def empty_result() -> Result:
    """Return the result of a Run without observations."""
    return Result(
        fleet="lab",
        wave="unseen",
        run="1",
        start=START,
        objects=Counts(total=10),
        latencies=(Latency(name="podStartup", of="pods", clock=Clock.WATCH, count=0, missing=10),),
        throughput=(Throughput(),),
        gates=(GateResult(name="podStartup.p99", want="at most 5s", got="no data", passed=False, no_data=True),),
    )


def _pod(seeded_random: random.Random, index: int, due: float, slower: float, *, job: bool) -> PodTimes:
    created = due + seeded_random.uniform(0.002, 0.02)
    scheduled = created + seeded_random.lognormvariate(-3.2, 0.6) * slower * (1 + index / 900)
    running = scheduled + seeded_random.uniform(1.0, 1.6) * slower
    ready = running + seeded_random.uniform(0.05, 0.2)
    over = running + seeded_random.uniform(9, 11) + seeded_random.expovariate(1 / 4)
    stamps = {"created": created, "scheduled": scheduled, "running": running, "ready": ready, "over": over}
    pool = POOLS[index % 5 == 0]
    api = {key: float(int(value)) for key, value in stamps.items() if key != "running"}
    return PodTimes(
        name=f"lab-stress-1-{index}-x7k2p",
        namespace="stress",
        uid=f"00000000-0000-0000-0000-{index:012d}",
        index=index,
        owner=f"Job/lab-stress-1-{index}" if job else "",
        node=f"lab-{pool}-{index % 40}",
        pool=pool,
        scheduler=SCHEDULERS[index % 4 == 0],
        stateless=index % 10 != 0,
        phase="Failed" if seeded_random.random() < 0.01 else "Succeeded",
        seen={key: round(value + seeded_random.uniform(0.001, 0.004), 3) for key, value in stamps.items()},
        api=api
        | {"initialized": api["scheduled"], "started": float(int(running)), "containersReady": api["ready"]}
        | {"event": round(scheduled, 6)},
    )


def _workload(pod: PodTimes, seeded_random: random.Random) -> WorkloadTimes:
    created, over = pod.seen["created"] - 0.01, pod.seen["over"] + seeded_random.uniform(0.05, 0.3)
    return WorkloadTimes(
        kind="Job",
        name=pod.owner.partition("/")[2],
        namespace=pod.namespace,
        uid=pod.uid.replace("0-0", "1-0", 1),
        index=pod.index,
        seen={"created": created, "dispatched": created + 0.01, "started": created + 0.015, "over": over},
        api={"created": float(int(created)), "started": float(int(created)), "over": float(int(over))},
        failed=pod.phase == "Failed",
    )


def _without_gap(pod: PodTimes, start: float, gap: tuple[float, float]) -> PodTimes:
    hidden = {key for key, value in pod.seen.items() if gap[0] <= value - start < gap[1]}
    return pod.model_copy(update={"seen": {key: value for key, value in pod.seen.items() if key not in hidden}})


def _gaps(at: datetime, gap: tuple[float, float] | None) -> tuple[Gap, ...]:
    if not gap:
        return ()
    start, end = (at + timedelta(seconds=seconds) for seconds in gap)
    return (Gap(start=start, end=end, why="the daemon was not running"),)


# ----------------------------------------------------------------------------------------
# aggregates


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return a percentile as ClusterLoader2 computes it."""
    return values[ceil(len(values) * percent / 100) - 1] if values else None


def latency(name: str, of: str, clock: Clock, values: Iterable[float | None]) -> Latency:
    """Return the Latency of some durations in seconds."""
    durations = list(values)
    measured = sorted(round(max(0.0, duration), 6) for duration in durations if duration is not None)
    points = {ceil(len(measured) * step / 100) - 1 for step in range(1, 101)} if measured else set()
    return Latency(
        name=name,
        of=of,
        clock=clock,
        count=len(measured),
        missing=len(durations) - len(measured),
        min=measured[0] if measured else None,
        mean=round(sum(measured) / len(measured), 6) if measured else None,
        p50=percentile(measured, 50),
        p90=percentile(measured, 90),
        p95=percentile(measured, 95),
        p99=percentile(measured, 99),
        max=measured[-1] if measured else None,
        cdf=tuple((measured[index], round((index + 1) / len(measured), 6)) for index in sorted(points)),
    )


def _between(stamps: Mapping[str, float], first: str, last: str) -> float | None:
    return stamps[last] - stamps[first] if first in stamps and last in stamps else None


def _latencies(pods: Sequence[PodTimes], jobs: Sequence[WorkloadTimes]) -> Iterable[Latency]:
    for name, end in (
        ("scheduling", "scheduled"),
        ("podStartup", "running"),
        ("ready", "ready"),
        ("completion", "over"),
    ):
        yield latency(name, "pods", Clock.WATCH, (_between(pod.seen, "created", end) for pod in pods))
        written = {"running": "started"}.get(end, end)
        yield latency(name, "pods", Clock.API, (_between(pod.api, "created", written) for pod in pods))
    groups: list[tuple[str, Callable[[PodTimes], bool]]] = [
        ("pods", lambda _: True),
        ("pods/stateless", lambda pod: pod.stateless),
        ("pods/stateful", lambda pod: not pod.stateless),
    ]
    for of, is_in_group in groups:
        group = [pod for pod in pods if is_in_group(pod)]
        steps = {"create": "created", "schedule": "scheduled", "run": "running", "watch": "running"}
        for name in ("create_to_schedule", "schedule_to_run", "run_to_watch", "schedule_to_watch", "create_to_run"):
            first, _, last = name.partition("_to_")
            ends = (steps[first], steps[last])
            yield latency(name, of, Clock.CL2_2026, (_between(pod.seen, *ends) for pod in group))
        yield latency("pod_startup", of, Clock.CL2_2026, (_between(pod.seen, "created", "running") for pod in group))
        yield latency(
            "create_to_schedule", of, Clock.CL2_2024, (_between(pod.api, "created", "event") for pod in group)
        )
        yield latency("pod_startup", of, Clock.CL2_2024, (_old_startup(pod) for pod in group))
    for name in SCHEDULERS:
        group = [pod for pod in pods if pod.scheduler == name]
        waits = (_between(pod.seen, "created", "scheduled") for pod in group)
        yield latency("scheduling", f"pods/scheduler={name}", Clock.WATCH, waits)
    if jobs:
        for name, end in (("dispatch", "dispatched"), ("start", "started"), ("completion", "over")):
            yield latency(name, "Job", Clock.WATCH, (_between(job.seen, "created", end) for job in jobs))
            if end != "dispatched":
                yield latency(name, "Job", Clock.API, (_between(job.api, "created", end) for job in jobs))


def _old_startup(pod: PodTimes) -> float | None:
    return pod.seen["running"] - pod.api["created"] if "running" in pod.seen else None


def _throughput(pods: Sequence[PodTimes], start: float) -> Iterable[Throughput]:
    for name in ("", *SCHEDULERS):
        times = sorted(pod.seen["scheduled"] - start for pod in pods if not name or pod.scheduler == name)
        if not times:
            continue
        counts = [0] * (int(times[-1] // 5) + 1)
        for time in times:
            counts[int(time // 5)] += 1
        rates = sorted(count / 5 for count in counts)
        yield Throughput(
            scheduler=name,
            windows=len(rates),
            p50=percentile(rates, 50),
            p90=percentile(rates, 90),
            p99=percentile(rates, 99),
            max=rates[-1],
            mean=round(len(times) / max(0.001, times[-1] - times[0]), 3),
        )


def _pacing(seeded_random: random.Random, count: int, rate: float) -> Pacing:
    late = sorted(abs(seeded_random.gauss(0.0006, 0.0008)) for _ in range(count))
    return Pacing(
        count=count,
        p50=percentile(late, 50),
        p90=percentile(late, 90),
        p99=percentile(late, 99),
        max=late[-1],
        planned_rate=rate,
        rate=rate * 0.9998,
        retried=2,
    )


def _series(pods: Sequence[PodTimes], at: datetime, seconds: int, gap: tuple[float, float] | None) -> Series:
    start = at.timestamp()

    def level(first: str, last: str, selects: Callable[[PodTimes], bool] = lambda _: True) -> list[float]:
        change = [0] * (seconds + 1)
        for pod in filter(selects, pods):
            change[min(seconds, ceil(pod.seen.get(first, start) - start))] += 1
            change[min(seconds, ceil(pod.seen.get(last, start) - start))] -= 1
        total, levels = 0, []
        for by in change[:seconds]:
            total += by
            levels.append(float(total))
        return levels

    def rate(milestone: str, selects: Callable[[PodTimes], bool] = lambda _: True) -> list[float]:
        rates = [0.0] * seconds
        for pod in filter(selects, pods):
            rates[min(seconds - 1, ceil(pod.seen.get(milestone, start) - start))] += 1
        return rates

    columns: dict[str, list[float]] = {
        "pending": level("created", "running"),
        "running": level("running", "over"),
        "queued": level("created", "scheduled"),
        "submitted/s": rate("created"),
        "scheduled/s": rate("scheduled"),
        "completed/s": rate("over"),
    }
    for name in SCHEDULERS:
        columns[f"pending/{name}"] = level("created", "scheduled", lambda pod, name=name: pod.scheduler == name)  # type: ignore[misc]
        columns[f"scheduled/s/{name}"] = rate("scheduled", lambda pod, name=name: pod.scheduler == name)  # type: ignore[misc]
    for pool in POOLS:
        bound = level("scheduled", "over", lambda pod, pool=pool: pod.pool == pool)  # type: ignore[misc]
        columns[f"utilisation/{pool}/cpu"] = [round(count / 300, 4) for count in bound]
        if pool == "gpu":
            columns[f"utilisation/{pool}/nvidia.com/gpu"] = [round(count / 64, 4) for count in bound]
    columns["utilisation/*/cpu"] = [round(count / 600, 4) for count in level("scheduled", "over")]
    hidden = range(*(int(second) for second in gap)) if gap else ()
    visible = {
        name: tuple(None if index in hidden else value for index, value in enumerate(values))
        for name, values in columns.items()
    }
    return Series(start=at, step_s=1.0, columns=visible)


def _gates(result: Result) -> tuple[GateResult, ...]:
    startup = result.latency("podStartup", "pods", Clock.WATCH)
    peak = result.throughput[0].max or 0.0
    slow = startup.p99 if startup and startup.p99 is not None else 0.0
    return (
        GateResult(name="podStartup.p99", want="at most 2s", got=f"{slow:.3f}s", passed=slow <= 2, clock=Clock.WATCH),
        GateResult(name="throughput", want="at least 15/s", got=f"{peak:g}/s", passed=peak >= 15),
        GateResult(
            name="failures",
            want="at most 0",
            got=str(result.objects.failed),
            passed=not result.objects.failed,
            why="" if not result.objects.failed else f"{result.objects.failed} Jobs failed: OOMKilled, exit code 137",
        ),
    )
