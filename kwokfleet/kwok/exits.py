"""Reasons of exits of kwok.

kwok exits with code 1 for every error. Only the end of its log tells a rejected configuration from an
unreachable API server.
"""

import re
from enum import StrEnum


class ExitReason(StrEnum):
    """Why a kwok process exited."""

    ASKED = "asked"
    CONFIGURATION = "configuration"
    """kwok rejects its configuration; the next start would fail, too."""
    AWAY = "away"
    """The API server did not respond."""
    PORT = "port"
    KILLED = "killed"
    CRASHED = "crashed"


_AWAY = re.compile(
    "connection refused|no route to host|i/o timeout|TLS handshake timeout|EOF|context deadline exceeded"
    "|connection reset|server is currently unable|failed to wait for ready",
    re.IGNORECASE,
)
_CONFIGURATION = re.compile(
    "no stages found|invalid crd|unknown flag|invalid argument|no nodes are managed|conflicted with"
    "|failed to load|failed to parse|is enabled in CRDs|yaml|unmarshal|invalid CIDR",
    re.IGNORECASE,
)


def exit_reason(code: int, log_end: str, *, asked: bool) -> ExitReason:
    """Classify an exit by its code and the end of the log."""
    if asked:
        return ExitReason.ASKED  # after SIGTERM kwok exits with 0 or with 1
    if code < 0:
        return ExitReason.KILLED
    if "address already in use" in log_end:
        return ExitReason.PORT
    if "panic:" in log_end or "fatal error:" in log_end:
        return ExitReason.CRASHED
    if _AWAY.search(log_end):
        return ExitReason.AWAY
    return ExitReason.CONFIGURATION if _CONFIGURATION.search(log_end) else ExitReason.CRASHED
