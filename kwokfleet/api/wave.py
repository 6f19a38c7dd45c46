"""Models of a Wave: start times, arrivals, variables, usage, churn and gates."""

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from kwokfleet.api import fields, units
from kwokfleet.kube.objects import Manifest


def _check_magnitude(value: float) -> float:
    if abs(value) > _MAX_MAGNITUDE:
        raise fields.invalid(f"must be between -{_MAX_MAGNITUDE:g} and {_MAX_MAGNITUDE:g}, got {value:g}")
    return value


_MAX_MAGNITUDE = 1e15
"""Limit of a variable. Above it, whole numbers are not exact in a float."""
Number = Annotated[float, AfterValidator(_check_magnitude)]
Positive = Annotated[float, Field(gt=0), AfterValidator(_check_magnitude)]


def _check_positive(value: timedelta) -> timedelta:
    if value <= units.ZERO:
        raise fields.invalid("must be more than 0s")
    return value


PositiveDuration = Annotated[fields.Duration, AfterValidator(_check_positive)]


class Exponential(fields.Model):
    """Exponential distribution."""

    mean: Positive = Field(description="Mean.")


class Normal(fields.Model):
    """Normal distribution."""

    mean: Number = Field(description="Mean.")
    stddev: Positive = Field(description="Standard deviation.")


class LogNormal(fields.Model):
    """Log-normal distribution, typical of the duration of real jobs."""

    median: Positive = Field(description="Median: half of the values are lower.")
    sigma: float = Field(gt=0, le=10, description="Standard deviation of the logarithm.")


class Uniform(fields.Model):
    """Uniform distribution."""

    min: Number = Field(description="Minimum.")
    max: Number = Field(description="Maximum.")

    @model_validator(mode="after")
    def _ordered(self) -> "Uniform":
        if self.max < self.min:
            raise fields.invalid(f"must be min ({self.min:g}) or more, got {self.max:g}", "max")
        return self


Scalar = str | int | float | bool


class Variable(fields.OneOf):
    """Variable of a template. Its value depends on the seed, the Wave, the Run and the object's index."""

    alternatives = ("choice", "cycle", "uniform", "exponential", "normal", "lognormal")

    choice: Annotated[fields.Items[Scalar], Field(min_length=1)] | None = Field(
        default=None, description="Random choice from these values."
    )
    weights: fields.Items[Annotated[float, Field(ge=0), AfterValidator(_check_magnitude)]] | None = Field(
        default=None, description="Weight of each choice, in the same order."
    )
    cycle: Annotated[fields.Items[Scalar], Field(min_length=1)] | None = Field(
        default=None, description="These values in turn."
    )
    uniform: Uniform | None = Field(default=None, description="Uniform distribution.")
    exponential: Exponential | None = Field(default=None, description="Exponential distribution.")
    normal: Normal | None = Field(default=None, description="Normal distribution.")
    lognormal: LogNormal | None = Field(default=None, description="Log-normal distribution.")
    min: Number | None = Field(default=None, description="Lower limit; smaller values are raised to it.")
    max: Number | None = Field(default=None, description="Upper limit; greater values are lowered to it.")
    integer: bool = Field(default=False, description="Round to a whole number.")

    @model_validator(mode="after")
    def _consistent(self) -> "Variable":
        if self.weights is not None and (self.choice is None or len(self.weights) != len(self.choice)):
            raise fields.invalid(
                f"must have one weight per choice ({len(self.choice or ())}), got {len(self.weights)}", "weights"
            )
        if self.weights is not None and not sum(self.weights):
            raise fields.invalid("at least one weight must be more than 0", "weights")
        return self


class Burst(fields.Model):
    """Bursts of objects."""

    size: int = Field(gt=0, description="Objects per burst.")
    every: PositiveDuration = Field(description="Time between bursts.")


class Ramp(fields.Model):
    """A rate that changes linearly, then stays constant."""

    from_: fields.Rate = Field(alias="from", description="Initial rate.")
    to: fields.Rate = Field(description="Final rate.")
    over: PositiveDuration = Field(description="Duration of the change.")


