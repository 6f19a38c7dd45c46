"""Wait for something to become true, with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

POLL_S = 0.05

Value = TypeVar("Value")


def until(look: Callable[[], Value], *, deadline_s: float = 60) -> Value:
    """Call *look* until it returns something true, and return that; fail with its last answer otherwise."""
    end = time.monotonic() + deadline_s
    while not (value := look()):
        assert time.monotonic() < end, f"not within {deadline_s} s; in the end it was {value!r}"
        time.sleep(POLL_S)
    return value
