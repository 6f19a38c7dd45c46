"""The Result of a Run: all numbers of its report.

A Result is stored as `result.json` when a Run is over, with interim versions before. Beside it are `pods.ndjson`, one
line per pod, and `workloads.ndjson`, one line per other workload. Reports, exports, gates and comparisons use these
files only.

"No data" is None, never 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

API_VERSION = "kwokfleet.dev/v1alpha1"


class ResultModel(BaseModel):
    """Base of all parts of a Result. JSON keys are camelCase; unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")


class Clock(StrEnum):
    """The clock that measured a latency."""

    WATCH = "watch"
    """Receive times of our watch. Exact to milliseconds; missing inside gaps."""
    API = "api"
    """Timestamps that the API server, scheduler and kwok write into objects. Whole seconds."""
    CL2_2024 = "clusterloader2-2024"
    """ClusterLoader2's PodStartupLatency until 26 May 2026: API timestamps, and the watch for the end."""
    CL2_2026 = "clusterloader2-2026"
    """ClusterLoader2's definition since then: the watch only."""


CLUSTERLOADER2 = (Clock.CL2_2024, Clock.CL2_2026)


class Latency(ResultModel):
    """A latency over all objects that reached its end, in seconds."""

    name: str
    """From creation, unless it says otherwise: `scheduling`, `podStartup` (Running), `ready`, `completion` of pods;
    `dispatch` (first pod exists), `start` (started, or first pod runs), `completion` of
    workloads; ClusterLoader2's `create_to_schedule`, `schedule_to_run`, `run_to_watch`, `schedule_to_watch`,
    `create_to_run`, `pod_startup`."""
    of: str
    """`pods`, `pods/stateless`, `pods/stateful`, `pods/scheduler=NAME`, or a workload's kind: `Job`."""
    clock: Clock
    count: int
    """Number of measured objects."""
    missing: int = 0
    """Number of objects that reached the end unmeasured: inside a gap, or without a timestamp."""
    min: float | None = None
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    cdf: tuple[tuple[float, float], ...] = ()
    """Up to 200 points: seconds, and the fraction of objects that took at most that long."""


class Series(ResultModel):
    """Time series with a fixed step."""

    start: datetime
    step_s: float
    columns: Mapping[str, tuple[float | None, ...]] = {}
    """A number for each step, None inside gaps. `pending`, `running`, `queued` (workloads that
    have not started), `submitted/s`, `scheduled/s`, `completed/s`, `pending/SCHEDULER`, `scheduled/s/SCHEDULER`,
    `utilisation/POOL/RESOURCE` (requests of bound pods that have not ended, as a share of capacity; `*`: all pools)."""


class Throughput(ResultModel):
    """Pods scheduled per second in windows, as ClusterLoader2's SchedulingThroughput defines it."""

    scheduler: str = ""
    """Empty: all schedulers."""
    window_s: float = 5.0
    windows: int = 0
    """Number of windows; 0: no data."""
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None
    mean: float | None = None
    """From the first binding to the last."""


class Pacing(ResultModel):
    """Lateness of submissions: time sent minus time due, in seconds."""

    count: int = 0
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None
    planned_rate: float | None = None
    """Objects per second, from the first instant to the last."""
    rate: float | None = None
    """Objects per second, as sent."""
    refused: int = 0
    retried: int = 0


class Counts(ResultModel):
    """Numbers of objects or pods by progress."""

    total: int = 0
    created: int = 0
    scheduled: int = 0
    running: int = 0
    """Have run, with any end."""
    completed: int = 0
    failed: int = 0
    deleted: int = 0
    """Deleted before they ended, or by churn or clean-up."""


class Gap(ResultModel):
    """A time without watch events."""

    start: datetime
    end: datetime
    why: str


class Mark(ResultModel):
    """A mark in the timeline: started, last object submitted, suspended, resumed, all over."""

    at: datetime
    what: str


