"""The kinds of value a Fleet file is made of, each with its reader and its JSON Schema.

A type here is what a field is declared with in fleet.py. pydantic checks shapes; the readers in
units.py check texts; what a value means beside other values is checks.py's business.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar
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
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from kwokfleet.api import units

Item = TypeVar("Item")
Items = Annotated[tuple[Item, ...], Strict(False)]  # noqa: FBT003  # a YAML list becomes a tuple; its items stay strict
Manifest = dict[str, Any]


class Model(BaseModel):
    """What every part of a file is: frozen, camelCase outside, nothing unknown, nothing coerced."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        defer_build=True,
    )


def invalid(what: str, *where: str | int) -> PydanticCustomError:
    """Return an error for a validator to raise; *where* leads on from the value being validated."""
    return PydanticCustomError("wrong", "{what}", {"what": what, "where": list(where)})


def _reader(read: Callable[[object], object], *made: type) -> BeforeValidator:
    """Return a validator that reads texts; a value of a type in *made* has been read already."""

    def validate(value: object) -> object:
        try:
            return value if isinstance(value, made) else read(value)
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


_D = r"([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+"

Duration = Annotated[
    InstanceOf[timedelta], _reader(units.duration, timedelta), _schema(_D, ["0.5s", "10s", "1m30s", "2h"], zero=True)
]
Span = Annotated[
    InstanceOf[units.Span],
    _reader(units.span, units.Span),
    _schema(rf"{_D}(\.\.{_D})?", ["10s", "10s..11s"], zero=True),
]
Rate = Annotated[
    float,
    _reader(units.rate),
    _schema(r"[0-9]+(\.[0-9]+)?\s*/\s*(s|m|h|d|sec|second|min|minute|hour|day)", ["20/s", "5/m", "100/h"]),
]
Share = Annotated[float, _reader(units.share), _schema(r"[0-9]+(\.[0-9]+)?\s*%", [0.02, "2%"], number=True)]
Percent = Annotated[float, _reader(units.percent), _schema(r"[0-9]+(\.[0-9]+)?\s*%", [25, "25%"], number=True)]
Quantity = Annotated[
    str,
    _reader(units.quantity),
    _schema(
        r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(([KMGTPE]i|[numkMGTPE])?|[eE][+-]?[0-9]+)",
        [32, "500m", "256Gi"],
        number=True,
    ),
]
UsageAmount = Annotated[
    str,
    _reader(units.usage),
    _schema(
        r"([0-9]+(\.[0-9]*)?|\.[0-9]+)(([KMGTPE]i|[numkMGTPE])?|[eE][+-]?[0-9]+)|[0-9]+(\.[0-9]+)?\s*%",
        ["500m", "2Gi", "60%"],
        number=True,
    ),
]
Instant = Annotated[
    InstanceOf[datetime],
    _reader(units.instant, datetime),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2026-03-01T08:00:00Z"]}),
]


def _cron(value: object) -> str:
    if not isinstance(value, str) or len(value.split()) != 5:  # noqa: PLR2004  # minute, hour, day, month, weekday
        raise ValueError("must be five fields: minute hour day month weekday, as in 0 8 * * mon-fri")
    try:
        next(cronsim.CronSim(value, datetime(2024, 1, 1, tzinfo=UTC)))
    except cronsim.CronSimError as error:
        raise ValueError(f"is not a cron expression ({str(error).lower()}): minute hour day month weekday") from None
    except StopIteration:
        raise ValueError("never comes true (there is no such date)") from None
    return value


def _time_zone(value: object) -> str:
    try:
        ZoneInfo(value if isinstance(value, str) else "")
    except (ValueError, KeyError, OSError):
        raise ValueError("must be the name of an IANA time zone, as in UTC or Europe/Berlin") from None
    return str(value)


