"""Cost of measurement: replays recorded pod events through a collector."""

import gc
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
import psutil

from kwokfleet.measure.collector import Collector, RunInfo
from kwokfleet.measure.pods import EventType
from tests.bench import table

FEW, MANY = 10_000, 100_000


def results(lines: Sequence[bytes], rounds: int) -> list[table.Result]:
    """Measure with the lines of a pod watch."""
    costs = [_cost_ms(lines) for _ in range(rounds)]
    return [
        table.Result(f"Measuring: CPU for each of {len(lines)} pod events, decoded and noted", "ms",
                     {"kwokfleet": costs}, (), "at most 0.2 ms"),
        table.Result("Measuring: memory of a Run", "MB", _memory(_pod_events(lines)), (),
                     "bounded: no manifest is kept"),
    ]  # fmt: skip


def _collector(total: int) -> Collector:
    return Collector(RunInfo("bench", "wave", "0", datetime.now(UTC), "Job", total, ends=True), lambda _node: "general")


def _cost_ms(lines: Sequence[bytes]) -> float:
    collector = _collector(len(lines))
    began = time.process_time()
    for line in lines:
        event = orjson.loads(line)
        collector.pod(EventType(event["type"]), event["object"], time.time())
        collector.notes()
    return 1000 * (time.process_time() - began) / len(lines)


def _pod_events(lines: Sequence[bytes]) -> list[bytes]:
    """Return the events of the pod with the most events."""
    events_by_uid: dict[str, list[bytes]] = {}
    for line in lines:
        events_by_uid.setdefault(orjson.loads(line)["object"]["metadata"]["uid"], []).append(line)
    return max(events_by_uid.values(), key=len)


def _memory(events: Sequence[bytes]) -> dict[str, list[float]]:
    """Return the memory growth for many copies of one pod."""
    first = orjson.loads(events[0])["object"]["metadata"]
    collector, before, growth = _collector(MANY), _resident(), {}
    for number in range(MANY):
        for event in _renamed(events, first, number):
            collector.pod(EventType(event["type"]), event["object"], time.time())
        collector.notes()
        if number + 1 in (FEW, MANY):
            growth[f"{number + 1:,} pods"] = [(_resident() - before) / 2**20]
            table.print_progress(f"{number + 1:,} pods: {growth[f'{number + 1:,} pods'][0]:.1f} MB")
    return growth


def _renamed(events: Sequence[bytes], first: dict[str, str], number: int) -> Iterator[dict[str, Any]]:
    """Yield a pod's events with another name and UID."""
    for line in events:
        event = orjson.loads(line)
        event["object"]["metadata"] |= {"name": f"{first['name']}-{number}", "uid": f"{first['uid']}-{number}"}
        yield event


def _resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)
