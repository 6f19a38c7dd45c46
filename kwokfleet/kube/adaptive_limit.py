"""How many requests to have under way: as many as the API server answers quickly, and never more than allowed.

Answers that come quickly let the number grow a little each time, slow ones let it shrink, and a
refusal (429, 5xx, no answer) halves it. The time is an argument; who sends, waits.
"""

from dataclasses import dataclass, field

from kwokfleet import settings

INITIAL_INFLIGHT = 32.0
FAST_RESPONSE_S, SLOW_RESPONSE_S = 0.25, 0.75
"""An average answer below the first: more at once. Above the second: fewer."""
_GROWTH = 4.0
_SHRINK, _HALVE = 0.8, 0.5


@dataclass(slots=True)
class AdaptiveLimit:
    """The state of one sender."""

    max_inflight: int = settings.MAX_INFLIGHT
    """Upper bound: an API server queues more requests, and answers 429 when its queue is full."""
    qps: float = 0.0
    """Requests a second that must not be exceeded; 0: no such limit."""
    limit: float = field(default=0.0)
    _answers: int = 0
    _spent_s: float = 0.0
    _next_slot: float = 0.0
    _quiet_until: float = 0.0

    def __post_init__(self) -> None:
        """Start in the middle."""
        self.limit = min(INITIAL_INFLIGHT, self.max_inflight)

    def may_send(self, inflight: int) -> bool:
        """Return whether another request may be under way beside *inflight* others."""
        return inflight < max(1, int(self.limit))

    def slot(self, now: float) -> float:
        """Take the next moment at which a request may be sent, and return how long to wait for it."""
        start = max(now, self._next_slot, self._quiet_until)
        if self.qps > 0:
            self._next_slot = start + 1 / self.qps
        return start - now

    def is_quiet(self, now: float) -> bool:
        """Return whether the API server does not want to hear of us."""
        return now < self._quiet_until

    def answered(self, took_s: float) -> None:
        """Learn from an answer; every so many, draw a conclusion."""
        self._answers += 1
        self._spent_s += took_s
        if self._answers < self.limit:
            return
        average = self._spent_s / self._answers
        self._answers, self._spent_s = 0, 0.0
        if average < FAST_RESPONSE_S:
            self.limit = min(self.limit + _GROWTH, self.max_inflight)
        elif average > SLOW_RESPONSE_S:
            self.limit = max(1.0, self.limit * _SHRINK)

    def refused(self, now: float, retry_after_s: float) -> None:
        """Learn from a refusal: fewer from now on, and none before the API server wants to hear of us again."""
        if now >= self._quiet_until:  # what was under way together is refused together: that is one refusal
            self.limit = max(1.0, self.limit * _HALVE)
        self._quiet_until = max(self._quiet_until, now + retry_after_s)
