"""Adaptive concurrency limit: as many requests in flight as the API server answers quickly.

Fast responses raise the limit, slow ones lower it, and a rejection (429, 5xx, no response) halves it.
The time is an argument; the caller sends and waits.
"""

from dataclasses import dataclass, field

from kwokfleet import settings

INITIAL_INFLIGHT = 32.0
FAST_RESPONSE_S, SLOW_RESPONSE_S = 0.25, 0.75
"""An average response below the first raises the limit, above the second lowers it."""
_GROWTH = 4.0
_SHRINK, _HALVE = 0.8, 0.5


@dataclass(slots=True)
class AdaptiveLimit:
    """State of the limit."""

    max_inflight: int = settings.MAX_INFLIGHT
    """Upper bound: an API server queues more requests, and answers 429 when its queue is full."""
    qps: float = 0.0
    """Maximum of requests per second; 0: no maximum."""
    limit: float = field(init=False)
    _responses: int = 0
    _total_s: float = 0.0
    _next_slot: float = 0.0
    _paused_until: float = 0.0

    def __post_init__(self) -> None:
        self.limit = min(INITIAL_INFLIGHT, self.max_inflight)

    def may_send(self, inflight: int) -> bool:
        """Return whether one more request may be in flight."""
        return inflight < max(1, int(self.limit))

    def reserve_slot(self, now: float) -> float:
        """Reserve the next send time and return the seconds until then."""
        start = max(now, self._next_slot, self._paused_until)
        if self.qps > 0:
            self._next_slot = start + 1 / self.qps
        return start - now

    def is_paused(self, now: float) -> bool:
        """Return whether a Retry-After of the API server is still running."""
        return now < self._paused_until

    def record_response(self, took_s: float) -> None:
        """Record a response; adjust the limit once per *limit* responses."""
        self._responses += 1
        self._total_s += took_s
        if self._responses < self.limit:
            return
        average = self._total_s / self._responses
        self._responses, self._total_s = 0, 0.0
        if average < FAST_RESPONSE_S:
            self.limit = min(self.limit + _GROWTH, self.max_inflight)
        elif average > SLOW_RESPONSE_S:
            self.limit = max(1.0, self.limit * _SHRINK)

    def record_rejection(self, now: float, retry_after_s: float) -> None:
        """Halve the limit, and pause for *retry_after_s*."""
        if now >= self._paused_until:  # requests in flight together are rejected together: halve once
            self.limit = max(1.0, self.limit * _HALVE)
        self._paused_until = max(self._paused_until, now + retry_after_s)
