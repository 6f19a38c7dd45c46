"""Models and checks of kwok resources: Logs, Exec, Attach, PortForward, ResourceUsage, Metric.

The API server prunes unknown fields, and kwok does not report an expression that does not compile: its metric is 0.
So the files are validated before they reach the cluster.
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
_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_METRIC_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"


def _matching(pattern: str, expected: str) -> AfterValidator:
    """Return a validator for strings that match *pattern*."""

    def validate(value: str) -> str:
        if not re.fullmatch(pattern, value, re.DOTALL):
            raise invalid(f"must {expected}, got {value!r}")
        return value

    return AfterValidator(validate)


Text = Annotated[str, Field(min_length=1)]
AnyName = Annotated[str, _matching(_NAME, "be a name of lower-case letters, digits, '-' and '.'")]
File = Annotated[str, _matching("/.*", "be an absolute path on the host of kwok")]
"""Not relative to the working directory of kwok."""
MetricName = Annotated[
    str, _matching(_METRIC_NAME, "be a Prometheus metric name, for example container_cpu_usage_seconds_total")
]


class ResourceMetadata(Model):
    """Metadata of a cluster-wide resource."""

    name: AnyName
    labels: Labels = Field(default={})
    annotations: Annotations = Field(default={})


class NamespacedMetadata(ResourceMetadata):
    """Metadata of a namespaced resource. The name is that of its pod."""

    namespace: AnyName | None = None


class Selector(Model):
    """Selects pods by namespace and name."""

    match_namespaces: Items[Text] = ()
    match_names: Items[Text] = ()


class Log(Model):
    """Log file of containers, in CRI format: `TIME stdout F TEXT`."""

    containers: Items[Text] = ()
    logs_file: File
    previous_logs_file: File | None = None
    follow: bool = False


class Attachable(Model):
    """Output of an attached container."""

    containers: Items[Text] = ()
    logs_file: File


class Env(Model):
    """Environment variable of a command."""

    name: Text
    value: str = ""


class RunAs(Model):
    """User and group of a command."""

    run_as_user: Annotated[int, Field(ge=0)] | None = None
    run_as_group: Annotated[int, Field(ge=0)] | None = None


class Local(Model):
    """Execution of a command on the host of kwok."""

    work_dir: File | None = None
    envs: Items[Env] = ()
    security_context: RunAs | None = None


class Executable(Model):
    """Exec in containers."""

    containers: Items[Text] = ()
    local: Local


Port = Annotated[int, Field(ge=1, le=MAX_PORT)]


class Target(Model):
    """Target of a forwarded connection."""

    address: Text
    port: Port


class Forward(Model):
    """Port forwarding of a pod: to a target, or to a command."""

    ports: Items[Port] = ()
    target: Target | None = None
    command: Items[Text] = ()

    @model_validator(mode="after")
    def _one(self) -> "Forward":
        if bool(self.command) == (self.target is not None):
            raise invalid("target or command is required, but not both")
        return self


class Amount(Model):
    """Usage of one resource."""

    value: Quantity | None = None
    expression: Text | None = None

    @model_validator(mode="after")
    def _one(self) -> "Amount":
        if (self.value is None) == (self.expression is None):
            raise invalid("value or expression is required, but not both")
        return self


class Usages(Model):
    """Resource usage of containers."""

    containers: Items[Text] = ()
    usage: dict[str, Amount]


class MetricLabel(Model):
    """Metric label with a CEL value."""

    name: Text
    value: Text


class Bucket(Model):
    """Histogram bucket."""

    le: Annotated[float, Field(ge=0, strict=False)]
    value: Text
    hidden: bool = False


class MetricEntry(Model):
    """One metric, computed by CEL."""

    name: MetricName
    help: str = ""
    kind: Literal["counter", "gauge", "histogram"]
    dimension: Literal["node", "pod", "container"] = "node"
    labels: Items[MetricLabel] = ()
    value: Text | None = None
    buckets: Items[Bucket] = ()

    @model_validator(mode="after")
    def _consistent(self) -> "MetricEntry":
        if self.kind == "histogram" and not self.buckets:
            raise invalid("buckets is required for a histogram")
        if self.kind != "histogram" and self.value is None:
            raise invalid(f"value is required for a {self.kind}")
        return self


class MetricSpec(Model):
    """Metrics of one path."""

    path: Annotated[str, _matching("/metrics/.*", "start with /metrics/")]
    metrics: Annotated[Items[MetricEntry], Field(min_length=1)]


_ENTRIES: dict[str, tuple[str, type[Model]]] = {
    "Attach": ("attaches", Attachable),
    "Exec": ("execs", Executable),
    "Logs": ("logs", Log),
    "PortForward": ("forwards", Forward),
    "ResourceUsage": ("usages", Usages),
}
"""List field and entry model of each kind."""


@functools.cache
def _model(kind: str) -> type[Model]:
    """Return the model of a kind. A Cluster kind has a selector and no namespace."""
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
    """Return the Findings of one kwok resource."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind not in KINDS or not isinstance(value, dict):
        hint = "add the file to spec.stages" if kind == "Stage" else problems.suggestion(str(kind), sorted(KINDS))
        return [Finding(("kind",), f"{kind!r} is not a kind of kwokResources", hint, rule="unknown-kind")]
    findings = decode.to_model(_model(kind), value)[1]
    return findings or [
        finding for where, text, takes in _expressions(value) for finding in _compiled(where, text, takes)
    ]


