"""The Result of a Run: every number of its report, however it was measured and wherever it will be shown.

A Result is written once, when a Run is over (and now and then before), as `result.json`; beside it, one
line for each pod, as `pods.ndjson`, and for each other workload, as `workloads.ndjson`. Tables, pages, other
systems' files, gates and comparisons are made from these and from nothing else.

"No data" is a value of its own: None. It is never 0.
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
    """A part of a Result: JSON in camelCase; what a later version adds is ignored by this one."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")


class Clock(StrEnum):
    """Who measured the ends of a latency."""

    WATCH = "watch"
    """Our watch: when a state was received. Exact to milliseconds, missing where nobody was watching."""
    API = "api"
    """Timestamps that the API server, scheduler and kwok wrote into the object. Whole seconds."""
    CL2_2024 = "clusterloader2-2024"
    """As ClusterLoader2 defined PodStartupLatency until 26 May 2026: API timestamps, and the watch at the end."""
    CL2_2026 = "clusterloader2-2026"
    """As it has defined it since: the watch alone."""


class Latency(ResultModel):
    """How long one thing took, over all objects that it happened to. Seconds."""

    name: str
    """From creation, unless it says otherwise: `scheduling`, `podStartup` (Running), `ready`, `completion` of pods;
    `dispatch` (its first pod exists), `start` (it says that it has started, or its first pod runs), `completion` of
    workloads; ClusterLoader2's `create_to_schedule`, `schedule_to_run`, `run_to_watch`, `schedule_to_watch`,
    `create_to_run`, `pod_startup`."""
    of: str
    """`pods`, `pods/stateless`, `pods/stateful`, `pods/scheduler=NAME`, or a workload's kind: `Job`."""
    clock: Clock
    count: int
    """How many it is known of."""
    missing: int = 0
    """How many it happened to while nobody measured: seen too late, or without the timestamp."""
    min: float | None = None
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    cdf: tuple[tuple[float, float], ...] = ()
    """Up to 200 points: seconds, and the fraction that took no longer."""


class Series(ResultModel):
    """What was so at even distances of time."""

    start: datetime
    step_s: float
    columns: Mapping[str, tuple[float | None, ...]] = {}
    """By name, a number for each step; None where nobody was watching. `pending`, `running`, `queued` (workloads that
    have not started), `submitted/s`, `scheduled/s`, `completed/s`, `pending/SCHEDULER`, `scheduled/s/SCHEDULER`,
    `utilisation/POOL/RESOURCE` (requests of bound pods that are not over, by what the pool has; `*`: all pools)."""


class Throughput(ResultModel):
    """Pods scheduled per second, in windows, as ClusterLoader2's SchedulingThroughput has it."""

    scheduler: str = ""
    """Empty for all together."""
    window_s: float = 5.0
    windows: int = 0
    """How many there were; 0: no data."""
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None
    mean: float | None = None
    """From the first binding to the last."""


class Pacing(ResultModel):
    """How exactly objects were submitted: when each request was sent, against when it was due. Seconds."""

    count: int = 0
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None
    planned_rate: float | None = None
    """Objects per second, from the first instant to the last."""
    rate: float | None = None
    """As sent."""
    refused: int = 0
    retried: int = 0


class Counts(ResultModel):
    """How many objects, or pods, came how far."""

    total: int = 0
    created: int = 0
    scheduled: int = 0
    running: int = 0
    """That have run, however they ended."""
    completed: int = 0
    failed: int = 0
    deleted: int = 0
    """That vanished before they were over, or by churn or clean-up."""


class Gap(ResultModel):
    """A time in which nobody was watching."""

    start: datetime
    end: datetime
    why: str


class Mark(ResultModel):
    """Something worth a line in the timeline: started, last object submitted, suspended, resumed, all complete."""

    at: datetime
    what: str


class GateResult(ResultModel):
    """One thing that was expected, and whether it held."""

    name: str
    """As the file writes it: `podStartup.p99`, `deadline`, `failures`, `throughput`."""
    want: str
    got: str
    """`no data` if there is none."""
    passed: bool
    no_data: bool = False
    clock: Clock | None = None
    why: str = ""


class FailureGroup(ResultModel):
    """What went wrong with an object, said once for all that it is the same for."""

    what: str
    count: int
    example: str
    """The first object."""


ResultState = Literal["Running", "Done", "Cancelled"]


class Result(ResultModel):
    """All that is known of a Run."""

    api_version: str = API_VERSION
    kind: str = "Result"
    fleet: str
    wave: str
    run: str
    cluster: str = ""
    """The API server's address, as people know it."""
    revision: str = ""
    """Of the files."""
    version: str = ""
    """Of kwokfleet."""
    start: datetime
    """When it was due."""
    end: datetime | None = None
    """When all was over: the last object completed, or was given up."""
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
        """How people call it."""
        return f"{self.fleet}/{self.wave}/{self.run}"

    @property
    def passed(self) -> bool | None:
        """Whether every gate held; None if there is none."""
        return all(gate.passed for gate in self.gates) if self.gates else None

    def latency(self, name: str, of: str, clock: Clock) -> Latency | None:
        """Return one latency."""
        found = (each for each in self.latencies if (each.name, each.of, each.clock) == (name, of, clock))
        return next(found, None)


class PodTimes(ResultModel):
    """One pod, as a line of `pods.ndjson`. Times are seconds since 1970, None where unknown."""

    name: str
    namespace: str
    uid: str = ""
    index: int | None = None
    """Of the object that it belongs to."""
    owner: str = ""
    """KIND/NAME of the workload; empty for a pod of its own."""
    node: str = ""
    pool: str = ""
    scheduler: str = ""
    stateless: bool = True
    phase: str = ""
    deleted: bool = False
    seen: Mapping[str, float] = {}
    """When our watch received it: `created` (the first event, if that was its birth), `scheduled`, `running`, `ready`,
    `over`, `gone`."""
    api: Mapping[str, float] = {}
    """What is written in it: `created`, `scheduled`, `readyToStart`, `initialized`, `started` (the last container),
    `containersReady`, `ready`, `over`; `event` is the Scheduled Event's time, where there is one."""


class WorkloadTimes(ResultModel):
    """One workload that is no pod, as a line of `workloads.ndjson`. Times as in `PodTimes`."""

    kind: str
    name: str
    namespace: str
    uid: str = ""
    index: int | None = None
    seen: Mapping[str, float] = {}
    """When our watch received it: `created`, `dispatched` (its first pod), `started`, `over`."""
    api: Mapping[str, float] = {}
    """What is written in it: `created`, `started`, `over`."""
    failed: bool = False


def parse(text: bytes | str) -> Result:
    """Read a Result; raise ValueError if it is none."""
    return Result.model_validate_json(text)


def serialize(result: Result) -> str:
    """Return a Result as its file has it."""
    return result.model_dump_json(by_alias=True, exclude_none=False, indent=1) + "\n"


@dataclass(frozen=True, slots=True)
class ResultSummary:
    """The last Run of a Wave of which there is a Result."""

    fleet: str
    wave: str
    run: str
    verdict: str
    why: str = ""
    """The gates that did not hold."""
    gates: Mapping[str, bool] = field(default_factory=dict)
    """Each gate, and whether it held."""
    latencies: Mapping[tuple[str, str, str, str], float] = field(default_factory=dict)
    """Seconds, by name, what it is of, clock and quantile."""
    cancelled: bool = False