class RateStep(fields.Model):
    """A constant rate for some time."""

    rate: fields.Rate = Field(description="Rate of this step.")
    for_: PositiveDuration = Field(alias="for", description="Duration of this step.")


class Trace(fields.Model):
    """Arrivals from a trace file. Its columns are variables of the template."""

    file: str = Field(min_length=1, description="Path, relative to this file.")
    format: Literal["csv", "swf"] = Field(
        default="csv",
        description="csv: a header line, the column `at` in seconds, other columns are variables. swf: Standard "
        "Workload Format.",
    )
    speed: float = Field(default=1.0, gt=0, description="Speed-up factor. 60 replays an hour in a minute.")


class Arrivals(fields.OneOf):
    """Arrival process of the objects of a Wave."""

    alternatives = ("rate", "poisson", "burst", "ramp", "steps", "trace")

    rate: fields.Rate | None = Field(default=None, description="Constant rate.")
    poisson: fields.Rate | None = Field(
        default=None, description="Poisson process with this mean rate, typical of independent users."
    )
    burst: Burst | None = Field(default=None, description="Bursts.")
    ramp: Ramp | None = Field(default=None, description="Linearly changing rate.")
    steps: Annotated[fields.Items[RateStep], Field(min_length=1)] | None = Field(
        default=None, description="Sequence of rates. The last rate continues."
    )
    trace: Trace | None = Field(default=None, description="Arrivals from a trace file.")
    random: bool = Field(default=False, description="With ramp or steps: Poisson process with the current rate.")

    @model_validator(mode="after")
    def _consistent(self) -> "Arrivals":
        if self.random and self.variant not in {"ramp", "steps"}:
            raise fields.invalid("requires ramp or steps; poisson is already random", "random")
        return self


