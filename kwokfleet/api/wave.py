"""The parts of a Fleet file that speak of time and chance: when a Wave starts, how its objects arrive, what varies."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from kwokfleet.api import units
from kwokfleet.api.fields import (
    Annotations,
    Count,
    Cron,
    Duration,
    Instant,
    Items,
    Labels,
    Manifest,
    Model,
    Name,
    Rate,
    Share,
    TimeZone,
    UsageAmount,
    invalid,
)


def exactly_one(model: Model, *names: str) -> str:
    """Return which of the fields *names* is given; none or several is an error at their place."""
    given = [name for name in names if getattr(model, name) is not None]
    said = " or ".join((", ".join(_alias(name) for name in names[:-1]), _alias(names[-1])))
    if not given:
        raise invalid(f"needs one of {said}")
    if len(given) > 1:
        raise invalid(f"takes only one of {said}", _alias(given[1]))
    return given[0]


def _alias(name: str) -> str:
    head, *rest = name.rstrip("_").split("_")
    return head + "".join(part.title() for part in rest)


def _bearable(value: float) -> float:
    if abs(value) > _MOST:
        raise invalid(f"must lie between -{_MOST:g} and {_MOST:g}")
    return value


_MOST = 1e15
"""What a variable may be: beyond it whole numbers are no longer exact, and far beyond they become infinite."""
Number = Annotated[float, AfterValidator(_bearable)]
Positive = Annotated[float, Field(gt=0), AfterValidator(_bearable)]


class Exponential(Model):
    """An exponential distribution: many short, few long; what queues are modelled with."""

    mean: Positive = Field(description="The average.")


class Normal(Model):
    """A normal distribution."""

    mean: Number = Field(description="The middle.")
    stddev: Positive = Field(description="The standard deviation.")


class LogNormal(Model):
    """A log-normal distribution: how long real jobs run."""

    median: Positive = Field(description="Half of the values are below it.")
    sigma: float = Field(gt=0, le=10, description="The spread: the standard deviation of the logarithm.")


class Uniform(Model):
    """Any value between two bounds, all as likely."""

    min: Number = Field(description="The least.")
    max: Number = Field(description="The most.")

    @model_validator(mode="after")
    def _ordered(self) -> "Uniform":
        if self.max < self.min:
            raise invalid("must not be below min", "max")
        return self


Scalar = str | int | float | bool


class Variable(Model):
    """A value that differs from object to object; what it is follows from the seed, the Wave, the Run and the index."""

    choice: Annotated[Items[Scalar], Field(min_length=1)] | None = Field(
        default=None, description="One of these, at random."
    )
    weights: Items[Annotated[float, Field(ge=0), AfterValidator(_bearable)]] | None = Field(
        default=None, description="How likely each choice is, in its order."
    )
    cycle: Annotated[Items[Scalar], Field(min_length=1)] | None = Field(default=None, description="These in turn.")
    uniform: Uniform | None = Field(default=None, description="Evenly between two bounds.")
    exponential: Exponential | None = Field(default=None, description="Exponentially distributed.")
    normal: Normal | None = Field(default=None, description="Normally distributed.")
    lognormal: LogNormal | None = Field(default=None, description="Log-normally distributed.")
    min: Number | None = Field(default=None, description="Smaller values become this one.")
    max: Number | None = Field(default=None, description="Greater values become this one.")
    integer: bool = Field(default=False, description="Round to a whole number.")

    @property
    def variant(self) -> str:
        """Return the name of the field that says how it varies."""
        return exactly_one(self, "choice", "cycle", "uniform", "exponential", "normal", "lognormal")

    @model_validator(mode="after")
    def _consistent(self) -> "Variable":
        variant = self.variant
        if self.weights is not None and (variant != "choice" or len(self.weights) != len(self.choice or ())):
            raise invalid("needs one weight for each choice", "weights")
        if self.weights is not None and not sum(self.weights):
            raise invalid("must not all be 0", "weights")
        return self


class Burst(Model):
    """Groups that arrive at once."""

    size: int = Field(gt=0, description="How many arrive together.")
    every: Duration = Field(description="The time from one group to the next.")

    @model_validator(mode="after")
    def _moves(self) -> "Burst":
        if self.every <= units.ZERO:
            raise invalid("must be more than 0s", "every")
        return self


class Ramp(Model):
    """A rate that grows or shrinks evenly, then stays."""

    from_: Rate = Field(alias="from", description="The rate at the start.")
    to: Rate = Field(description="The rate at the end.")
    over: Duration = Field(description="How long the change takes.")

    @model_validator(mode="after")
    def _moves(self) -> "Ramp":
        if self.over <= units.ZERO:
            raise invalid("must be more than 0s", "over")
        return self


class RateStep(Model):
    """A rate that holds for a while."""

    rate: Rate = Field(description="The rate of this step.")
    for_: Duration = Field(alias="for", description="How long it holds.")

    @model_validator(mode="after")
    def _moves(self) -> "RateStep":
        if self.for_ <= units.ZERO:
            raise invalid("must be more than 0s", "for")
        return self


class Trace(Model):
    """Arrivals recorded elsewhere; its columns are variables of the template."""

    file: str = Field(min_length=1, description="The file, relative to this one.")
    format: Literal["csv", "swf"] = Field(
        default="csv",
        description="csv: a header, a column `at` in seconds, others become variables. swf: Standard Workload Format.",
    )
    speed: float = Field(default=1.0, gt=0, description="60 plays an hour in a minute.")


class Arrivals(Model):
    """How a Wave's objects arrive; without it, all at once."""

    rate: Rate | None = Field(default=None, description="At even distances.")
    poisson: Rate | None = Field(
        default=None, description="At random, at this average rate: what independent users do."
    )
    burst: Burst | None = Field(default=None, description="In groups.")
    ramp: Ramp | None = Field(default=None, description="At a rate that grows or shrinks.")
    steps: Annotated[Items[RateStep], Field(min_length=1)] | None = Field(
        default=None, description="At one rate after the other; the last one stays."
    )
    trace: Trace | None = Field(default=None, description="As recorded in a file.")
    random: bool = Field(default=False, description="With ramp or steps: at random around that rate, as poisson does.")

    @property
    def variant(self) -> str:
        """Return the name of the field that says how they arrive."""
        return exactly_one(self, "rate", "poisson", "burst", "ramp", "steps", "trace")

    @model_validator(mode="after")
    def _one(self) -> "Arrivals":
        if self.random and self.variant not in {"ramp", "steps"}:
            raise invalid("belongs to ramp or steps; poisson is random already", "random")
        self.variant  # noqa: B018  # raises where none or several are given
        return self


