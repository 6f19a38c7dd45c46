"""Prometheus metrics: counters and histograms of events, and gauges of the Snapshot at each scrape.

Each daemon has its own registry, so that two daemons in one process do not add up. The values of every label
are bounded: values from files or other programs beyond the bound become `other`.
"""

from collections import Counter
from collections.abc import Callable, Iterator

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from kwokfleet.daemon.snapshot import FleetSnapshot, Pass, PassResult, PoolSnapshot, Snapshot
from kwokfleet.measure.result import ResultSummary
from kwokfleet.reconcile.changes import ChangeAction, WithheldCause

OTHER = "other"
MAX_POOLS, MAX_FLEETS, MAX_WAVES = 2000, 500, 500
MAX_KINDS, MAX_REASONS, MAX_ROUTES = 50, 20, 50
_VERBS = ("GET", "LIST", "WATCH", "POST", "PUT", "PATCH", "DELETE", "DELETECOLLECTION")
_PASS_BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_TRIGGER_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 5, 30)


class _BoundedLabel:
    """Keeps the first values of a label; later ones become `other`."""

    def __init__(self, limit: int) -> None:
        self._limit, self._values = limit, set[str]()

    def __call__(self, value: str) -> str:
        if value not in self._values:
            if len(self._values) >= self._limit:
                return OTHER
            self._values.add(value)
        return value


