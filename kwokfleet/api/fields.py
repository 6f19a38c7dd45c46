"""Field types of the Fleet API, each with its parser and JSON Schema.

pydantic validates types, `units` parses strings, package `validate` checks across fields.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar, Self, TypeVar
from zoneinfo import ZoneInfo

import cronsim
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    Strict,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from kwokfleet.api import units

Item = TypeVar("Item")
Items = Annotated[tuple[Item, ...], Strict(False)]  # noqa: FBT003  # a YAML list becomes a tuple; its items stay strict
MAX_LABEL_LENGTH = 63
"""Characters of a label value."""


class Model(BaseModel):
    """Base of all API models: frozen, camelCase aliases, no unknown fields, no coercion."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", alias_generator=to_camel, defer_build=True)


def invalid(what: str, *path: str | int) -> PydanticCustomError:
    """Return an error for a validator to raise. *path* is relative to the validated value."""
    return PydanticCustomError("invalid", "{what}", {"what": what, "path": list(path)})


class OneOf(Model):
    """Base of models with alternative fields: exactly one must be set."""

    alternatives: ClassVar[tuple[str, ...]]

    @property
    def variant(self) -> str:
        """Name of the alternative that is set."""
        present = [name for name in self.alternatives if getattr(self, name) is not None]
        if len(present) == 1:
            return present[0]
        *others, last = (to_camel(name.rstrip("_")) for name in self.alternatives)
        choices = f"{', '.join(others)} or {last}"
        if not present:
            raise invalid(f"one of {choices} is required")
        first, second = (to_camel(name.rstrip("_")) for name in present[:2])
        raise invalid(f"cannot be combined with {first}: only one of {choices} is allowed", second)

    @model_validator(mode="after")
    def _check_variant(self) -> Self:
        self.variant  # noqa: B018  # raises unless exactly one is set
        return self


