"""kwok's own objects beside Stages, as files declare them: Logs, Exec, Attach, PortForward, ResourceUsage, Metric.

The API server prunes or refuses what its definitions do not know, and kwok says nothing of an
expression that does not compile: it shows 0. So files are read against models of their own, and what
is wrong in them is told at its line, before anything reaches the cluster.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, create_model, model_validator

from kwokfleet.api import decode
from kwokfleet.api.fields import Annotations, Items, Labels, Model, Quantity, invalid
from kwokfleet.api.kwok_controller import MAX_PORT, KwokControllerSpec
from kwokfleet.documents import problems
from kwokfleet.documents.parser import Document
from kwokfleet.documents.problems import FieldPath, Finding
from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest
from kwokfleet.kwok import flags
from kwokfleet.render import usage
from kwokfleet.stagelint import cel

KINDS = (*objects.KWOK_CLUSTER_KINDS, *objects.KWOK_NAMESPACED_KINDS)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise invalid("must be a name: lower-case letters, digits, '-' and '.'")
    return value


def _absolute(value: str) -> str:
    """Refuse what depends on the folder in which kwok happens to run."""
    if not value.startswith("/"):
        raise invalid(f"must be an absolute path on the machine that kwok runs on, got {value!r}")
    return value


def _metric_name(value: str) -> str:
    if not _METRIC_NAME.fullmatch(value):
        raise invalid("must be a name as Prometheus has them, as in container_cpu_usage_seconds_total")
    return value


def _metrics_path(value: str) -> str:
    if not value.startswith("/metrics/"):
        raise invalid("must begin with /metrics/: kwok serves no other path")
    return value


Text = Annotated[str, Field(min_length=1)]
AnyName = Annotated[str, AfterValidator(_name)]
File = Annotated[str, AfterValidator(_absolute)]


class ResourceMetadata(Model):
    """What an object is called."""

    name: AnyName
    labels: Labels = Field(default={})
    annotations: Annotations = Field(default={})


class NamespacedMetadata(ResourceMetadata):
    """What an object in a namespace is called: as the pod that it is for."""

    namespace: AnyName | None = None


class Selector(Model):
    """Whose pods a cluster-wide object is for: kwok looks at names, not at labels."""

    match_namespaces: Items[Text] = ()
    match_names: Items[Text] = ()


class Log(Model):
    """Where a container's log is: in the format of container runtimes, `TIME stdout F TEXT`."""

    containers: Items[Text] = ()
    logs_file: File
    previous_logs_file: File | None = None
    follow: bool = False


class Attachable(Model):
    """What somebody sees who attaches to a container."""

    containers: Items[Text] = ()
    logs_file: File


class Env(Model):
    """A variable of a command."""

    name: Text
    value: str = ""


class RunAs(Model):
    """Whose rights a command has."""

    run_as_user: Annotated[int, Field(ge=0)] | None = None
    run_as_group: Annotated[int, Field(ge=0)] | None = None


class Local(Model):
    """How a command runs: on kwok's machine."""

    work_dir: File | None = None
    envs: Items[Env] = ()
    security_context: RunAs | None = None


class Executable(Model):
    """Commands that may be run in a container."""

    containers: Items[Text] = ()
    local: Local


Port = Annotated[int, Field(ge=1, le=MAX_PORT)]


class Target(Model):
    """Where a connection goes."""

    address: Text
    port: Port


class Forward(Model):
    """What becomes of connections to a pod's ports."""

    ports: Items[Port] = ()
    target: Target | None = None
    command: Items[Text] = ()

    @model_validator(mode="after")
    def _one(self) -> "Forward":
        if bool(self.command) == (self.target is not None):
            raise invalid("needs either target or command")
        return self


class Amount(Model):
    """How much of a resource is used."""

    value: Quantity | None = None
    expression: Text | None = None

    @model_validator(mode="after")
    def _one(self) -> "Amount":
        if (self.value is None) == (self.expression is None):
            raise invalid("needs either value or expression")
        return self


