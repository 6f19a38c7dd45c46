"""Access rules of the HTTP API, and the format of server-sent events."""

from datetime import UTC, datetime

import pytest

from kwokfleet.daemon.snapshot import (
    Event,
)
from kwokfleet.server import access

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *((host, True) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.example", "")),  # noqa: S104  # not loopback
    ],
)
def test_loopback_addresses_are_recognized(host: str, expected: bool) -> None:  # noqa: FBT001  # the expected value
    """127.0.0.0/8, ::1 and localhost."""
    assert access.is_loopback(host) is expected


@pytest.mark.parametrize(
    ("header", "token", "expected"),
    [
        ("Bearer abc", "abc", True),
        ("bearer  abc ", "abc", True),
        ("Bearer tokén".encode().decode("latin-1"), "tokén", True),
        ("Bearer abcd", "abc", False),
        ("Bearer ab", "abc", False),
        ("abc", "abc", False),
        ("Bearer ", "", False),
        ("", "", False),
    ],
)
def test_a_token_must_be_equal(header: str, token: str, expected: bool) -> None:  # noqa: FBT001  # the expected value
    """An empty token is never accepted."""
    assert access.is_token(header, token) is expected


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("17", (17, True)),
        ("5-17", (17, True)),
        ("4-17", (0, False)),
        ("0", (0, True)),
        *((text, None) for text in ("", "x", "-1", "5-", "x-17", "5-x", "1.5", "٣", "9" * 40)),
    ],
)
def test_a_position_is_parsed_or_rejected(text: str, position: tuple[int, bool] | None) -> None:
    """A number of another start of the daemon does not count."""
    assert access.position(text, "5") == position


def test_an_event_is_one_message() -> None:
    """Line breaks in its text are escaped: one would end the message."""
    message = access.event_message(Event(3, NOW, "pass", "", "one\ntwo\r\n\n", {}), "5").decode()
    assert message.startswith("id: 5-3\ndata: {")
    assert message.count("\n") == 3
    assert "\r" not in message
