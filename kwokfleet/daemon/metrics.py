"""Prometheus: counters and histograms that are told what happens, gauges that are read off the Picture at each scrape.

A registry of its own, so that two daemons in one process do not add up. Every label has a bound on its
values: what comes from files or from other programs ends as `other` beyond it.
"""

from collections.abc import Callable, Iterator

import prometheus_client
from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from kwokfleet.daemon.snapshot import FleetSnapshot, Pass, PassResult, PoolSnapshot, Snapshot
from kwokfleet.measure.result import ResultSummary
from kwokfleet.reconcile.changes import ChangeAction, WithheldCause

OTHER = "other"
NO_ANSWER = "none"
"""The code of a request to which nothing came back."""
MOST_POOLS = 2000
MOST_FLEETS = 500
MOST_KINDS = 50
MOST_REASONS = 20
MOST_ROUTES = 50
MOST_WAVES = 500
_VERBS = ("GET", "LIST", "WATCH", "POST", "PUT", "PATCH", "DELETE", "DELETECOLLECTION")
_PASS_BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_TRIGGER_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 5, 30)


class _Few:
    """The first values of a label; later ones are `other`."""

    def __init__(self, most: int) -> None:
        self._most, self._known = most, set[str]()

    def __call__(self, value: str) -> str:
        if value not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(value)
        return value


