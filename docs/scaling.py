"""Writes the numbers of docs/scaling.md from docs/scaling.json: `python docs/scaling.py`.

`python -m tests.bench scaling` measures and writes the JSON. What is assumed stands here, at the top.
"""

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PAGE, ROWS = Path(__file__).with_name("scaling.md"), Path(__file__).with_name("scaling.json")
BEGIN, END = "<!-- numbers: written by docs/scaling.py -->", "<!-- end of the numbers -->"

CORES, SHARE = 16, 0.5
"""Cores of the control plane's machine, and the share that an idle fleet may use."""
MEMORY = 64 * 2**30
"""Memory limit of the API server."""
DATABASE = 8 * 2**30
"""Recommended maximum size of an etcd database."""
WRITES = 8000
"""Assumed small writes per second of etcd on a dedicated disk; not measured."""
SHARD_CORES = 0.5
"""Share of a core that an idle kwok may use; the rest is for pods."""
WANTED, CLUSTERS = 100_000, (1, 2, 5, 10, 20, 40)
LEASES = (40, 160)
CONTROL_PLANE = ("kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler")
PARTS = ("kwok", "kwokfleet", *CONTROL_PLANE)
MEGA = 2**20
ENOUGH = 5000
"""Minimum number of measured nodes for a fit."""

Row = dict[str, float]


def text() -> str:
    """Return the page with the numbers of the JSON file."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{chr(10).join(_sections(json.loads(ROWS.read_text())))}\n{END}{after}"


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return intercept and slope of a least squares fit."""
    slope, start = statistics.linear_regression(*zip(*points, strict=True))
    return start, slope


class Account:
    """The measurements and the limits derived from them."""

    def __init__(self, measured: dict[str, Any]) -> None:
        self.rows: list[Row] = measured["rows"]
        self.lease_s: float = measured["leaseSeconds"]
        self.single = [row for row in self.rows if row["shards"] == 1]
        middle = max((row for row in self.rows if row["shards"] > 1), key=lambda row: row["shards"])["nodes"]
        self.sharded = [row for row in self.rows if row["nodes"] == middle]

    def by_node(self, key: str) -> tuple[float, float]:
        """Return the fixed cost and the cost per node, at least 0."""
        start, each = line([(row["nodes"], row[key]) for row in self.single])
        return max(start, 0.0), max(each, 0.0)

    def by_shard(self, key: str) -> float:
        """Return the cost of one more shard for a number of nodes."""
        return line([(row["shards"], row[key]) for row in self.sharded])[1]

    def cores(self, part: str, nodes: float, lease_s: float) -> float:
        """Return the cores of a component for so many nodes; lease renewals scale it by 1/L."""
        start, each = self.by_node(f"idle {part} cores")
        return start + each * nodes * self.lease_s / lease_s

    def limits(self, lease_s: float) -> dict[str, float]:
        """Return the maximum number of nodes for each limit."""
        plane = [self.by_node(f"idle {part} cores") for part in CONTROL_PLANE]
        start, each, longer = sum(at for at, _ in plane), sum(slope for _, slope in plane), lease_s / self.lease_s
        memory, held = self.by_node("idle kube-apiserver bytes")
        database, stored = self.by_node("db_bytes")
        return {
            f"CPU of the control plane: {SHARE:.0%} of {CORES} cores": (CORES * SHARE - start) / each * longer,
            f"writes of etcd: {WRITES:,} a second": WRITES * lease_s / 4,
            f"memory of the API server: {MEMORY >> 30} GiB": (MEMORY - memory) / held if held else float("inf"),
            f"etcd's database: {DATABASE >> 30} GiB": (DATABASE - database) / stored if stored else float("inf"),
        }

    def shard(self, lease_s: float) -> float:
        """Return the maximum number of idle nodes per kwok."""
        start, each = self.by_node("idle kwok cores")
        return (SHARD_CORES - start) / (each * self.lease_s / lease_s)


def _sections(measured: dict[str, Any]) -> Iterator[str]:
    account = Account(measured)
    largest = max(row["nodes"] for row in account.rows)
    yield (
        f"Measured on one machine with {measured['cores']} cores that held everything, "
        f"leases of {account.lease_s:g} s, up to {largest:,.0f} nodes."
    )
    if largest < ENOUGH:
        yield "\n**This was a trial: too few nodes to plan by.**"
    yield "\n### What a node costs while nothing happens\n"
    yield from _nodes(account)
    yield "\n### What a shard costs\n"
    yield from _shards(account)
    yield "\n### What a pod costs from its birth to its end\n"
    yield from _pods(account)
    yield "\n### What breaks first, and at what size\n"
    yield from _limits(account)
    yield f"\n### {WANTED:,} nodes over several clusters\n"
    yield from _plan(account)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(each)} |" for each in (titles, ["---", *["--:"] * (len(titles) - 1)], *rows)]


