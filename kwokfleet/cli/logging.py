"""Logging: structlog on standard error, colored text on a terminal and JSON otherwise.

Standard output is for results only. A line is an event name plus keys:
`log.info("pass_done", fleet="gpu-lab", changes=3)`.
"""

import logging
import sys
from typing import TextIO

import structlog

from kwokfleet import settings

_LEVELS = logging.getLevelNamesMapping()


def configure(
    level: settings.LogLevel, log_format: settings.LogFormat, *, stream: TextIO | None = None, colors: bool = True
) -> None:
    """Send log lines of *level* and above to *stream* (standard error) in *log_format*."""
    out = stream or sys.stderr
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.StackInfoRenderer(),
            *_renderers(log_format, out, colors=colors and out.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,  # a later configure() also applies to existing loggers
    )


def _renderers(log_format: settings.LogFormat, out: TextIO, *, colors: bool) -> list[structlog.typing.Processor]:
    is_auto = log_format is settings.LogFormat.AUTO
    if out.isatty() if is_auto else log_format is settings.LogFormat.CONSOLE:
        stamp = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
        plain = structlog.dev.plain_traceback  # the default prints local variables, which may contain a token
        return [stamp, structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]
    return [
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False)),
        structlog.processors.JSONRenderer(sort_keys=True),
    ]