class Usages(Model):
    """What containers use, by resource."""

    containers: Items[Text] = ()
    usage: dict[str, Amount]


class MetricLabel(Model):
    """A label and the CEL that gives its value."""

    name: Text
    value: Text


class Bucket(Model):
    """A bucket of a histogram."""

    le: Annotated[float, Field(ge=0, strict=False)]
    value: Text
    hidden: bool = False


class MetricEntry(Model):
    """One figure, computed by CEL."""

    name: Annotated[str, AfterValidator(_metric_name)]
    help: str = ""
    kind: Literal["counter", "gauge", "histogram"]
    dimension: Literal["node", "pod", "container"] = "node"
    labels: Items[MetricLabel] = ()
    value: Text | None = None
    buckets: Items[Bucket] = ()

    @model_validator(mode="after")
    def _fitting(self) -> "MetricEntry":
        if self.kind == "histogram" and not self.buckets:
            raise invalid("needs buckets, as any histogram")
        if self.kind != "histogram" and self.value is None:
            raise invalid("needs a value")
        return self


class MetricSpec(Model):
    """Figures that are served together."""

    path: Annotated[str, AfterValidator(_metrics_path)]
    metrics: Annotated[Items[MetricEntry], Field(min_length=1)]


_ENTRIES: dict[str, tuple[str, type[Model]]] = {
    "Attach": ("attaches", Attachable),
    "Exec": ("execs", Executable),
    "Logs": ("logs", Log),
    "PortForward": ("forwards", Forward),
    "ResourceUsage": ("usages", Usages),
}
"""The one list that each kind holds, and what its entries are."""


@functools.cache
def _model(kind: str) -> type[Model]:
    """Return the model of a kind; its cluster-wide form has a selector, and no namespace."""
    wide = kind in objects.KWOK_CLUSTER_KINDS
    fields: dict[str, Any] = {
        "api_version": (Literal["kwok.x-k8s.io/v1alpha1"], ...),
        "kind": (str, ...),
        "metadata": (ResourceMetadata if wide else NamespacedMetadata, ...),
        "spec": (MetricSpec if kind == "Metric" else _spec(kind), ...),
        "status": (Any, None),
    }
    return create_model(kind, __base__=Model, **fields)


def _spec(kind: str) -> type[Model]:
    name, entry = _ENTRIES[kind.removeprefix("Cluster")]
    fields: dict[str, Any] = {name: (Annotated[Items[entry], Field(min_length=1)], ...)}  # type: ignore[valid-type]  # a class of the table
    if kind in objects.KWOK_CLUSTER_KINDS:
        fields["selector"] = (Selector | None, None)
    return create_model(f"{kind}Spec", __base__=Model, **fields)