def _nodes(account: Account) -> list[str]:
    sizes = [f"{row['nodes']:,.0f} nodes" for row in account.single]
    titles = ["", *sizes, "a + b·N for N thousand nodes"]
    rows = []
    for part in PARTS:
        for unit, key, factor in (("% of a core", "cores", 100.0), ("MB", "bytes", 1 / MEGA)):
            name = f"idle {part} {key}"
            start, each = account.by_node(name)
            fit = f"{start * factor:.1f} + {each * factor * 1000:.1f}·N"
            rows.append([f"{part}, {unit}", *(f"{row[name] * factor:.1f}" for row in account.single), fit])
    more = (("renewals a second", "renewals_per_s", 1.0), ("etcd's database, MB", "db_bytes", 1 / MEGA))
    for title, key, factor in more:
        start, each = account.by_node(key)
        fit = f"{start * factor:.1f} + {each * factor * 1000:.1f}·N"
        rows.append([title, *(f"{row[key] * factor:.1f}" for row in account.single), fit])
    rows.append(["renewals behind, s at most", *(f"{row['lag_s']:.1f}" for row in account.single), ""])
    return _table(titles, rows)


def _shard_count(row: Row) -> str:
    return f"{row['shards']:.0f} shard{'s' if row['shards'] > 1 else ''}"


def _shards(account: Account) -> list[str]:
    titles = [f"{account.sharded[0]['nodes']:,.0f} nodes", *(_shard_count(row) for row in account.sharded)]
    titles.append("one shard more")
    wanted: list[tuple[str, str, float]] = [
        ("all kwoks, idle, % of a core", "idle kwok cores", 100),
        ("all kwoks, idle, MB", "idle kwok bytes", 1 / MEGA),
        ("API server, idle, % of a core", "idle kube-apiserver cores", 100),
        ("all kwoks, ms of CPU for each pod", "pod kwok cpu_s", 1000),
        ("API server, ms of CPU for each pod", "pod kube-apiserver cpu_s", 1000),
        ("until all pods run, s", "pods_running_s", 1),
    ]
    rows = [
        [title, *(f"{row[key] * factor:.1f}" for row in account.sharded), f"{account.by_shard(key) * factor:+.1f}"]
        for title, key, factor in wanted
    ]
    return _table(titles, rows)


def _pods(account: Account) -> list[str]:
    row = account.single[0]
    rows = [
        [
            part,
            f"{row[f'pod {part} cpu_s'] * 1000:.1f}",
            f"{max(row[f'pods {part} bytes'] - row[f'idle {part} bytes'], 0) / row['pods'] / 1024:.1f}",
        ]
        for part in PARTS
    ]
    rows.append(["etcd's database", "", f"{row['pod_db_bytes'] / 1024:.1f}"])
    titles = [f"{row['pods']:,.0f} pods, {row['nodes']:,.0f} nodes", "ms of CPU a pod", "KiB a pod that runs"]
    return _table(titles, rows)


def _limits(account: Account) -> list[str]:
    found = {lease: account.limits(lease) for lease in LEASES}
    names = sorted(found[LEASES[0]], key=lambda name: found[LEASES[0]][name])
    titles = ["nodes of one cluster, at most, by", *(f"leases of {lease} s" for lease in LEASES)]
    rows = [[name, *(_many(found[lease][name]) for lease in LEASES)] for name in names]
    rows.append([f"one kwok: {SHARD_CORES:g} of a core", *(_many(account.shard(lease)) for lease in LEASES)])
    return _table(titles, rows)


def _many(number: float) -> str:
    return "no limit seen" if number == float("inf") else f"{round(number, -2):,.0f}"


def _plan(account: Account) -> list[str]:
    titles = ["clusters", "nodes each", "leases", "renewals/s"]
    titles += ["control plane, cores", "API server, GiB", "shards", "verdict"]
    rows = []
    for count in CLUSTERS:
        for lease in LEASES:
            nodes = WANTED / count
            limit, name = min((size, name) for name, size in account.limits(lease).items())
            start, each = account.by_node("idle kube-apiserver bytes")
            rows.append(
                [
                    str(count),
                    f"{nodes:,.0f}",
                    f"{lease} s",
                    f"{nodes / (lease / 4):,.0f}",
                    f"{sum(account.cores(part, nodes, lease) for part in CONTROL_PLANE):.1f}",
                    f"{(start + each * nodes) / 2**30:.1f}",
                    f"{-(-nodes // account.shard(lease)):.0f}",
                    "fits" if nodes <= limit else f"no: {name.partition(':')[0]}",
                ]
            )
    return _table(titles, rows)


if __name__ == "__main__":
    PAGE.write_text(text())
