"""Requests for a pass, and their reasons as a text."""

import time

import pytest

from kwokfleet.daemon import trigger
from kwokfleet.daemon.trigger import PassReason


@pytest.mark.parametrize(
    ("reasons", "text"),
    [
        ({PassReason.FILES}, "files changed"),
        ({PassReason.CLUSTER, PassReason.ASKED}, "requested by a user, the cluster changed"),
        ({PassReason.FLEETS, PassReason.START}, "the daemon started"),
        ({PassReason.CLUSTER, PassReason.LEADING}, "the daemon started"),
        ({PassReason.NEWS, PassReason.TIME}, "scheduled time reached"),
    ],
)
def test_reasons_are_described_as_a_text(reasons: set[PassReason], text: str) -> None:
    """A start, or a new leader, explains all other reasons."""
    assert trigger.describe(reasons) == text


def test_every_reason_of_a_pass_has_a_text() -> None:
    """No Event has an empty reason."""
    assert all(trigger.describe({reason}) for reason in PassReason if reason is not PassReason.NEWS)


def test_requests_are_taken_once_with_the_time_of_the_first() -> None:
    """The latency of a pass counts from its first request."""
    requests = trigger.Trigger()
    before = time.monotonic()
    requests.request(PassReason.FILES)
    after_first = time.monotonic()
    requests.request(PassReason.CLUSTER)
    reasons, requested_at = requests.wait(0)
    assert reasons == {PassReason.FILES, PassReason.CLUSTER}
    assert requested_at is not None
    assert before <= requested_at <= after_first
    assert requests.wait(0) == (frozenset(), None)


def test_a_status_write_is_not_a_request_for_a_pass() -> None:
    """It wakes the worker, and has no latency."""
    requests = trigger.Trigger()
    requests.request(PassReason.NEWS)
    assert requests.wait(0) == (frozenset({PassReason.NEWS}), None)
