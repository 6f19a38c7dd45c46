"""Computation of Fleet.status."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest
from kwokfleet.reconcile import fleet_status
from kwokfleet.reconcile.changes import Change, ChangeAction, Plan, Withheld, WithheldCause, digest
from kwokfleet.reconcile.outcomes import ChangeResult, Outcome
from kwokfleet.reconcile.plan_input import FleetPolicy, PoolPolicy
from tests.harness import manifests

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def status(
    ready: int,
    desired: int,
    remaining: Plan | None = None,
    outcomes: list[Outcome] | None = None,
    *,
    suspended: bool = False,
) -> Manifest:
    """Return the status of Fleet `lab` with *ready* Ready nodes."""
    nodes = [manifests.observe(manifests.node(f"n{number}", status=READY)) for number in range(ready)]
    inventory = {node.key: node for node in nodes}
    rules = {"lab": FleetPolicy(suspended=suspended, pools={"gpu": PoolPolicy(size=desired)})}
    return fleet_status.statuses(
        ["lab"], rules, inventory, remaining or Plan(), outcomes or [], fleet_status.StatusContext()
    )["lab"]


def conditions(fleet: Manifest) -> dict[str, tuple[str, str]]:
    """Return conditions as `type: (status, reason)`."""
    return {condition["type"]: (condition["status"], condition["reason"]) for condition in fleet["conditions"]}


def change(**fields: Any) -> Change:  # noqa: ANN401  # of a change
    """Return a change of the Fleet."""
    want = manifests.node()
    return replace(Change(ChangeAction.CREATE, objects.key(want), "lab", "gpu", "is missing", want), **fields)


def test_a_synced_fleet_is_ready() -> None:
    """The conditions follow kstatus."""
    fleet = status(3, 3)
    assert fleet["nodes"] == {"desired": 3, "present": 3, "ready": 3, "schedulable": 3}
    assert fleet["pools"] == [{"name": "gpu", **fleet["nodes"]}]
    assert conditions(fleet) == {
        "Ready": ("True", "Synced"),
        "Reconciling": ("False", "Done"),
        "Stalled": ("False", "NotStalled"),
        "Degraded": ("False", "AsExpected"),
    }


def test_a_suspended_fleet_has_reason_suspended() -> None:
    """Even without pending changes."""
    assert conditions(status(3, 3, suspended=True))["Ready"] == ("True", "Suspended")


def test_the_status_includes_source_plans_and_degraded() -> None:
    """Only entries of this Fleet are included."""
    context = fleet_status.StatusContext(
        {"revision": "main@1"}, "kwok is down", {"lab": [{"digest": "d"}]}, {"x": [{"name": "w"}]}
    )
    fleet = fleet_status.statuses(["lab"], {}, {}, Plan(), [], context)["lab"]
    assert (fleet["source"], fleet["plans"]) == ({"revision": "main@1"}, [{"digest": "d"}])
    assert "waves" not in fleet
    assert conditions(fleet)["Degraded"] == ("True", "KwokDown")


def test_an_invalid_file_keeps_the_last_desired_count() -> None:
    """An invalid file does not mean 0 nodes."""
    before = status(3, 3)
    fleet = fleet_status.with_last_desired(
        fleet_status.statuses(["lab"], {}, {}, Plan(), [], fleet_status.StatusContext())["lab"], before
    )
    assert fleet["nodes"]["desired"] == 3


def test_a_progressing_fleet_is_not_ready() -> None:
    """Missing nodes or remaining changes."""
    assert conditions(status(2, 3))["Ready"] == ("False", "Progressing")
    fleet = status(3, 3, Plan((change(),)))
    assert conditions(fleet)["Reconciling"] == ("True", "Progressing")
    assert conditions(fleet)["Ready"][0] == "False"


@pytest.mark.parametrize(
    ("cause", "reason", "stalled"),
    [
        (WithheldCause.SUSPENDED, "Suspended", False),
        (WithheldCause.WINDOW, "OutsideWindow", False),
        (WithheldCause.BROKEN, "InvalidSource", True),
        (WithheldCause.CONFLICT, "NotOurs", True),
        (WithheldCause.NOT_FAKE, "NotOurs", True),
        (WithheldCause.STALLED, "FieldConflict", True),
        (WithheldCause.UNKNOWN, "Withheld", True),
    ],
)
def test_a_withheld_cause_sets_the_reason_of_ready(cause: WithheldCause, reason: str, stalled: bool) -> None:  # noqa: FBT001  # the example
    """Causes that need a user action also set Stalled."""
    fleet = status(3, 3, Plan((), (Withheld(cause, "lab", "because", (change(),)),)))
    assert conditions(fleet)["Ready"] == ("False", reason)
    assert fleet["conditions"][0]["message"] == "because"
    [held] = fleet["withheld"]
    assert (held["cause"], held["why"], held["changes"]) == (cause.value, "because", 1)
    assert held["next"]
    assert conditions(fleet)["Stalled"] == (("True", reason) if stalled else ("False", "NotStalled"))
    assert (held["next"] in fleet["conditions"][2]["message"]) == stalled


def test_a_missing_approval_shows_the_approve_command() -> None:
    """In the Ready message, which `kubectl get fleets` and the Event show."""
    fleet = status(
        3, 3, Plan((), (Withheld(WithheldCause.APPROVAL, "lab", "too much would vanish", (change(),), "d1"),))
    )
    assert conditions(fleet)["Ready"] == ("False", "PruneWithheld")
    assert fleet["conditions"][0]["message"] == "too much would vanish; to allow it: kwokfleet approve d1"
    assert fleet["conditions"][1]["message"] == "0 changes left, 1 withheld"
    assert conditions(fleet)["Stalled"] == ("True", "PruneWithheld")
    assert fleet["withheld"][0]["digest"] == "d1"
    assert "kwokfleet approve d1" in fleet["withheld"][0]["next"]


def test_a_failed_change_sets_the_reason_of_ready() -> None:
    """The message names the object."""
    fleet = status(3, 3, None, [Outcome(change(), ChangeResult.REFUSED, "403 no")])
    assert conditions(fleet)["Ready"] == ("False", "Failed")
    assert fleet["conditions"][0]["message"] == "lab-gpu-0: 403 no"


def test_changes_of_other_fleets_are_ignored() -> None:
    """Each Fleet has its own status."""
    other = Withheld(WithheldCause.APPROVAL, "other", "because", (), "d1")
    assert conditions(status(3, 3, Plan((change(fleet="other"),), (other,))))["Ready"] == ("True", "Synced")


def test_an_unchanged_status_is_not_written() -> None:
    """A synced Fleet needs no request."""
    first = fleet_status.status_update(status(3, 3), {}, NOW)
    assert first
    assert fleet_status.status_update(status(3, 3), first, NOW + timedelta(hours=1)) is None


def test_last_transition_time_changes_only_with_the_status() -> None:
    """Unchanged conditions keep their time."""
    first = fleet_status.status_update(status(3, 3), {}, NOW)
    assert first
    later = fleet_status.status_update(status(2, 3), first, NOW + timedelta(hours=1))
    assert later
    times = {condition["type"]: condition["lastTransitionTime"] for condition in later["conditions"]}
    assert times == {
        "Ready": "2026-03-02T09:00:00Z",
        "Reconciling": "2026-03-02T09:00:00Z",
        "Stalled": "2026-03-02T08:00:00Z",
        "Degraded": "2026-03-02T08:00:00Z",
    }


def test_a_long_message_is_truncated() -> None:
    """The API server accepts at most 32 KiB."""
    held = tuple(Withheld(WithheldCause.CONFLICT, "lab", "x" * 100, ()) for _ in range(100))
    assert len(status(3, 3, Plan((), held))["conditions"][0]["message"]) == 1024


def test_different_changes_have_different_digests() -> None:
    """Action, object and desired manifest all count."""
    plain = change()
    others = [
        change(action=ChangeAction.DELETE),
        change(desired=manifests.node(labels={"a": "b"})),
        change(key=plain.key._replace(name="x")),
    ]
    assert len({digest([change]) for change in (plain, *others)}) == 4