class Start(fields.OneOf):
    """Start times of a Wave. Each start is a Run."""

    alternatives = ("after", "at", "cron", "every")

    after: fields.Duration | None = Field(
        default=None, description="Once, this long after the daemon first loaded the Wave."
    )
    at: fields.Instant | None = Field(default=None, description="Once, at this time.")
    cron: fields.Cron | None = Field(
        default=None, description="Cron expression with five fields; names and ranges are allowed."
    )
    every: fields.Duration | None = Field(
        default=None, description="Repeatedly at this interval, from the time the daemon first loaded the Wave."
    )
    time_zone: fields.TimeZone = Field(default="UTC", description="Time zone of `cron`.")
    missed: Literal["run", "skip"] = Field(
        default="skip",
        description="Runs that were missed by more than a minute, because no daemon was running. run: start the latest "
        "one late; skip: start none.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Start":
        if self.cron is None and "time_zone" in self.model_fields_set:
            raise fields.invalid("requires cron; remove timeZone", "timeZone")
        if self.every is not None and self.every < units.duration("1s"):
            raise fields.invalid("must be at least 1s", "every")
        return self


class Churn(fields.OneOf):
    """Rounds in which objects are deleted and recreated, after all objects are submitted."""

    alternatives = ("rounds", "for_")

    percent: fields.Share = Field(
        description="Share of the objects that are recreated per round, selected by the seed."
    )
    every: fields.Duration = Field(description="Time between rounds, and before the first round.")
    rounds: int | None = Field(default=None, ge=1, le=10_000, description="Number of rounds.")
    for_: fields.Duration | None = Field(default=None, alias="for", description="Total duration, instead of `rounds`.")

    @property
    def total(self) -> int:
        """Number of rounds."""
        return self.rounds if self.rounds is not None else int((self.for_ or units.ZERO) / self.every)

    @model_validator(mode="after")
    def _consistent(self) -> "Churn":
        if self.percent <= 0:
            raise fields.invalid("must be more than 0%", "percent")
        if self.every < units.duration("1s"):
            raise fields.invalid("must be at least 1s", "every")
        if self.total < 1:
            raise fields.invalid("must be at least as long as every", "for")
        return self


MAX_USAGE_PHASES = 16
"""Limit of usage phases of a Wave. kwok evaluates them in sequence for each metrics request."""


class PodUsage(fields.Model):
    """Resource usage of a pod: quantities for the whole pod, or percentages of its containers' requests."""

    cpu: fields.UsageAmount | None = Field(default=None, description="CPU usage.")
    memory: fields.UsageAmount | None = Field(default=None, description="Memory usage.")


class Usage(PodUsage):
    """Resource usage of a pod in one phase. A resource that is not set keeps its previous usage."""

    for_: fields.Duration = Field(alias="for", description="Duration of the phase. The last phase continues.")


class Percentiles(fields.Model):
    """Upper limits for a latency."""

    p50: fields.Duration | None = Field(default=None, description="Limit of the 50th percentile.")
    p90: fields.Duration | None = Field(default=None, description="Limit of the 90th percentile.")
    p95: fields.Duration | None = Field(default=None, description="Limit of the 95th percentile.")
    p99: fields.Duration | None = Field(default=None, description="Limit of the 99th percentile.")
    max: fields.Duration | None = Field(default=None, description="Limit of the maximum.")


class Expect(fields.Model):
    """Gates of a Wave: conditions for a Run to pass."""

    pod_startup: Percentiles | None = Field(default=None, description="Time from pod creation to Running.")
    scheduling: Percentiles | None = Field(default=None, description="Time from pod creation to binding.")
    completion: Percentiles | None = Field(default=None, description="Time from object creation to completion.")
    deadline: fields.Duration | None = Field(default=None, description="Maximum duration of the whole Run.")
    failures: fields.Count | None = Field(default=None, description="Maximum number of failed objects.")
    throughput: fields.Rate | None = Field(default=None, description="Minimum peak rate of scheduled pods.")


def _short_start(value: object) -> object:
    return {"after": value} if isinstance(value, str | int) and not isinstance(value, bool) else value


MAX_COUNT = 10_000_000
"""Limit of objects of one Run."""


class Wave(fields.Model):
    """A batch of workload objects that arrive on a schedule."""

    name: fields.Name = Field(description="Name within the Fleet.")
    suspend: bool = Field(default=False, description="Start no Runs, and pause the current Run.")
    start: Annotated[Start, BeforeValidator(_short_start)] = Field(
        default_factory=lambda: Start.model_construct(after=units.ZERO),
        description="Start times. Default: once, immediately.",
    )
    count: int | None = Field(
        default=None,
        ge=1,
        le=MAX_COUNT,
        description="Number of objects. Default: 1, unless `duration` or a trace is set.",
    )
    duration: fields.Duration | None = Field(default=None, description="Duration of the arrivals, instead of `count`.")
    arrivals: Arrivals | None = Field(default=None, description="Arrival process. Default: all objects at once.")
    lifecycle: fields.Name | None = Field(
        default=None, description="Lifecycle of the pods. Default: the Stages of the Fleet apply."
    )
    pools: fields.Items[fields.Name] = Field(
        default=(),
        description="Pools for the pods, including tainted pools. Default: all pools without additional taints.",
    )
    place: bool = Field(
        default=True, description="Add the affinity and tolerations that place the pods on the fake nodes of the Fleet."
    )
    namespace: str | None = Field(
        default=None, description="Namespace of the objects, created if missing. May contain variables."
    )
    labels: fields.Labels = Field(default={}, description="Labels of the objects and their pods.")
    annotations: fields.Annotations = Field(default={}, description="Annotations of the objects.")
    vary: dict[str, Variable] = Field(default={}, description="Variables of the template.")
    usage: Annotated[fields.Items[Usage], Field(max_length=MAX_USAGE_PHASES)] = Field(
        default=(), description="Resource usage of the pods in phases, from the start of a pod."
    )
    churn: Churn | None = Field(default=None, description="Delete and recreate some of the objects, in rounds.")
    ttl: fields.Duration | None = Field(
        default=None,
        description="Delete each object this long after its completion; an object that never completes, after its "
        "creation.",
    )
    cleanup: fields.Duration | None = Field(
        default=None,
        description="Delete the remaining objects of a Run this long after the Run completed, and the namespaces "
        "created for it if they are empty. Default: keep all objects.",
    )
    template: Manifest = Field(description="Object to create, of any kind. {{variables}} are replaced.")
    expect: Expect | None = Field(default=None, description="Gates: conditions for a Run to pass.")
