"""What becomes of a Run's objects after they were submitted: renewed by churn, removed when their time is over.

All of it follows from the file, the Ledger and the objects themselves, so that whoever leads next goes on.
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

_OVER = ("Complete", "Failed")
_FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class RunObject:
    """One object of a Run, as far as its removal is concerned."""

    name: str
    namespace: str
    uid: str
    over: datetime | None
    """When it ended, or was made if nothing ends it; None while it goes on."""
    deleting: bool = False


def run_selector(fleet: str, wave: str, run: str) -> str:
    """Return what selects the objects of exactly one Run, and nothing of anybody else."""
    if not run:
        raise ValueError("a Run without a name")
    return f"{wave_selector(fleet, wave)},{objects.RUN}={run}"


def wave_selector(fleet: str, wave: str) -> str:
    """Return what selects the objects of all Runs of a Wave."""
    if not fleet or not wave:
        raise ValueError("a Wave without fleet or name")
    return f"{objects.MANAGED_BY}={objects.KWOKFLEET},{objects.FLEET}={fleet},{objects.WAVE}={wave}"


def belongs_to_run(manifest: Manifest, name: tuple[str, str, str]) -> bool:
    """Return whether an object belongs to this Fleet, Wave and Run."""
    labels = objects.labels(manifest) if manifest.get("metadata") else {}
    return tuple(labels.get(key) for key in (objects.FLEET, objects.WAVE, objects.RUN)) == name


# churn


def churned_indices(fleet: fleet_api.Fleet, wave: Wave, run: str, number: int, total: int) -> list[int]:
    """Return which objects a round of churn renews: a share of them, the same whoever asks."""
    if wave.churn is None:
        return []
    random = SeededRandom(fleet.spec.seed, fleet.name, wave.name, run, "churn", number)
    count = min(total, math.ceil(round(total * wave.churn.percent, 6)))
    return sorted(sorted(range(total), key=random.uniform)[:count])


def churn_round(manifest: Manifest) -> int:
    """Return the round of churn that an object was made in; 0 if by none."""
    text = (manifest["metadata"].get("annotations") or {}).get(objects.CHURN_ROUND, "0")
    return int(text) if text.isascii() and text.isdigit() else 0


def with_churn_round(manifest: Manifest, number: int) -> Manifest:
    """Return an object as a round of churn makes it."""
    metadata = manifest["metadata"]
    annotations = {**(metadata.get("annotations") or {}), objects.CHURN_ROUND: str(number)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


# removal


def run_object(manifest: Manifest, *, ends: bool) -> RunObject:
    """Return what matters of a live object; *ends*: whether such objects complete by themselves."""
    metadata = manifest["metadata"]
    made = _time(metadata.get("creationTimestamp"))
    over = _over(manifest.get("status") or {}, made) if ends else made
    return RunObject(
        metadata["name"], metadata.get("namespace", ""), metadata["uid"], over, "deletionTimestamp" in metadata
    )


def _over(status: Mapping[str, object], made: datetime | None) -> datetime | None:
    """Return when a Job or a pod ended, None if it has not."""
    conditions = [each for each in _list(status.get("conditions")) if each.get("status") == "True"]
    ended = [_time(each.get("lastTransitionTime")) or made for each in conditions if each.get("type") in _OVER]
    if ended:
        return ended[0]
    if status.get("phase") not in _FINISHED:
        return None
    states = [(each.get("state") or {}).get("terminated") or {} for each in _list(status.get("containerStatuses"))]
    return max((moment for each in states if (moment := _time(each.get("finishedAt")))), default=made)


def _list(value: object) -> list[Manifest]:
    return value if isinstance(value, list) else []


def _time(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if text else None
    except ValueError:
        return None


def expired(things: Iterable[RunObject], ttl: timedelta | None, now: datetime) -> list[RunObject]:
    """Return the objects whose time is over."""
    if ttl is None:
        return []
    return [each for each in things if each.over is not None and not each.deleting and each.over + ttl <= now]


def all_ended_at(things: Iterable[RunObject], ended: datetime) -> datetime | None:
    """Return since when nothing of a Run goes on that ended at *ended*; None if something does."""
    moments = [each.over for each in things]
    known = [moment for moment in moments if moment is not None]
    return max((ended, *known)) if len(known) == len(moments) else None