class Metrics:
    """Metrics of one daemon. Every method may be called from any thread."""

    def __init__(self) -> None:
        # Saves one unused series per counter.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # has no types
        self.registry = CollectorRegistry(auto_describe=False)
        self._reasons, self._routes = _BoundedLabel(MAX_REASONS), _BoundedLabel(MAX_ROUTES)
        self._duration = self._histogram("reconcile_duration", "Duration of passes.", _PASS_BUCKETS_S)
        latency_text = "Time from the request of a pass to its start."
        self._latency = self._histogram("trigger_latency", latency_text, _TRIGGER_BUCKETS_S)
        self._passes = self._counter("reconcile", "Passes, by result.", "result")
        self._changes = self._counter("changes", "Changes made, by action.", "action")
        self._failures = self._counter("change_failures", "Changes that failed.")
        self._drift = self._counter("drift", "Objects that another client changed or deleted.")
        self._requests = self._counter("api_requests", "Requests to the API server.", "verb", "code")
        self._restarts = self._counter("watch_restarts", "Watches that were restarted.", "reason")
        self._submitted = self._counter("wave_objects_submitted", "Submitted objects of Waves.", "fleet", "wave")
        self._refused = self._counter("wave_objects_failed", "Rejected objects of Waves.", "fleet", "wave")
        self._waves = _BoundedLabel(MAX_WAVES)
        self._served = self._counter("http_requests", "Requests to the HTTP API.", "route", "method", "code")
        for result in PassResult:
            self._passes.labels(result.value)
        for action in ChangeAction:
            self._changes.labels(action.value)
        prometheus_client.ProcessCollector(registry=self.registry)

    def _counter(self, name: str, what: str, *labels: str) -> prometheus_client.Counter:
        return prometheus_client.Counter(f"kwokfleet_{name}", what, labels, registry=self.registry)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> prometheus_client.Histogram:
        name = f"kwokfleet_{name}_seconds"
        return prometheus_client.Histogram(name, what, buckets=buckets, registry=self.registry)

    # events

    def passed(self, finished: Pass) -> None:
        """Record a finished pass."""
        self._duration.observe(finished.duration_s)
        self._passes.labels(finished.result.value).inc()
        self._failures.inc(finished.failures)
        for action, count in finished.changes.items():
            self._changes.labels(ChangeAction(action).value).inc(count)

    def triggered(self, latency_s: float) -> None:
        """Record the time between the request of a pass and its start."""
        self._latency.observe(max(0.0, latency_s))

    def drifted(self, count: int) -> None:
        """Record objects that another client changed or deleted."""
        self._drift.inc(count)

    def submitted(self, fleet: str, wave: str, refused: bool) -> None:  # noqa: FBT001  # the outcome
        """Record a submitted object of a Wave."""
        labels = (fleet, wave) if self._waves(f"{fleet}/{wave}") != OTHER else (OTHER, OTHER)
        self._submitted.labels(*labels).inc()
        self._refused.labels(*labels).inc(refused)

    def api_request(self, verb: str, code: int) -> None:
        """Record a request to the API server; code 0: no response."""
        self._requests.labels(_verb(verb.upper()), _code(code)).inc()

    def watch_restarted(self, reason: str) -> None:
        """Record a restarted watch."""
        self._restarts.labels(self._reasons(reason)).inc()

    def served(self, route: str, method: str, code: int) -> None:
        """Record a request to the HTTP API; *route* is the pattern, not the path."""
        self._served.labels(self._routes(route), _verb(method), _code(code)).inc()

    # exposition

    def page(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics in the format of an Accept header, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


def _verb(verb: str) -> str:
    return verb if verb in _VERBS else OTHER


def _code(code: int) -> str:
    return str(code) if 100 <= code < 600 else "none"  # noqa: PLR2004  # valid HTTP codes


class SnapshotGauges(Collector):
    """Gauges of the Snapshot at the time of a scrape."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot
        self._kinds, self._types = _BoundedLabel(MAX_KINDS), _BoundedLabel(MAX_REASONS)

    def collect(self) -> Iterator[Metric]:
        """Yield each gauge."""
        state = self._snapshot()
        yield InfoMetricFamily("kwokfleet_build", "Version of kwokfleet.", {"version": state.version})
        yield from _process(state)
        yield from _source(state)
        yield self._objects(state)
        yield from self._fleets(state.fleets[:MAX_FLEETS])
        pools = [(fleet, pool) for fleet in state.fleets for pool in fleet.pools]
        yield _pools(pools[:MAX_POOLS])
        yield from _measured(state.measured[:MAX_WAVES])
        beyond = ((state.fleets, MAX_FLEETS), (pools, MAX_POOLS), (state.measured, MAX_WAVES))
        left_out = sum(max(0, len(items) - limit) for items, limit in beyond)
        yield _gauge("metrics_left_out", "Fleets, pools and Waves beyond the bound, without series.", left_out)
        yield from _kwok(state)

    def _objects(self, state: Snapshot) -> Metric:
        counts = Counter[tuple[str, str]]()
        for kind, by_state in state.objects.items():
            for object_state, count in by_state.items():
                counts[self._kinds(kind), object_state] += count
        family = _labelled("objects", "Managed objects, by kind and state.", "kind", "state")
        for labels, count in counts.items():
            family.add_metric(labels, count)
        return family

    def _fleets(self, fleets: tuple[FleetSnapshot, ...]) -> Iterator[Metric]:
        conditions = _labelled("fleet_condition", "Whether a condition of a Fleet is True.", "fleet", "type")
        suspended = _labelled("fleet_suspended", "Whether a Fleet is suspended.", "fleet")
        withheld = _labelled("withheld_changes", "Withheld changes, by cause.", "fleet", "cause")
        for fleet in fleets:
            suspended.add_metric((fleet.name,), fleet.suspended)
            # A mapping: two samples with the same labels would make the whole page invalid.
            values = {self._types(item["type"]): float(item["status"] == "True") for item in fleet.conditions}
            for condition, value in values.items():
                conditions.add_metric((fleet.name, condition), value)
            causes = Counter[str]()
            for held in fleet.withheld:
                causes[held.cause] += held.changes
            for cause, count in causes.items():
                withheld.add_metric((fleet.name, cause), count)
        yield from (conditions, suspended, withheld)


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(f"kwokfleet_{name}", what, value)


def _labelled(name: str, what: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"kwokfleet_{name}", what, labels=labels)


def _process(state: Snapshot) -> Iterator[Metric]:
    yield _gauge("leader", "Whether this daemon leads.", state.leading)
    yield _gauge("synced", "Whether a pass found nothing to do since the start.", state.synced)
    yield _gauge("suspended", "Whether the daemon is suspended.", state.suspended)
    yield _gauge("waiting_triggers", "Requests that no pass has taken yet.", len(state.waiting))
    waiting = {fleet.name for fleet in state.fleets for held in fleet.withheld if held.cause == WithheldCause.APPROVAL}
    yield _gauge("prune_blocked", "Fleets whose changes wait for an approval.", len(waiting))
    if state.passes:
        last = state.passes[-1]
        ended = last.began.timestamp() + last.duration_s
        yield _gauge("last_pass_timestamp_seconds", "End of the last pass.", ended)


def _source(state: Snapshot) -> Iterator[Metric]:
    yield _gauge("source_invalid_files", "Files with errors.", state.source.invalid_files)
    frozen = bool(state.source.frozen)
    yield _gauge("source_frozen", "Whether the source is frozen, so that nothing is changed.", frozen)
    if state.source.succeeded is not None:
        stamp = state.source.succeeded.timestamp()
        yield _gauge("source_last_success_timestamp_seconds", "Time of the last load without an error.", stamp)


def _pools(pools: list[tuple[FleetSnapshot, PoolSnapshot]]) -> Metric:
    what = "Nodes of a pool: desired, present, ready, schedulable."
    family = _labelled("pool_nodes", what, "fleet", "pool", "state")
    for fleet, pool in pools:
        for state in ("desired", "present", "ready", "schedulable"):
            family.add_metric((fleet.name, pool.name, state), getattr(pool.nodes, state))
    return family


def _measured(waves: tuple[ResultSummary, ...]) -> Iterator[Metric]:
    gates = _labelled("gate_passed", "Whether a gate passed in the last Run of its Wave.", "fleet", "wave", "gate")
    names = ("fleet", "wave", "latency", "of", "clock", "quantile")
    latencies = _labelled("run_latency_seconds", "Quantiles of latencies in the last Run of a Wave.", *names)
    for summary in waves:
        for gate, passed in summary.gates.items():
            gates.add_metric((summary.fleet, summary.wave, gate), passed)
        for (name, of, clock, quantile), seconds in summary.latencies.items():
            share = f"0.{quantile.removeprefix('p')}"
            latencies.add_metric((summary.fleet, summary.wave, name, of, clock, share), seconds)
    yield from (gates, latencies)


def _kwok(state: Snapshot) -> Iterator[Metric]:
    up = _labelled("kwok_up", "Whether a kwok shard drives its nodes.", "shard")
    lag = _labelled("kwok_lag_seconds", "Delay of lease renewals.", "shard")
    memory = _labelled("kwok_memory_bytes", "Memory of a kwok process.", "shard")
    restarts = CounterMetricFamily("kwokfleet_kwok_restarts", "Restarts of a kwok process.", labels=("shard",))
    for shard in state.kwok:
        label = (str(shard.shard),)
        up.add_metric(label, shard.up)
        lag.add_metric(label, shard.lag_s)
        memory.add_metric(label, shard.memory)
        restarts.add_metric(label, shard.restarts)
    yield from (up, lag, memory, restarts)