def format_value(value: object) -> str:
    """Return a value for `got ...` in a message, at most 60 characters long."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004  # fits a line


def _parser(parse: Callable[[object], object], *parsed_types: type) -> BeforeValidator:
    """Return a validator that parses strings. Values of *parsed_types* pass unchanged."""

    def validate(value: object) -> object:
        try:
            return value if isinstance(value, parsed_types) else parse(value)
        except ValueError as error:
            raise invalid(str(error)) from None

    return BeforeValidator(validate)


def _schema(pattern: str, examples: list[Any], *, number: bool = False, zero: bool = False) -> WithJsonSchema:
    text: dict[str, Any] = {"type": "string", "pattern": f"^(?:{pattern})$"}
    if zero:
        return WithJsonSchema({"anyOf": [{"const": 0}, text], "examples": examples})
    if number:
        return WithJsonSchema({"anyOf": [{"type": "number"}, text], "examples": examples})
    return WithJsonSchema({**text, "examples": examples})


DURATION_PATTERN = r"([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+"

Duration = Annotated[
    InstanceOf[timedelta],
    _parser(units.duration, timedelta),
    _schema(DURATION_PATTERN, ["0.5s", "10s", "1m30s", "2h"], zero=True),
]
Span = Annotated[
    InstanceOf[units.Span],
    _parser(units.span, units.Span),
    _schema(rf"{DURATION_PATTERN}(\.\.{DURATION_PATTERN})?", ["10s", "10s..11s"], zero=True),
]
Rate = Annotated[
    float,
    _parser(units.rate),
    _schema(r"[0-9]+(\.[0-9]+)?\s*/\s*(s|m|h|d|sec|second|min|minute|hour|day)", ["20/s", "5/m", "100/h"]),
]
Share = Annotated[float, _parser(units.share), _schema(r"[0-9]+(\.[0-9]+)?\s*%", [0.02, "2%"], number=True)]
Percent = Annotated[float, _parser(units.percent), _schema(r"[0-9]+(\.[0-9]+)?\s*%", [25, "25%"], number=True)]
Quantity = Annotated[
    str,
    _parser(units.quantity),
    _schema(
        r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(([KMGTPE]i|[numkMGTPE])?|[eE][+-]?[0-9]+)",
        [32, "500m", "256Gi"],
        number=True,
    ),
]
UsageAmount = Annotated[
    str,
    _parser(units.usage),
    _schema(
        r"([0-9]+(\.[0-9]*)?|\.[0-9]+)(([KMGTPE]i|[numkMGTPE])?|[eE][+-]?[0-9]+)|[0-9]+(\.[0-9]+)?\s*%",
        ["500m", "2Gi", "60%"],
        number=True,
    ),
]
Instant = Annotated[
    InstanceOf[datetime],
    _parser(units.instant, datetime),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2026-03-01T08:00:00Z"]}),
]


def _cron(value: object) -> str:
    if not isinstance(value, str) or len(value.split()) != 5:  # noqa: PLR2004  # minute, hour, day, month, weekday
        raise ValueError("must have five fields (minute hour day month weekday), for example 0 8 * * mon-fri")
    try:
        next(cronsim.CronSim(value, datetime(2024, 1, 1, tzinfo=UTC)))
    except cronsim.CronSimError as error:
        raise ValueError(
            f"is not a valid cron expression: {str(error).lower()}; the fields are minute hour day month weekday"
        ) from None
    except StopIteration:
        raise ValueError("never matches: the date does not exist") from None
    return value


def _time_zone(value: object) -> str:
    try:
        ZoneInfo(value if isinstance(value, str) else "")
    except (ValueError, KeyError, OSError):
        raise ValueError("must be an IANA time zone, for example UTC or Europe/Berlin") from None
    return str(value)


Cron = Annotated[
    str,
    _parser(_cron),
    WithJsonSchema(
        {"type": "string", "pattern": r"^\s*(\S+\s+){4}\S+\s*$", "examples": ["0 8 * * mon-fri", "*/15 * * * *"]}
    ),
]
TimeZone = Annotated[str, _parser(_time_zone), WithJsonSchema({"type": "string", "examples": ["UTC", "Europe/Berlin"]})]

Name = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=40),
    Field(examples=["general", "gpu-lab"]),
]
Count = Annotated[int, Field(ge=0, le=1_000_000)]

_LABEL_NAME = re.compile(rf"[A-Za-z0-9]([-A-Za-z0-9_.]{{0,{MAX_LABEL_LENGTH - 2}}}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def is_qualified_name(key: str) -> bool:
    """Return whether *key* is a valid key of a label, annotation, taint or resource."""
    prefix, slash, name = key.rpartition("/")
    if slash and not (len(prefix) <= 253 and _PREFIX.fullmatch(prefix)):  # noqa: PLR2004  # length of a DNS name
        return False
    return bool(_LABEL_NAME.fullmatch(name))


def _check_keys(value: dict[str, Any]) -> dict[str, Any]:
    for key in value:
        if not is_qualified_name(key):
            raise invalid(f"the key {key!r} is invalid: use letters, digits, '-', '_', '.' and at most one '/'", key)
    return value


def _reject_non_strings(value: object) -> object:
    """Reject unquoted `true` and `8`: the API server accepts only strings here."""
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, bool | int | float):
                raise invalid(f'must be a string, got {format_value(item)}; write "{format_value(item)}"', key)
    return value


def _check_label_values(value: dict[str, str]) -> dict[str, str]:
    for key, item in value.items():
        if item and not _LABEL_NAME.fullmatch(item):
            raise invalid(
                f"must be at most {MAX_LABEL_LENGTH} letters, digits, '-', '_', '.', got {format_value(item)}", key
            )
    return value


Labels = Annotated[
    dict[str, str],
    BeforeValidator(_reject_non_strings),
    AfterValidator(_check_keys),
    AfterValidator(_check_label_values),
]
Annotations = Annotated[dict[str, str], BeforeValidator(_reject_non_strings), AfterValidator(_check_keys)]
_BUILT_IN_RESOURCES = {"cpu", "memory", "pods", "ephemeral-storage", "storage"}
_BUILT_IN_PREFIXES = ("hugepages-", "attachable-volumes-")


def _check_resources(value: dict[str, str]) -> dict[str, str]:
    """Reject what the API server rejects: extended resources need a domain and whole numbers."""
    for key, item in value.items():
        if "/" not in key and key not in _BUILT_IN_RESOURCES and not key.startswith(_BUILT_IN_PREFIXES):
            raise invalid(
                f"unknown resource {key!r}: an extended resource has a domain, for example nvidia.com/gpu", key
            )
        if (key == "pods" or "/" in key) and units.quantity_value(item) % 1:
            raise invalid(f"must be a whole number, got {item}", key)
        if key == "memory" and item.endswith("m"):
            raise invalid(f"{item} is a fraction of a byte; did you mean {item[:-1]}Mi?", key)
    return value


Resources = Annotated[dict[str, Quantity], AfterValidator(_check_keys), AfterValidator(_check_resources)]


def _ip_validator(parser: str, message: str) -> AfterValidator:
    """Return a validator that calls a parser of the module ipaddress."""

    def check(value: str) -> str:
        import ipaddress  # noqa: PLC0415  # rarely needed, slow to import

        try:
            getattr(ipaddress, parser)(value)
        except ValueError as error:
            raise invalid(message.format(value=value, error=error)) from None
        return value

    return AfterValidator(check)


Cidr = Annotated[
    str, _ip_validator("ip_network", "must be a network in CIDR notation, for example 10.64.0.0/14: {error}")
]
IpAddress = Annotated[str, _ip_validator("ip_address", "must be an IP address, for example 127.0.0.1, got {value!r}")]


class Metadata(Model):
    """Metadata of a document."""

    name: Name = Field(description="Name, unique among all files.")
    labels: Labels = Field(default={}, description="Labels, not used by kwokfleet.")
    annotations: Annotations = Field(default={}, description="Annotations, not used by kwokfleet.")