Cron = Annotated[
    str,
    _reader(_cron),
    WithJsonSchema(
        {"type": "string", "pattern": r"^\s*(\S+\s+){4}\S+\s*$", "examples": ["0 8 * * mon-fri", "*/15 * * * *"]}
    ),
]
TimeZone = Annotated[str, _reader(_time_zone), WithJsonSchema({"type": "string", "examples": ["UTC", "Europe/Berlin"]})]

Name = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=40),
    Field(examples=["general", "gpu-lab"]),
]
Count = Annotated[int, Field(ge=0, le=1_000_000)]

_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def is_qualified_name(key: str) -> bool:
    """Return whether *key* may name a label, an annotation, a taint or a resource."""
    prefix, slash, name = key.rpartition("/")
    if slash and not (len(prefix) <= 253 and _PREFIX.fullmatch(prefix)):  # noqa: PLR2004  # a DNS name's length
        return False
    return bool(_LABEL_NAME.fullmatch(name))


def _keys(value: dict[str, Any]) -> dict[str, Any]:
    for key in value:
        if not is_qualified_name(key):
            raise invalid(f"{key!r} is not a valid key: use letters, digits, '-', '_', '.', and at most one '/'", key)
    return value


def _texts(value: object) -> object:
    """Point out `true` and `8` where Kubernetes takes texts only: the API server would refuse them."""
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, bool | int | float):
                shown = str(item).lower() if isinstance(item, bool) else item
                raise invalid(f'must be a text: put it in quotes, "{shown}"', key)
    return value


def _label_values(value: dict[str, str]) -> dict[str, str]:
    for key, item in value.items():
        if item and not _LABEL_NAME.fullmatch(item):
            raise invalid(f"{item!r} is not a valid label value: at most 63 letters, digits, '-', '_', '.'", key)
    return value


Labels = Annotated[dict[str, str], BeforeValidator(_texts), AfterValidator(_keys), AfterValidator(_label_values)]
Annotations = Annotated[dict[str, str], BeforeValidator(_texts), AfterValidator(_keys)]
_NATIVE = {"cpu", "memory", "pods", "ephemeral-storage", "storage"}
_NATIVE_PREFIXES = ("hugepages-", "attachable-volumes-")


def _resources(value: dict[str, str]) -> dict[str, str]:
    """Refuse what the API server would: names of extended resources have a domain, and their amounts are whole."""
    for key, item in value.items():
        if "/" not in key and key not in _NATIVE and not key.startswith(_NATIVE_PREFIXES):
            raise invalid(
                f"{key!r} is no resource of Kubernetes: extended ones have a domain, as in nvidia.com/gpu", key
            )
        if (key == "pods" or "/" in key) and units.quantity_value(item) % 1:
            raise invalid("must be a whole number", key)
        if key == "memory" and item.endswith("m"):
            raise invalid(f"{item} is a fraction of a byte: Mi, perhaps?", key)
    return value


Resources = Annotated[dict[str, Quantity], AfterValidator(_keys), AfterValidator(_resources)]


def _network(value: str) -> str:
    import ipaddress  # noqa: PLC0415  # seldom needed, and slow to import

    try:
        ipaddress.ip_network(value)
    except ValueError as error:
        raise invalid(f"must be a network, as in 10.64.0.0/14 ({error})") from None
    return value


Cidr = Annotated[str, AfterValidator(_network)]


def _address(value: str) -> str:
    import ipaddress  # noqa: PLC0415  # seldom needed, and slow to import

    try:
        ipaddress.ip_address(value)
    except ValueError:
        raise invalid("must be an IP address, as in 127.0.0.1 or 0.0.0.0") from None
    return value


IpAddress = Annotated[str, AfterValidator(_address)]


class Metadata(Model):
    """An object's name."""

    name: Name = Field(description="Its name; unique among the files.")
    labels: Labels = Field(default={}, description="Labels, for people.")
    annotations: Annotations = Field(default={}, description="Annotations, for people.")
