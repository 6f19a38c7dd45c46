"""Python's collector of garbage, kept from pausing a daemon while it has work to do.

It stops every thread and looks at all objects that have lived for a while: with 5,000 nodes that takes as long as a
repair may. What a daemon drops is freed at once by its counts of references; only cycles, which it hardly
makes, wait for the collector. So the young are looked at now and then, and all of them when there is nothing to do.
"""

import gc
import time

import structlog

log = structlog.get_logger()

YOUNG, MIDDLE, OLD = 10_000, 20, 1000
"""So many more objects than before until the young are looked at; so often that, until the older are; and all."""
EVERY_S = 600.0


class Tidying:
    """Looks at everything when it is asked in a quiet moment, now and then; else as little as possible is done."""

    def __init__(self) -> None:
        gc.set_threshold(YOUNG, MIDDLE, OLD)
        self._last: float | None = None

    def quiet(self) -> None:
        """Take note that there is nothing to do."""
        now = time.monotonic()
        if self._last is not None and now - self._last < EVERY_S:
            return
        self._last = now
        gc.unfreeze()
        found = gc.collect()
        gc.freeze()  # what has lived until now is not looked at again until the next quiet moment
        log.debug("tidied", found=found, took_ms=round(1000 * (time.monotonic() - now), 1))