class GateResult(ResultModel):
    """One evaluated gate."""

    name: str
    """As in the file: `podStartup.p99`, `deadline`, `failures`, `throughput`."""
    want: str
    got: str
    """`no data` without a measurement."""
    passed: bool
    no_data: bool = False
    clock: Clock | None = None
    why: str = ""


class FailureGroup(ResultModel):
    """Failures of objects with the same reason."""

    what: str
    count: int
    example: str
    """The first object."""


ResultState = Literal["Running", "Done", "Cancelled"]


class Result(ResultModel):
    """All measurements of a Run."""

    api_version: str = API_VERSION
    kind: str = "Result"
    fleet: str
    wave: str
    run: str
    cluster: str = ""
    """Address of the API server."""
    revision: str = ""
    """Revision of the files."""
    version: str = ""
    """Version of kwokfleet."""
    start: datetime
    """Scheduled start."""
    end: datetime | None = None
    """When the last object completed or was given up."""
    state: ResultState = "Running"
    template_kind: str = ""
    objects: Counts = Counts()
    pods: Counts = Counts()
    pacing: Pacing = Pacing()
    latencies: tuple[Latency, ...] = ()
    throughput: tuple[Throughput, ...] = ()
    series: Series | None = None
    gaps: tuple[Gap, ...] = ()
    marks: tuple[Mark, ...] = ()
    troubles: tuple[FailureGroup, ...] = ()
    gates: tuple[GateResult, ...] = ()

    @property
    def name(self) -> str:
        """FLEET/WAVE/RUN."""
        return f"{self.fleet}/{self.wave}/{self.run}"

    @property
    def passed(self) -> bool | None:
        """Whether all gates passed; None without gates."""
        return all(gate.passed for gate in self.gates) if self.gates else None

    def latency(self, name: str, of: str, clock: Clock) -> Latency | None:
        """Return one latency."""
        matching = (item for item in self.latencies if (item.name, item.of, item.clock) == (name, of, clock))
        return next(matching, None)


class PodTimes(ResultModel):
    """One pod, as a line of `pods.ndjson`. Times are seconds since 1970, None where unknown."""

    name: str
    namespace: str
    uid: str = ""
    index: int | None = None
    """Index of its object."""
    owner: str = ""
    """KIND/NAME of the workload; empty without an owner."""
    node: str = ""
    pool: str = ""
    scheduler: str = ""
    stateless: bool = True
    phase: str = ""
    deleted: bool = False
    seen: Mapping[str, float] = {}
    """Receive times of our watch: `created` (if the first event was ADDED), `scheduled`, `running`, `ready`,
    `over`, `gone`."""
    api: Mapping[str, float] = {}
    """Timestamps in the pod: `created`, `scheduled`, `readyToStart`, `initialized`, `started` (the last container),
    `containersReady`, `ready`, `over`; `event` is the time of the Scheduled Event."""


class WorkloadTimes(ResultModel):
    """One workload other than a pod, as a line of `workloads.ndjson`. Times as in `PodTimes`."""

    kind: str
    name: str
    namespace: str
    uid: str = ""
    index: int | None = None
    seen: Mapping[str, float] = {}
    """Receive times of our watch: `created`, `dispatched` (its first pod), `started`, `over`."""
    api: Mapping[str, float] = {}
    """Timestamps in the object: `created`, `started`, `over`."""
    failed: bool = False


def serialize(result: Result) -> str:
    """Return a Result as JSON."""
    return result.model_dump_json(by_alias=True, exclude_none=False, indent=1) + "\n"


@dataclass(frozen=True, slots=True)
class ResultSummary:
    """Summary of the last Result of a Wave."""

    fleet: str
    wave: str
    run: str
    verdict: str
    why: str = ""
    """The failed gates."""
    gates: Mapping[str, bool] = field(default_factory=dict)
    """Each gate, and whether it passed."""
    latencies: Mapping[tuple[str, str, str, str], float] = field(default_factory=dict)
    """Seconds by name, `of`, clock and quantile."""
    cancelled: bool = False
