"""Delays of a Lifecycle: a duration, a range, a value from the object, or a distribution."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from kwokfleet.api import units
from kwokfleet.api.fields import Duration, Model, OneOf, Span


class ExponentialDelay(Model):
    """Exponential distribution of durations, sampled once per object from the seed."""

    mean: Duration = Field(description="Mean.")


class NormalDelay(Model):
    """Normal distribution of durations."""

    mean: Duration = Field(description="Mean.")
    stddev: Duration = Field(description="Standard deviation.")


class LogNormalDelay(Model):
    """Log-normal distribution of durations, typical of real jobs."""

    median: Duration = Field(description="Median: half of the values are lower.")
    sigma: float = Field(gt=0, le=10, description="Standard deviation of the logarithm.")


def _short_delay(value: object) -> object:
    if value == "args":
        return {"args": True}
    return value if isinstance(value, dict) else {"span": value}


class Delay(OneOf):
    """Delay of a lifecycle step: `10s`, `10s..11s`, `args`, an annotation, or a distribution."""

    alternatives = ("span", "args", "annotation", "exponential", "normal", "lognormal")

    span: Span | None = Field(default=None, description="Duration, or range of durations (uniform).")
    args: bool | None = Field(
        default=None, description="Read the duration from the first container's args, as in [sleep, 10s]."
    )
    annotation: str | None = Field(
        default=None, description="Read the duration from this annotation of the pod or node."
    )
    exponential: ExponentialDelay | None = Field(default=None, description="Exponential distribution.")
    normal: NormalDelay | None = Field(default=None, description="Normal distribution.")
    lognormal: LogNormalDelay | None = Field(default=None, description="Log-normal distribution.")


def fixed_delay(duration: str) -> Delay:
    """Return a constant delay. Skips validation, because defaults are built often."""
    return Delay.model_construct(span=units.span(duration))


AnyDelay = Annotated[Delay, BeforeValidator(_short_delay)]
