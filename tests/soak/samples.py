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
    problems = [
        f"{sample.leases} leases for {sample.nodes} nodes, {sample.at_s:.0f} s after the start"
        for sample in samples
        if sample.leases != sample.nodes
    ]
    problems += [
        f"{sample.children} child processes for {sample.shards} shards, {sample.at_s:.0f} s after the start"
        for sample in samples
        if sample.children != sample.shards
    ]
    most = max(sample.connections for sample in samples)
    problems += [f"{most} connections at once, more than {MOST_CONNECTIONS}"] * (most > MOST_CONNECTIONS)
    problems += _growth_problems(samples, "file descriptors", lambda sample: sample.fds)
    problems += _growth_problems(samples, "threads", lambda sample: sample.threads)
    problems += _memory_problems(samples, "kwokfleet", lambda sample: sample.rss_mb)
    problems += _memory_problems(samples, "kwok", lambda sample: sample.kwok_mb)
    return problems


def _growth_problems(samples: Sequence[Sample], what: str, of: Callable[[Sample], int]) -> list[str]:
    """Compare maximum values per number of shards: each shard has its own thread and files."""
    problems = []
    for shards in sorted({sample.shards for sample in early(samples)}):
        before = [of(sample) for sample in early(samples) if sample.shards == shards]
        after = [of(sample) for sample in late(samples) if sample.shards == shards]
        if after and max(after) > max(before):
            problems.append(f"{what} with {shards} shards: up to {max(before)} early, up to {max(after)} late")
    return problems


def _memory_problems(samples: Sequence[Sample], what: str, of: Callable[[Sample], float]) -> list[str]:
    before, after = (statistics.median(map(of, part(samples))) for part in (early, late))
    return [f"memory of {what}: {before:.1f} MB early, {after:.1f} MB late"] if after > FLAT * before else []


def summary(samples: Sequence[Sample]) -> list[str]:
    """Return the figures used by the rules."""
    lines = []
    for name, part in (("early", early(samples)), ("late", late(samples))):
        fds, connections, threads = (
            max(getattr(sample, key) for sample in part) for key in ("fds", "connections", "threads")
        )
        rss, kwok = (statistics.median(getattr(sample, key) for sample in part) for key in ("rss_mb", "kwok_mb"))
        lines.append(
            f"{name}: {len(part)} samples; kwokfleet {rss:.1f} MB, at most {fds} fds, {connections} connections, "
            f"{threads} threads; kwok {kwok:.1f} MB (medians)"
        )
    return lines
