"""Churn and removal of a Run's objects.

Everything derives from the file, the Ledger and the objects themselves, so the next leader can continue.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kwokfleet.api import fleet as fleet_api
from kwokfleet.api.wave import Wave
from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest
from kwokfleet.render.seeded_random import SeededRandom

_END_CONDITIONS = ("Complete", "Failed")
_END_PHASES = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class RunObject:
    """One object of a Run, with the fields that decide on its removal."""

    name: str
    namespace: str
    uid: str
    ended_at: datetime | None
    """End time, or creation time of an object that never ends. None while it is active."""
    deleting: bool = False


def run_selector(fleet: str, wave: str, run: str) -> str:
    """Return the label selector for the objects of one Run."""
    if not run:
        raise ValueError("label selector without a Run name")
    return f"{wave_selector(fleet, wave)},{objects.RUN}={run}"


def wave_selector(fleet: str, wave: str) -> str:
    """Return the label selector for the objects of all Runs of a Wave."""
    if not fleet or not wave:
        raise ValueError("label selector without a Fleet or Wave name")
    return f"{objects.MANAGED_BY}={objects.KWOKFLEET},{objects.FLEET}={fleet},{objects.WAVE}={wave}"


def belongs_to_run(manifest: Manifest, key: tuple[str, str, str]) -> bool:
    """Return whether an object has the labels of this Fleet, Wave and Run."""
    labels = objects.labels(manifest) if manifest.get("metadata") else {}
    return tuple(labels.get(label) for label in (objects.FLEET, objects.WAVE, objects.RUN)) == key


# churn


def churned_indices(fleet: fleet_api.Fleet, wave: Wave, run: str, number: int, total: int) -> list[int]:
    """Return the indices of the objects that a churn round replaces. The choice is deterministic."""
    if wave.churn is None:
        return []
    random = SeededRandom(fleet.spec.seed, fleet.name, wave.name, run, "churn", number)
    count = min(total, math.ceil(round(total * wave.churn.percent, 6)))
    return sorted(sorted(range(total), key=random.uniform)[:count])


def churn_round(manifest: Manifest) -> int:
    """Return the churn round that created an object; 0 if it is an original."""
    text = (manifest["metadata"].get("annotations") or {}).get(objects.CHURN_ROUND, "0")
    return int(text) if text.isascii() and text.isdigit() else 0


def with_churn_round(manifest: Manifest, number: int) -> Manifest:
    """Return an object with its churn round as an annotation."""
    metadata = manifest["metadata"]
    annotations = {**(metadata.get("annotations") or {}), objects.CHURN_ROUND: str(number)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


# removal


def run_object(manifest: Manifest, *, ends: bool) -> RunObject:
    """Return the RunObject of a live object; *ends*: whether this kind completes by itself."""
    metadata = manifest["metadata"]
    created_at = _time(metadata.get("creationTimestamp"))
    ended_at = _ended_at(manifest.get("status") or {}, created_at) if ends else created_at
    deleting = "deletionTimestamp" in metadata
    return RunObject(metadata["name"], metadata.get("namespace", ""), metadata["uid"], ended_at, deleting)


def _ended_at(status: Mapping[str, object], created_at: datetime | None) -> datetime | None:
    """Return when a Job or pod ended, None if it is active."""
    for condition in _list(status.get("conditions")):
        if condition.get("status") == "True" and condition.get("type") in _END_CONDITIONS:
            return _time(condition.get("lastTransitionTime")) or created_at
    if status.get("phase") not in _END_PHASES:
        return None
    states = [(entry.get("state") or {}).get("terminated") or {} for entry in _list(status.get("containerStatuses"))]
    return max((time for state in states if (time := _time(state.get("finishedAt")))), default=created_at)


def _list(value: object) -> list[Manifest]:
    return value if isinstance(value, list) else []


def _time(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if text else None
    except ValueError:
        return None


def expired(run_objects: Iterable[RunObject], ttl: timedelta | None, now: datetime) -> list[RunObject]:
    """Return the objects that ended at least *ttl* ago and are not being deleted."""
    if ttl is None:
        return []
    ended = [(item, item.ended_at) for item in run_objects if not item.deleting]
    return [item for item, ended_at in ended if ended_at is not None and ended_at + ttl <= now]


def all_ended_at(run_objects: Iterable[RunObject], run_ended_at: datetime) -> datetime | None:
    """Return when the Run and its last object ended, None while an object is active."""
    times = [item.ended_at for item in run_objects]
    end_times = [time for time in times if time is not None]
    return max((run_ended_at, *end_times)) if len(end_times) == len(times) else None
