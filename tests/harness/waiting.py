"""Waits for a condition, with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

POLL_S = 0.05

Value = TypeVar("Value")


def until(check: Callable[[], Value], *, deadline_s: float = 60) -> Value:
    """Call *check* until it returns a true value; return it. Fail with the last value at the deadline."""
    end = time.monotonic() + deadline_s
    while not (value := check()):
        assert time.monotonic() < end, f"not true within {deadline_s} s; last value: {value!r}"
        time.sleep(POLL_S)
    return value
