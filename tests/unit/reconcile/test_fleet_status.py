"""How a Fleet stands, as the cluster is told."""

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
    left: Plan | None = None,
    outcomes: list[Outcome] | None = None,
    *,
    suspended: bool = False,
) -> Manifest:
    """Return the status of a Fleet `lab` of which so many nodes are there and Ready."""
    there = [manifests.observe(manifests.node(f"n{number}", status=READY)) for number in range(ready)]
    inventory = {each.key: each for each in there}
    rules = {"lab": FleetPolicy(suspended=suspended, pools={"gpu": PoolPolicy(size=desired)})}
    return fleet_status.statuses(
        ["lab"], rules, inventory, left or Plan(), outcomes or [], fleet_status.StatusContext()
    )["lab"]


def conditions(made: Manifest) -> dict[str, tuple[str, str]]:
    """Return conditions as `type: (status, reason)`."""
    return {each["type"]: (each["status"], each["reason"]) for each in made["conditions"]}


def change(**fields: Any) -> Change:  # noqa: ANN401  # of a change
    """Return some change of the Fleet."""
    want = manifests.node()
    return replace(Change(ChangeAction.CREATE, objects.key(want), "lab", "gpu", "is missing", want), **fields)


def test_a_fleet_that_is_as_its_files_say_is_ready() -> None:
    """As kstatus reads it."""
    made = status(3, 3)
    assert made["nodes"] == {"desired": 3, "present": 3, "ready": 3, "schedulable": 3}
    assert made["pools"] == [{"name": "gpu", **made["nodes"]}]
    assert conditions(made) == {
        "Ready": ("True", "Synced"),
        "Reconciling": ("False", "Done"),
        "Stalled": ("False", "NotStalled"),
        "Degraded": ("False", "AsExpected"),
    }


def test_a_fleet_that_is_suspended_says_so() -> None:
    """Also if nothing would be changed."""
    assert conditions(status(3, 3, suspended=True))["Ready"] == ("True", "Suspended")


def test_what_is_known_beside_the_objects_is_told() -> None:
    """Where the files come from, plans and Runs of that Fleet; that nobody drives the nodes is a condition."""
    about = fleet_status.StatusContext(
        {"revision": "main@1"}, "kwok is down", {"lab": [{"digest": "d"}]}, {"x": [{"name": "w"}]}
    )
    made = fleet_status.statuses(["lab"], {}, {}, Plan(), [], about)["lab"]
    assert (made["source"], made["plans"]) == ({"revision": "main@1"}, [{"digest": "d"}])
    assert "waves" not in made
    assert conditions(made)["Degraded"] == ("True", "KwokDown")


def test_a_fleet_whose_file_cannot_be_read_wants_what_it_wanted() -> None:
    """Nobody takes a broken file for the wish to have no nodes."""
    before = status(3, 3)
    made = fleet_status.with_last_desired(
        fleet_status.statuses(["lab"], {}, {}, Plan(), [], fleet_status.StatusContext())["lab"], before
    )
    assert made["nodes"]["desired"] == 3


def test_a_fleet_on_its_way_is_not_ready() -> None:
    """Nodes that are not there yet; changes that are left."""
    assert conditions(status(2, 3))["Ready"] == ("False", "Progressing")
    made = status(3, 3, Plan((change(),)))
    assert conditions(made)["Reconciling"] == ("True", "Progressing")
    assert conditions(made)["Ready"][0] == "False"


@pytest.mark.parametrize(
    ("cause", "reason", "for_a_person"),
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
def test_what_is_withheld_is_the_reason(cause: WithheldCause, reason: str, for_a_person: bool) -> None:  # noqa: FBT001  # the example
    """With its words and what to do; what neither an order nor the clock releases is stalled, as kstatus has it."""
    made = status(3, 3, Plan((), (Withheld(cause, "lab", "because", (change(),)),)))
    assert conditions(made)["Ready"] == ("False", reason)
    assert made["conditions"][0]["message"] == "because"
    [held] = made["withheld"]
    assert (held["cause"], held["why"], held["changes"]) == (cause.value, "because", 1)
    assert held["next"]
    assert conditions(made)["Stalled"] == (("True", reason) if for_a_person else ("False", "NotStalled"))
    assert (held["next"] in made["conditions"][2]["message"]) == for_a_person


def test_whoever_sees_that_an_approval_is_missing_sees_how_to_give_it() -> None:
    """In the line that `kubectl get fleets` shows, and in the Event made of it."""
    made = status(
        3, 3, Plan((), (Withheld(WithheldCause.APPROVAL, "lab", "too much would vanish", (change(),), "d1"),))
    )
    assert conditions(made)["Ready"] == ("False", "PruneWithheld")
    assert made["conditions"][0]["message"] == "too much would vanish; to allow it: kwokfleet approve d1"
    assert made["conditions"][1]["message"] == "0 changes left, 1 withheld"
    assert conditions(made)["Stalled"] == ("True", "PruneWithheld")
    assert made["withheld"][0]["digest"] == "d1"
    assert "kwokfleet approve d1" in made["withheld"][0]["next"]


def test_what_failed_is_the_reason() -> None:
    """By the object's name."""
    made = status(3, 3, None, [Outcome(change(), ChangeResult.REFUSED, "403 no")])
    assert conditions(made)["Ready"] == ("False", "Failed")
    assert made["conditions"][0]["message"] == "lab-gpu-0: 403 no"


def test_of_other_fleets_nothing_is_said() -> None:
    """Each has its own status."""
    other = Withheld(WithheldCause.APPROVAL, "other", "because", (), "d1")
    assert conditions(status(3, 3, Plan((change(fleet="other"),), (other,))))["Ready"] == ("True", "Synced")


def test_what_is_the_same_is_not_written_again() -> None:
    """A settled Fleet costs no request."""
    first = fleet_status.status_update(status(3, 3), {}, NOW)
    assert first
    assert fleet_status.status_update(status(3, 3), first, NOW + timedelta(hours=1)) is None


def test_a_conditions_time_is_that_of_its_last_turn() -> None:
    """It stays while the condition says the same, and moves when it turns."""
    first = fleet_status.status_update(status(3, 3), {}, NOW)
    assert first
    later = fleet_status.status_update(status(2, 3), first, NOW + timedelta(hours=1))
    assert later
    times = {each["type"]: each["lastTransitionTime"] for each in later["conditions"]}
    assert times == {
        "Ready": "2026-03-02T09:00:00Z",
        "Reconciling": "2026-03-02T09:00:00Z",
        "Stalled": "2026-03-02T08:00:00Z",
        "Degraded": "2026-03-02T08:00:00Z",
    }


def test_a_long_story_is_cut() -> None:
    """The API server takes 32 KiB at most; people fewer."""
    held = tuple(Withheld(WithheldCause.CONFLICT, "lab", "x" * 100, ()) for _ in range(100))
    assert len(status(3, 3, Plan((), held))["conditions"][0]["message"]) == 1024


def test_a_digest_tells_plans_apart() -> None:
    """By the action, the object and what is wanted of it."""
    plain = change()
    others = [
        change(action=ChangeAction.DELETE),
        change(desired=manifests.node(labels={"a": "b"})),
        change(key=plain.key._replace(name="x")),
    ]
    assert len({digest([each]) for each in (plain, *others)}) == 4
