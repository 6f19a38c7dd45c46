"""kwok's log lines: JSON of kwok itself, klog lines of client-go, plain text of the Go runtime."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

_KLOG = re.compile(r"([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ ([^\]]+)\] (.*)", re.DOTALL)
_KLOG_LEVELS = {"I": "info", "W": "warning", "E": "error", "F": "error"}
_JSON_LEVELS = {"DEBUG": "debug", "INFO": "info", "WARN": "warning", "ERROR": "error"}
_MAX_TEXT = 2000


@dataclass(frozen=True, slots=True)
class LogLine:
    """One log line."""

    level: str
    event: str
    keys: Mapping[str, Any]


def parse_log_line(text: str) -> LogLine:
    """Parse a log line in any of the three formats."""
    if text.startswith("{"):
        try:
            fields = orjson.loads(text)
        except orjson.JSONDecodeError:
            return LogLine("warning", text[:_MAX_TEXT], {})
        level = _JSON_LEVELS.get(str(fields.pop("level", "")).partition("+")[0].partition("-")[0], "info")
        event = str(fields.pop("msg", ""))
        return LogLine(level, event, {key: value for key, value in fields.items() if key not in ("time", "source")})
    match = _KLOG.match(text)
    if match:
        return LogLine(_KLOG_LEVELS[match[1]], match[3][:_MAX_TEXT], {"source": match[2]})
    level = "error" if text.startswith(("panic:", "fatal error:", "goroutine ")) else "info"
    return LogLine(level, text[:_MAX_TEXT], {})


def last_error(texts: Iterable[str]) -> str:
    """Return the last error line, or the last line if there is no error."""
    lines = [parse_log_line(text) for text in texts]
    candidates = [line for line in lines if line.level == "error"] or lines
    if not candidates:
        return "no log output"
    error = candidates[-1].keys.get("err") or candidates[-1].keys.get("error")
    return f"{candidates[-1].event}: {error}" if error else candidates[-1].event
