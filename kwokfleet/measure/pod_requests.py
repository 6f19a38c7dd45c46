"""What a pod asks for: cpu, memory, GPUs and whatever else its containers request, as numbers."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from kwokfleet.api import units
from kwokfleet.kube.objects import Manifest

PodRequests = tuple[tuple[str, float], ...]
"""Resource and amount, sorted."""


def total_requests(manifest: Manifest) -> PodRequests:
    """Return what the scheduler sets aside for a pod, its place among the pods of a node included."""
    spec = manifest.get("spec") or {}
    return _of(_asked(spec.get("containers")), _asked(spec.get("initContainers")), _pairs(spec.get("overhead")))


Pairs = tuple[tuple[str, str], ...]
Asked = tuple[tuple[bool, Pairs], ...]
"""Of each container: whether it stays beside the others once started (a sidecar), and its requests."""


def _asked(containers: Any) -> Asked:  # noqa: ANN401  # a part of a manifest
    return tuple(
        (each.get("restartPolicy") == "Always", _pairs((each.get("resources") or {}).get("requests")))
        for each in containers or ()
    )


def _pairs(quantities: Mapping[str, object] | None) -> Pairs:
    return tuple((name, str(value)) for name, value in (quantities or {}).items())


@lru_cache(maxsize=4096)
def _of(containers: Asked, initial: Asked, overhead: Pairs) -> PodRequests:
    """Add up the containers and sidecars; an init container needs its share before the others start."""
    staying: dict[str, float] = {}
    peak: dict[str, float] = {}
    for sidecar, pairs in initial:
        if sidecar:
            _add(staying, pairs)
        for name, text in () if sidecar else pairs:
            peak[name] = max(peak.get(name, 0.0), staying.get(name, 0.0) + _amount(text))
    for _, pairs in containers:
        _add(staying, pairs)
    total = {name: max(staying.get(name, 0.0), peak.get(name, 0.0)) for name in staying.keys() | peak.keys()}
    _add(total, overhead)
    return tuple(sorted({**total, "pods": 1.0}.items()))


def _add(total: dict[str, float], pairs: Pairs) -> None:
    for name, text in pairs:
        total[name] = total.get(name, 0.0) + _amount(text)


@lru_cache(maxsize=4096)
def _amount(text: str) -> float:
    try:
        return float(units.quantity_value(text))
    except ValueError:
        return 0.0
