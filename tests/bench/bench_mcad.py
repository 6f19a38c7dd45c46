"""MCAD's stress test: measured and published times until all jobs are complete."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from kwokfleet.measure import result_store
from tests.bench import benchmark_cluster, table

FILE = Path(__file__).parents[2] / "fleets" / "mcad-stress.yaml"
PUBLISHED = {1: 23, 10: 23, 20: 25, 50: 31, 75: 36, 100: 40}
"""Seconds on four kwok nodes, polled once a second, by number of jobs."""


def run() -> table.Result:
    """Run the file once; return published and measured totals."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"KWOKFLEET_DATA_DIR": folder}
        code = subprocess.run(
            [benchmark_cluster.kwokfleet(), "test", str(FILE)], env=environment, check=False
        ).returncode
        results = {stored.wave: stored.result() for stored in result_store.ResultStore(Path(folder) / "results").find()}
    if code not in (0, 1):
        sys.exit(f"error: kwokfleet test gave {code}")
    samples: dict[str, list[float]] = {}
    for jobs, seconds in PUBLISHED.items():
        result = results[f"jobs-{jobs}"]
        assert result.end is not None, f"{result.name} is not over"
        samples[f"{jobs} jobs, published"] = [float(seconds)]
        samples[f"{jobs} jobs, measured"] = [(result.end - result.start).total_seconds()]
    return table.Result(
        "MCAD's stress test: until all jobs are complete, on four nodes",
        "s",
        samples,
        (),
        "each within 10 % or 2 s of the published total; this file's gates say so",
    )