class Start(Model):
    """When a Wave fires. Each firing is a Run."""

    after: Duration | None = Field(default=None, description="Once, this long after the daemon first saw the Wave.")
    at: Instant | None = Field(default=None, description="Once, at this time.")
    cron: Cron | None = Field(default=None, description="At these times; crontab's five fields, with names and ranges.")
    every: Duration | None = Field(
        default=None, description="Again and again at this distance, from when the daemon first saw the Wave on."
    )
    time_zone: TimeZone = Field(default="UTC", description="The time zone `cron` is meant in.")
    missed: Literal["run", "skip"] = Field(
        default="skip",
        description="What becomes of Runs whose time passed while nothing was there to start them, by more than a "
        "minute: the latest is started late, or none is.",
    )

    @property
    def variant(self) -> str:
        """Return the name of the field that says when."""
        return exactly_one(self, "after", "at", "cron", "every")

    @model_validator(mode="after")
    def _one(self) -> "Start":
        if self.cron is None and "time_zone" in self.model_fields_set:
            raise invalid("belongs to cron", "timeZone")
        if self.variant == "every" and self.every is not None and self.every < units.duration("1s"):
            raise invalid("must be at least 1s", "every")
        return self


class Churn(Model):
    """Objects that are deleted and made anew, again and again, once all have been submitted."""

    percent: Share = Field(description="How many of the objects each round renews; the seed says which.")
    every: Duration = Field(description="The time from one round to the next, and to the first.")
    rounds: int | None = Field(default=None, ge=1, le=10_000, description="How many rounds.")
    for_: Duration | None = Field(default=None, alias="for", description="Go on for this long instead.")

    @property
    def total(self) -> int:
        """Return how many rounds there are."""
        return self.rounds if self.rounds is not None else int((self.for_ or units.ZERO) / self.every)

    @model_validator(mode="after")
    def _moves(self) -> "Churn":
        exactly_one(self, "rounds", "for_")
        if self.percent <= 0:
            raise invalid("must be more than 0%", "percent")
        if self.every < units.duration("1s"):
            raise invalid("must be at least 1s", "every")
        if self.total < 1:
            raise invalid("must not be shorter than every", "for")
        return self


