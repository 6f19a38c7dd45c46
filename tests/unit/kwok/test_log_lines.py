"""Parsing of kwok's log."""

import pytest

from kwokfleet.kwok import log_lines


@pytest.mark.parametrize(
    ("text", "level", "event"),
    [
        ('{"time":"t","level":"ERROR","msg":"Failed","err":"no"}', "error", "Failed"),
        ('{"time":"t","level":"WARN","msg":"Careful"}', "warning", "Careful"),
        ("E0302 08:00:00.000000   12 reflector.go:150] cannot list", "error", "cannot list"),
        ("panic: runtime error", "error", "panic: runtime error"),
        ("{not json", "warning", "{not json"),
        ("", "info", ""),
    ],
)
def test_every_format_is_parsed(text: str, level: str, event: str) -> None:
    """JSON of kwok, klog of client-go, and plain text."""
    line = log_lines.parse_log_line(text)
    assert (line.level, line.event) == (level, event)


def test_the_last_error_comes_before_the_last_line() -> None:
    """Without an error, it is the last line."""
    error = '{"level":"ERROR","msg":"Failed","err":"no stages"}'
    assert log_lines.last_error([error, "shutting down"]) == "Failed: no stages"
    assert log_lines.last_error(["starting", "shutting down"]) == "shutting down"
    assert log_lines.last_error([]) == "no log output"
