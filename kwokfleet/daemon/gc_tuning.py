"""Python's garbage collector, tuned to run while the daemon is idle.

A full collection stops every thread and visits all long-lived objects: with 5,000 nodes it takes as long as a
repair may take. Reference counts free almost everything at once; only reference cycles, which the daemon
hardly creates, wait for the collector. So young objects are collected rarely, and all of them when idle.
"""

import gc
import time

import structlog

log = structlog.get_logger()

YOUNG, MIDDLE, OLD = 10_000, 20, 1000
"""Collector thresholds: allocations before a young collection, then collections before the next generation."""
INTERVAL_S = 600.0


class IdleCollector:
    """Runs a full collection when the daemon reports that it is idle, at most every ten minutes."""

    def __init__(self) -> None:
        gc.set_threshold(YOUNG, MIDDLE, OLD)
        self._collected_at: float | None = None

    def idle(self) -> None:
        """Collect, if the last full collection is long enough ago."""
        now = time.monotonic()
        if self._collected_at is not None and now - self._collected_at < INTERVAL_S:
            return
        self._collected_at = now
        gc.unfreeze()
        unreachable = gc.collect()
        gc.freeze()  # what is alive now is not visited again before the next full collection
        log.debug("garbage_collected", unreachable=unreachable, took_ms=round(1000 * (time.monotonic() - now), 1))