MAX_USAGE_PHASES = 16
"""Of a Wave's usage: kwok looks through so many, one after the other, each time somebody asks."""


class PodUsage(Model):
    """What a pod uses, not what it requests: amounts for the whole pod, or shares of its containers' requests."""

    cpu: UsageAmount | None = Field(default=None, description="CPU in use.")
    memory: UsageAmount | None = Field(default=None, description="Memory in use.")


class Usage(PodUsage):
    """What a pod uses during one phase of its run; what a phase does not name stays as it was."""

    for_: Duration = Field(alias="for", description="How long the phase lasts; the last one stays.")


class Percentiles(Model):
    """Upper limits for a latency."""

    p50: Duration | None = Field(default=None, description="Half must be faster.")
    p90: Duration | None = Field(default=None, description="90 % must be faster.")
    p95: Duration | None = Field(default=None, description="95 % must be faster.")
    p99: Duration | None = Field(default=None, description="99 % must be faster.")
    max: Duration | None = Field(default=None, description="All must be faster.")


class Expect(Model):
    """The gates of a Wave: what must hold for a Run to pass."""

    pod_startup: Percentiles | None = Field(default=None, description="From a pod's creation to Running.")
    scheduling: Percentiles | None = Field(default=None, description="From a pod's creation to its binding.")
    completion: Percentiles | None = Field(default=None, description="From an object's creation to its completion.")
    deadline: Duration | None = Field(default=None, description="The whole Run must be complete after this time.")
    failures: Count | None = Field(default=None, description="At most so many objects may fail.")
    throughput: Rate | None = Field(
        default=None, description="At least so many pods must be scheduled per second, at the peak."
    )


def _short_start(value: object) -> object:
    return {"after": value} if isinstance(value, str | int) and not isinstance(value, bool) else value


class Wave(Model):
    """A batch of workload that arrives on a schedule."""

    name: Name = Field(description="Its name within the Fleet.")
    suspend: bool = Field(default=False, description="Start no Run; one that is under way pauses until it is resumed.")
    start: Annotated[Start, BeforeValidator(_short_start)] = Field(
        default_factory=lambda: Start.model_construct(after=units.ZERO),
        description="When it fires; without it, once, at once.",
    )
    count: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="How many objects; 1 unless `duration` or a trace says otherwise.",
    )
    duration: Duration | None = Field(default=None, description="Go on for this long instead of up to a count.")
    arrivals: Arrivals | None = Field(default=None, description="How they arrive; without it, all at once.")
    lifecycle: Name | None = Field(
        default=None, description="The Lifecycle its pods go through; without it, the Fleet's Stages decide."
    )
    pools: Items[Name] = Field(
        default=(),
        description="The pools its pods may land on, taints and all; without it, all that have no taint of their own.",
    )
    place: bool = Field(
        default=True, description="Add the affinity and tolerations that bring pods onto the Fleet's fake nodes."
    )
    namespace: str | None = Field(
        default=None, description="The namespace of its objects; made if need be. May hold variables."
    )
    labels: Labels = Field(default={}, description="Labels for its objects and their pods.")
    annotations: Annotations = Field(default={}, description="Annotations for its objects.")
    vary: dict[str, Variable] = Field(default={}, description="Variables of the template and how they vary.")
    usage: Annotated[Items[Usage], Field(max_length=MAX_USAGE_PHASES)] = Field(
        default=(), description="What its pods use, phase by phase, from the moment a pod has started."
    )
    churn: Churn | None = Field(default=None, description="Delete and make anew some of its objects, in rounds.")
    ttl: Duration | None = Field(
        default=None,
        description="Delete each object this long after it is over; one that never ends by itself, after it was made.",
    )
    cleanup: Duration | None = Field(
        default=None,
        description="Delete what is left of a Run this long after all of it is over, and namespaces that were made "
        "for it if nothing else is in them; without it, everything stays.",
    )
    template: Manifest = Field(description="The object to make, of any kind; {{variables}} are filled in.")
    expect: Expect | None = Field(default=None, description="What must hold for a Run to pass.")