class Metrics:
    """All metrics of one daemon. Every function may be called from any thread."""

    def __init__(self) -> None:
        # It would be a series more for each, that nobody asks for.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # has no types
        self.registry = CollectorRegistry(auto_describe=False)
        self._reasons, self._routes = _Few(MOST_REASONS), _Few(MOST_ROUTES)
        self._duration = Histogram(
            "kwokfleet_reconcile_duration_seconds",
            "How long passes took.",
            buckets=_PASS_BUCKETS_S,
            registry=self.registry,
        )
        self._latency = Histogram(
            "kwokfleet_trigger_latency_seconds",
            "How long it took from the wish for a pass to its beginning.",
            buckets=_TRIGGER_BUCKETS_S,
            registry=self.registry,
        )
        self._passes = self._counter("reconcile", "Passes, by what they came to.", "result")
        self._changes = self._counter("changes", "Changes that passes made, by action.", "action")
        self._failures = self._counter("change_failures", "Changes that failed.")
        self._drift = self._counter("drift", "Objects found changed or deleted behind our back.")
        self._requests = self._counter("api_requests", "Requests to the API server.", "verb", "code")
        self._restarts = self._counter("watch_restarts", "Watches that had to begin anew.", "reason")
        self._submitted = self._counter(
            "wave_objects_submitted", "Objects of Waves that were submitted.", "fleet", "wave"
        )
        self._refused = self._counter("wave_objects_failed", "Those of them that were refused.", "fleet", "wave")
        self._waves = _Few(MOST_WAVES)
        self._served = self._counter("http_requests", "Requests to this server.", "route", "method", "code")
        for result in PassResult:
            self._passes.labels(result.value)
        for action in ChangeAction:
            self._changes.labels(action.value)
        prometheus_client.ProcessCollector(registry=self.registry)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"kwokfleet_{name}", what, labels, registry=self.registry)

    # what happens

    def passed(self, made: Pass) -> None:
        """Note a pass that is over."""
        self._duration.observe(made.duration_s)
        self._passes.labels(made.result.value).inc()
        self._failures.inc(made.failures)
        for action, count in made.changes.items():
            self._changes.labels(ChangeAction(action).value).inc(count)

    def triggered(self, latency_s: float) -> None:
        """Note how long a wish for a pass waited."""
        self._latency.observe(max(0.0, latency_s))

    def drifted(self, count: int = 1) -> None:
        """Note objects that somebody else changed or deleted."""
        self._drift.inc(count)

    def submitted(self, fleet: str, wave: str, refused: bool) -> None:  # noqa: FBT001  # what became of it
        """Note an object of a Wave that was submitted, or refused."""
        labels = (fleet, wave) if self._waves(f"{fleet}/{wave}") != OTHER else (OTHER, OTHER)
        self._submitted.labels(*labels).inc()
        self._refused.labels(*labels).inc(refused)

    def api_request(self, verb: str, code: int) -> None:
        """Note a request to the API server; 0 if no answer came."""
        name = verb.upper()
        self._requests.labels(name if name in _VERBS else OTHER, _code(code)).inc()

    def watch_restarted(self, reason: str) -> None:
        """Note a watch that began anew, and in one word why."""
        self._restarts.labels(self._reasons(reason)).inc()

    def served(self, route: str, method: str, code: int) -> None:
        """Note a request to this server; the route is its pattern, not its path."""
        self._served.labels(self._routes(route), method if method in _VERBS else OTHER, _code(code)).inc()

    # what is read

    def page(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics in the format that an Accept header asks for, and what it is called."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


def _code(code: int) -> str:
    return str(code) if 100 <= code < 600 else NO_ANSWER  # noqa: PLR2004  # what HTTP has


class SnapshotGauges(Collector):
    """What is so at the moment of the scrape."""

    def __init__(self, picture: Callable[[], Snapshot]) -> None:
        self._picture = picture
        self._kinds, self._types = _Few(MOST_KINDS), _Few(MOST_REASONS)

    def collect(self) -> Iterator[Metric]:
        """Yield each gauge."""
        seen = self._picture()
        yield InfoMetricFamily("kwokfleet_build", "What runs here.", {"version": seen.version})
        yield from _process(seen)
        yield from _source(seen)
        yield self._objects(seen)
        yield from self._fleets(seen.fleets[:MOST_FLEETS])
        pools = [(fleet, pool) for fleet in seen.fleets for pool in fleet.pools]
        yield _pools(pools[:MOST_POOLS])
        yield from _measured(seen.measured[:MOST_WAVES])
        beyond = ((seen.fleets, MOST_FLEETS), (pools, MOST_POOLS), (seen.measured, MOST_WAVES))
        left_out = sum(max(0, len(found) - most) for found, most in beyond)
        yield _gauge("metrics_left_out", "Fleets, pools and Waves beyond the bound, which have no series.", left_out)
        yield from _kwok(seen)

    def _objects(self, seen: Snapshot) -> Metric:
        counts: dict[tuple[str, str], int] = {}
        for (kind, state), count in sorted(seen.objects.items()):
            name = self._kinds(kind), state
            counts[name] = counts.get(name, 0) + count
        family = GaugeMetricFamily("kwokfleet_objects", "Objects of ours, by kind and state.", labels=("kind", "state"))
        for labels, count in counts.items():
            family.add_metric(labels, count)
        return family

    def _fleets(self, fleets: tuple[FleetSnapshot, ...]) -> Iterator[Metric]:
        conditions = GaugeMetricFamily(
            "kwokfleet_fleet_condition", "Whether a condition of a Fleet is True.", labels=("fleet", "type")
        )
        suspended = GaugeMetricFamily(
            "kwokfleet_fleet_suspended", "Whether a Fleet is left as it is.", labels=("fleet",)
        )
        withheld = GaugeMetricFamily(
            "kwokfleet_withheld_changes", "Changes that are not made, by cause.", labels=("fleet", "cause")
        )
        for fleet in fleets:
            suspended.add_metric((fleet.name,), fleet.suspended)
            # As a mapping: two samples of the same labels would make the whole page unreadable.
            found = {self._types(each["type"]): float(each["status"] == "True") for each in fleet.conditions}
            for kind, holds in found.items():
                conditions.add_metric((fleet.name, kind), holds)
            causes: dict[str, int] = {}
            for each in fleet.withheld:
                causes[each.cause] = causes.get(each.cause, 0) + each.changes
            for cause, count in causes.items():
                withheld.add_metric((fleet.name, cause), count)
        yield from (conditions, suspended, withheld)


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(f"kwokfleet_{name}", what, value)


def _process(seen: Snapshot) -> Iterator[Metric]:
    yield _gauge("leader", "Whether this process leads.", seen.leading)
    yield _gauge("synced", "Whether a pass has come to its end since the start.", seen.synced)
    yield _gauge("suspended", "Whether this process only looks on.", seen.suspended)
    yield _gauge("waiting_triggers", "Wishes for a pass that has not begun.", len(seen.waiting))
    waiting = {fleet.name for fleet in seen.fleets for each in fleet.withheld if each.cause == WithheldCause.APPROVAL}
    yield _gauge("prune_blocked", "Fleets whose changes wait for an approval.", len(waiting))
    if seen.passes:
        last = seen.passes[-1]
        ended = last.began.timestamp() + last.duration_s
        yield _gauge("last_pass_timestamp_seconds", "When the last pass ended.", ended)


def _source(seen: Snapshot) -> Iterator[Metric]:
    yield _gauge("source_invalid_files", "Files that cannot be used.", seen.source.invalid_files)
    yield _gauge("source_frozen", "Whether nothing is done because of the source.", bool(seen.source.frozen))
    if seen.source.succeeded is not None:
        stamp = seen.source.succeeded.timestamp()
        yield _gauge("source_last_success_timestamp_seconds", "When the files were last read without an error.", stamp)


def _pools(pools: list[tuple[FleetSnapshot, PoolSnapshot]]) -> Metric:
    family = GaugeMetricFamily(
        "kwokfleet_pool_nodes",
        "Nodes of a pool: desired, present, ready, schedulable.",
        labels=("fleet", "pool", "state"),
    )
    for fleet, pool in pools:
        for state in ("desired", "present", "ready", "schedulable"):
            family.add_metric((fleet.name, pool.name, state), getattr(pool.nodes, state))
    return family


def _measured(waves: tuple[ResultSummary, ...]) -> Iterator[Metric]:
    gates = GaugeMetricFamily(
        "kwokfleet_gate_passed", "Whether a gate held in the last Run of its Wave.", labels=("fleet", "wave", "gate")
    )
    names = ("fleet", "wave", "latency", "of", "clock", "quantile")
    latencies = GaugeMetricFamily(
        "kwokfleet_run_latency_seconds", "Quantiles of latencies in the last Run of a Wave.", labels=names
    )
    for each in waves:
        for gate, passed in each.gates.items():
            gates.add_metric((each.fleet, each.wave, gate), passed)
        for (name, of, clock, quantile), seconds in each.latencies.items():
            share = f"0.{quantile.removeprefix('p')}"
            latencies.add_metric((each.fleet, each.wave, name, of, clock, share), seconds)
    yield from (gates, latencies)


def _kwok(seen: Snapshot) -> Iterator[Metric]:
    up = GaugeMetricFamily("kwokfleet_kwok_up", "Whether a kwok process drives its nodes.", labels=("shard",))
    lag = GaugeMetricFamily("kwokfleet_kwok_lag_seconds", "How far lease renewals are behind.", labels=("shard",))
    memory = GaugeMetricFamily("kwokfleet_kwok_memory_bytes", "What a kwok process holds.", labels=("shard",))
    restarts = CounterMetricFamily("kwokfleet_kwok_restarts", "Starts after an ending.", labels=("shard",))
    for each in seen.kwok:
        shard = (str(each.shard),)
        up.add_metric(shard, each.up)
        lag.add_metric(shard, each.lag_s)
        memory.add_metric(shard, each.memory)
        restarts.add_metric(shard, each.restarts)
    yield from (up, lag, memory, restarts)
