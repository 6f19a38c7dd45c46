import io
import json
import re

import pytest
import structlog

from kwokfleet import settings
from kwokfleet.cli import logging


class Terminal(io.StringIO):
    """A stream with isatty."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def logged(stream: io.StringIO, log_format: settings.LogFormat = settings.LogFormat.AUTO) -> str:
    """Log at debug, info and error with level info; return the output."""
    logging.configure(settings.LogLevel.INFO, log_format, stream=stream)
    log = structlog.get_logger()
    log.debug("too_small")
    log.info("pass_done", fleet="gpu-lab", changes=3)
    log.error("pass_failed", fleet="gpu-lab")
    return stream.getvalue()


def test_the_default_format_without_a_terminal_is_json() -> None:
    """Each line is one JSON object with time and level."""
    first, second = (json.loads(line) for line in logged(io.StringIO()).splitlines())
    assert (first["event"], first["level"], first["fleet"], first["changes"]) == ("pass_done", "info", "gpu-lab", 3)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", first["timestamp"])
    assert second["level"] == "error"


def test_the_default_format_on_a_terminal_is_text() -> None:
    """With colours."""
    text = logged(Terminal())
    assert "pass_done" in text
    assert "\x1b[" in text
    assert not text.startswith("{")


def test_the_format_can_be_forced() -> None:
    """`--log-format json` on a terminal; `console` in a file, without colours."""
    assert json.loads(logged(Terminal(), settings.LogFormat.JSON).splitlines()[0])["event"] == "pass_done"
    text = logged(io.StringIO(), settings.LogFormat.CONSOLE)
    assert "pass_done" in text
    assert "\x1b[" not in text


def test_an_exception_is_complete_in_json() -> None:
    """The line has type, message and frames."""
    stream = io.StringIO()
    logging.configure(settings.LogLevel.INFO, settings.LogFormat.JSON, stream=stream)
    try:
        raise ValueError("bad number")  # noqa: TRY301 - raised to be logged
    except ValueError:
        structlog.get_logger().exception("pass_failed")
    (entry,) = map(json.loads, stream.getvalue().splitlines())
    assert entry["exception"][0]["exc_type"] == "ValueError"
    assert entry["exception"][0]["exc_value"] == "bad number"


@pytest.mark.parametrize("log_format", [settings.LogFormat.JSON, settings.LogFormat.CONSOLE])
def test_values_of_variables_are_not_logged_with_an_exception(log_format: settings.LogFormat) -> None:
    """A variable may hold a token."""
    out = io.StringIO()
    logging.configure(settings.LogLevel.INFO, log_format, stream=out, colors=False)
    token = str(hash("very secret"))
    try:
        int(f"{token}x"[-1:])
    except ValueError:
        structlog.get_logger().exception("failed")
    assert "ValueError" in out.getvalue()
    assert token not in out.getvalue()