def check(value: object) -> list[Finding]:
    """Return all that is wrong in one of kwok's objects."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind not in KINDS or not isinstance(value, dict):
        hint = "name it under spec.stages" if kind == "Stage" else problems.suggestion(str(kind), sorted(KINDS))
        return [Finding(("kind",), f"{kind!r} is not one of kwok's kinds", hint, rule="unknown-kind")]
    wrong = decode.to_model(_model(kind), value)[1]
    return wrong or [finding for where, text, takes in _expressions(value) for finding in _compiled(where, text, takes)]


_NUMBER = ("int", "uint", "double", "bool", "duration", "dyn", "null")
_TEXT = ("string", "dyn", "null")
"""The results of CEL that kwok can show as a figure or a label; of `dyn` only running it tells."""


def _expressions(value: Manifest) -> Iterator[tuple[FieldPath, str, tuple[str, ...]]]:
    """Yield where an object holds CEL, the expression, and what it may yield."""
    spec = value["spec"]
    for index, metric in enumerate(spec.get("metrics") or ()):
        at: FieldPath = ("spec", "metrics", index)
        if metric.get("value") is not None:
            yield (*at, "value"), metric["value"], _NUMBER
        for name, takes in (("labels", _TEXT), ("buckets", _NUMBER)):
            for number, each in enumerate(metric.get(name) or ()):
                yield (*at, name, number, "value"), each["value"], takes
    for index, uses in enumerate(spec.get("usages") or ()):
        for resource, amount in (uses.get("usage") or {}).items():
            if amount.get("expression") is not None:
                yield ("spec", "usages", index, "usage", resource, "expression"), amount["expression"], _NUMBER


def _compiled(where: FieldPath, text: str, takes: tuple[str, ...]) -> Iterator[Finding]:
    analysis = cel.analyze(text, cel.METRIC)
    if analysis.problem:
        what = f"kwok cannot compile this CEL, {analysis.problem}: it shows nothing"
        yield Finding(where, what, "there are node, pod and container, of Kubernetes' own fields", rule="kwok-bad-cel")
    elif analysis.result_type not in takes:
        what = f"kwok can make no {'label' if takes is _TEXT else 'figure'} of {analysis.result_type}: it shows nothing"
        hint = "yield a text" if takes is _TEXT else 'yield a number or a Quantity, as in Quantity("1Gi")'
        yield Finding(where, what, hint, rule="kwok-cel-yields")


def owned_manifest(value: Manifest, fleet: str) -> Manifest:
    """Return an object as one of ours, with what the API server would fill in: else it would differ for ever."""
    kind, given = value["kind"], value["metadata"]
    metadata = {key: item for key, item in given.items() if item}
    if kind in objects.KWOK_NAMESPACED_KINDS:
        metadata.setdefault("namespace", "default")
    metadata["labels"] = {**(given.get("labels") or {}), objects.MANAGED_BY: objects.KWOKFLEET, objects.FLEET: fleet}
    spec = _without_nothing(value["spec"])
    if kind == "Metric":
        spec = {**spec, "metrics": [{"dimension": "node", **each} for each in spec["metrics"]]}
    return {"apiVersion": value["apiVersion"], "kind": kind, "metadata": metadata, "spec": spec}


def _without_nothing(part: Any) -> Any:  # noqa: ANN401  # any part of a manifest
    """Return a part without what is null: the API server keeps none of it."""
    if isinstance(part, Mapping):
        return {key: _without_nothing(item) for key, item in part.items() if item is not None}
    return [_without_nothing(item) for item in part] if isinstance(part, list) else part


def check_reachable(own: Iterable[Manifest], runs: KwokControllerSpec) -> Iterator[Finding]:
    """Yield that kubectl will not find what a Fleet declares for it, if nodes do not say where kwok is."""
    kinds = sorted({each["kind"] for each in own} & set(flags.DEBUG_KINDS))
    if kinds and runs.port is None:
        what = f"kubectl cannot reach kwok for {', '.join(kinds)}: nodes do not say where it is"
        hint = "give the KwokController a port"
        yield Finding(("spec", "kwokResources"), what, hint, problems.Severity.WARNING, "unreachable-kwok")


def check_conflicts(found: Iterable[tuple[Manifest, Document]], *, uses: bool) -> Iterator[tuple[Document, Finding]]:
    """Yield objects that cannot stand beside each other, or (*uses*) beside usage that Fleets declare."""
    seen: dict[objects.ObjectKey, Document] = {}
    for manifest, document in found:
        key = objects.key(manifest)
        first = seen.setdefault(key, document)
        if first is not document:
            what = f"there is another {key.kind} {key.name!r}, in {first.path}"
            yield document, Finding(("metadata", "name"), what, "keep one of them", rule="duplicate-name")
        if uses and key.kind == "ClusterResourceUsage":
            what = "cannot stand beside the usage of pools and waves: kwok would take one or the other"
            yield document, Finding(("kind",), what, "use ResourceUsage, or only one of them", rule="rival-usage")
        if uses and key.kind == "Metric" and manifest["spec"]["path"] == usage.PATH:
            what = "is the path at which the usage of pools and waves is shown"
            yield document, Finding(("spec", "path"), what, "choose another, as in /metrics/mine", rule="rival-usage")
