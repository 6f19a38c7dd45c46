"""Samples of a soak test, and the rules of its verdict."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WARM_UP = 0.1
"""Share of samples that are warm-up."""
FLAT = 1.10
"""Allowed growth of memory from the first quarter after the warm-up to the second half."""
MOST_CONNECTIONS = 64
"""Connections to the API server: at most the maximum number of concurrent requests."""
FEWEST = 20
"""Minimum number of samples."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Resources of kwokfleet after an action has settled."""

    at_s: float
    shards: int
    nodes: int
    fds: int
    """File descriptors without connections."""
    connections: int
    threads: int
    children: int
    rss_mb: float
    kwok_mb: float
    """Memory of its largest kwok process."""
    leases: int

    def __str__(self) -> str:
        """Return a one-line summary."""
        return (
            f"{self.nodes} nodes, {self.leases} leases, {self.shards} kwok up to {self.kwok_mb:.0f} MB; "
            f"kwokfleet {self.rss_mb:.1f} MB, {self.fds} fds, {self.connections} connections, {self.threads} threads, "
            f"{self.children} children"
        )


def early(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return the first quarter after the warm-up."""
    warm = samples[int(len(samples) * WARM_UP) :]
    return warm[: max(1, len(warm) // 4)]


def late(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return the second half."""
    return samples[len(samples) // 2 :]


def verdict(samples: Sequence[Sample]) -> list[str]:
    """Return the problems."""
    if len(samples) < FEWEST:
        return [f"only {len(samples)} samples, too few to judge by: let it run longer"]
    wrong = [
        f"{each.leases} leases for {each.nodes} nodes, {each.at_s:.0f} s after the start"
        for each in samples
        if each.leases != each.nodes
    ]
    wrong += [
        f"{each.children} child processes for {each.shards} shards, {each.at_s:.0f} s after the start"
        for each in samples
        if each.children != each.shards
    ]
    most = max(each.connections for each in samples)
    wrong += [f"{most} connections at once, more than {MOST_CONNECTIONS}"] * (most > MOST_CONNECTIONS)
    wrong += _grown(samples, "file descriptors", lambda each: each.fds)
    wrong += _grown(samples, "threads", lambda each: each.threads)
    wrong += _swollen(samples, "kwokfleet", lambda each: each.rss_mb)
    wrong += _swollen(samples, "kwok", lambda each: each.kwok_mb)
    return wrong


def _grown(samples: Sequence[Sample], what: str, of: Callable[[Sample], int]) -> list[str]:
    """Compare maximum values per number of shards: each shard has its own thread and files."""
    wrong = []
    for shards in sorted({each.shards for each in early(samples)}):
        before = [of(each) for each in early(samples) if each.shards == shards]
        after = [of(each) for each in late(samples) if each.shards == shards]
        if after and max(after) > max(before):
            wrong.append(f"{what} with {shards} shards: up to {max(before)} early, up to {max(after)} late")
    return wrong


def _swollen(samples: Sequence[Sample], what: str, of: Callable[[Sample], float]) -> list[str]:
    before, after = (statistics.median(map(of, part(samples))) for part in (early, late))
    return [f"memory of {what}: {before:.1f} MB early, {after:.1f} MB late"] if after > FLAT * before else []


def summary(samples: Sequence[Sample]) -> list[str]:
    """Return the figures used by the rules."""
    lines = []
    for name, part in (("early", early(samples)), ("late", late(samples))):
        fds, connections, threads = (
            max(getattr(each, key) for each in part) for key in ("fds", "connections", "threads")
        )
        rss, kwok = (statistics.median(getattr(each, key) for each in part) for key in ("rss_mb", "kwok_mb"))
        lines.append(
            f"{name}: {len(part)} samples; kwokfleet {rss:.1f} MB, at most {fds} fds, {connections} connections, "
            f"{threads} threads; kwok {kwok:.1f} MB (medians)"
        )
    return lines
