"""How long a step of a Lifecycle takes: a duration, a range, what the object says, or a distribution."""

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from kwokfleet.api import units
from kwokfleet.api.fields import Duration, Model, Span
from kwokfleet.api.wave import exactly_one


class ExponentialDelay(Model):
    """An exponential distribution of durations: drawn once for each object, from the seed."""

    mean: Duration = Field(description="The average.")


class NormalDelay(Model):
    """A normal distribution of durations."""

    mean: Duration = Field(description="The middle.")
    stddev: Duration = Field(description="The standard deviation.")


class LogNormalDelay(Model):
    """A log-normal distribution of durations: how long real jobs run."""

    median: Duration = Field(description="Half of the values are below it.")
    sigma: float = Field(gt=0, le=10, description="The spread: the standard deviation of the logarithm.")


def _short_delay(value: object) -> object:
    if value == "args":
        return {"args": True}
    return value if isinstance(value, dict) else {"span": value}


class Delay(Model):
    """How long a step takes: `10s`, `10s..11s`, `args`, an annotation, or a distribution."""

    span: Span | None = Field(default=None, description="A duration, or any between two bounds.")
    args: bool | None = Field(default=None, description="What the first container's args say: [sleep, 10s].")
    annotation: str | None = Field(default=None, description="What this annotation of the pod or node says.")
    exponential: ExponentialDelay | None = Field(default=None, description="Exponentially distributed.")
    normal: NormalDelay | None = Field(default=None, description="Normally distributed.")
    lognormal: LogNormalDelay | None = Field(default=None, description="Log-normally distributed.")

    @property
    def variant(self) -> str:
        """Return the name of the field that says how long."""
        return exactly_one(self, "span", "args", "annotation", "exponential", "normal", "lognormal")

    @model_validator(mode="after")
    def _one(self) -> "Delay":
        self.variant  # noqa: B018  # raises where none or several are given
        return self


def fixed_delay(duration: str) -> Delay:
    """Return a delay that is always the same. A default is made often, and needs no validation."""
    return Delay.model_construct(span=units.span(duration))


AnyDelay = Annotated[Delay, BeforeValidator(_short_delay)]
