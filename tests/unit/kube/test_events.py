"""Kubernetes Events about Fleets."""

import re
from datetime import UTC, datetime, timedelta, timezone

from kwokfleet.kube import events
from kwokfleet.kube.objects import Manifest

NOW = datetime(2026, 3, 2, 12, 0, 0, 123456, tzinfo=UTC)
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def event(message: str = "all is well", now: datetime = NOW, fleet: str = "gpu-lab") -> Manifest:
    """Return an Event."""
    return events.fleet_event(fleet, "some-uid", "Synced", message, kind=events.NORMAL, me="host_1", now=now)


def test_the_name_is_valid_and_unique_per_microsecond() -> None:
    """Also for the longest Fleet name."""
    name = event(fleet="a" * 63)["metadata"]["name"]
    assert SUBDOMAIN.fullmatch(name)
    assert len(name) <= 240  # a mark may follow
    assert name != event(fleet="a" * 63, now=NOW + timedelta(microseconds=1))["metadata"]["name"]


def test_kubectl_describe_finds_the_event() -> None:
    """Events of cluster-scoped objects are in `default`, and refer to kind, name and UID."""
    made = event()
    assert made["metadata"]["namespace"] == "default"
    assert made["involvedObject"] == {
        "apiVersion": "kwokfleet.dev/v1alpha1",
        "kind": "Fleet",
        "name": "gpu-lab",
        "uid": "some-uid",
    }
    assert (made["type"], made["reason"], made["message"]) == ("Normal", "Synced", "all is well")


def test_times_are_in_utc() -> None:
    """In whatever zone the clock is."""
    berlin = NOW.astimezone(timezone(timedelta(hours=1)))
    assert event(now=berlin)["firstTimestamp"] == event(now=berlin)["lastTimestamp"] == "2026-03-02T12:00:00Z"
    assert event(now=berlin)["metadata"]["name"] == event()["metadata"]["name"]


def test_a_long_message_is_cut_to_the_limit_of_the_api_server() -> None:
    """It ends with an ellipsis."""
    assert event("x" * 1024)["message"] == "x" * 1024
    cut = event("x" * 1025)["message"]
    assert len(cut) == 1024
    assert cut.endswith("x…")