_NUMBER = ("int", "uint", "double", "bool", "duration", "dyn", "null")
_TEXT = ("string", "dyn", "null")
"""CEL result types that kwok can use as a number or a label; `dyn` is unknown before evaluation."""


def _expressions(value: Manifest) -> Iterator[tuple[FieldPath, str, tuple[str, ...]]]:
    """Yield path, text and allowed result types of each CEL expression."""
    spec = value["spec"]
    for index, metric in enumerate(spec.get("metrics") or ()):
        at: FieldPath = ("spec", "metrics", index)
        if metric.get("value") is not None:
            yield (*at, "value"), metric["value"], _NUMBER
        for name, takes in (("labels", _TEXT), ("buckets", _NUMBER)):
            for number, entry in enumerate(metric.get(name) or ()):
                yield (*at, name, number, "value"), entry["value"], takes
    for index, uses in enumerate(spec.get("usages") or ()):
        for resource, amount in (uses.get("usage") or {}).items():
            if amount.get("expression") is not None:
                yield ("spec", "usages", index, "usage", resource, "expression"), amount["expression"], _NUMBER


def _compiled(where: FieldPath, text: str, takes: tuple[str, ...]) -> Iterator[Finding]:
    analysis = cel.analyze(text, cel.METRIC)
    if analysis.problem:
        what = f"the CEL expression does not compile ({analysis.problem}): kwok reports no value"
        hint = "use the variables node, pod and container with fields of the Kubernetes API"
        yield Finding(where, what, hint, rule="kwok-bad-cel")
    elif analysis.result_type not in takes:
        what = f"the result must be a {'string' if takes is _TEXT else 'number'}, got {analysis.result_type}"
        hint = "return a string" if takes is _TEXT else 'return a number or a Quantity, for example Quantity("1Gi")'
        yield Finding(where, what, hint, rule="kwok-cel-yields")


def owned_manifest(value: Manifest, fleet: str) -> Manifest:
    """Return a resource with kwokfleet labels and API server defaults, so that it does not differ forever."""
    kind, source_metadata = value["kind"], value["metadata"]
    metadata = {key: item for key, item in source_metadata.items() if item}
    if kind in objects.KWOK_NAMESPACED_KINDS:
        metadata.setdefault("namespace", "default")
    own_labels = {objects.MANAGED_BY: objects.KWOKFLEET, objects.FLEET: fleet}
    metadata["labels"] = (source_metadata.get("labels") or {}) | own_labels
    spec = _without_nulls(value["spec"])
    if kind == "Metric":
        spec = {**spec, "metrics": [{"dimension": "node", **metric} for metric in spec["metrics"]]}
    return {"apiVersion": value["apiVersion"], "kind": kind, "metadata": metadata, "spec": spec}


def _without_nulls(part: Any) -> Any:  # noqa: ANN401  # any part of a manifest
    """Return a part without nulls: the API server drops them."""
    if isinstance(part, Mapping):
        return {key: _without_nulls(item) for key, item in part.items() if item is not None}
    return [_without_nulls(item) for item in part] if isinstance(part, list) else part


def check_reachable(manifests: Iterable[Manifest], controller: KwokControllerSpec) -> Iterator[Finding]:
    """Warn about debug resources that kubectl cannot reach, because the nodes have no kubelet port."""
    kinds = sorted({manifest["kind"] for manifest in manifests} & set(flags.DEBUG_KINDS))
    if kinds and controller.port is None:
        what = f"kubectl cannot reach kwok for {', '.join(kinds)}: the nodes have no kubelet port"
        hint = "set spec.port of the KwokController"
        yield problems.warning(("spec", "kwokResources"), what, hint, "unreachable-kwok")


def check_conflicts(
    resources: Iterable[tuple[Manifest, Document]], *, uses: bool
) -> Iterator[tuple[Document, Finding]]:
    """Yield resources that conflict with each other, or (*uses*) with the usage of Fleets."""
    seen: dict[objects.ObjectKey, Document] = {}
    for manifest, document in resources:
        key = objects.key(manifest)
        first = seen.setdefault(key, document)
        if first is not document:
            what = f"duplicate {key.kind} {key.name!r}, also in {first.path}"
            yield document, Finding(("metadata", "name"), what, "remove one of them", rule="duplicate-name")
        if uses and key.kind == "ClusterResourceUsage":
            what = "conflicts with usage of pools and waves: kwok would use only one of them"
            yield document, Finding(("kind",), what, "use ResourceUsage, or remove one of them", rule="rival-usage")
        if uses and key.kind == "Metric" and manifest["spec"]["path"] == usage.PATH:
            what = "is reserved for the usage of pools and waves"
            hint = "use another path, for example /metrics/mine"
            yield document, Finding(("spec", "path"), what, hint, rule="rival-usage")
