"""Syncs that are killed at random times and repeated."""

import random
import time

import pytest

from tests.harness import sync_testbed
from tests.harness.sync_testbed import SyncTestbed, output

SIZE = 1000
ROUNDS = 5
QPS = "400"


def run_and_kill(testbed: SyncTestbed, rng: random.Random) -> int:
    """Start a sync, kill it at a random time, and return the number of nodes."""
    process = testbed.start("--qps", QPS)
    time.sleep(rng.uniform(0.5, 3.0))
    process.kill()
    sync_testbed.wait_for_exit(process)
    return len(testbed.names())


@pytest.mark.parametrize("seed", [1, 2])
def test_a_sync_that_is_killed_again_and_again_is_finished_by_the_next(testbed: SyncTestbed, seed: int) -> None:
    """During creation, change and deletion; at the end every node exists once, as desired."""
    rng = random.Random(seed)  # noqa: S311  # reproducible
    testbed.write({"name": "a", "replicas": SIZE})
    counts = [run_and_kill(testbed, rng) for _ in range(ROUNDS)]
    assert counts == sorted(counts), "no created node is lost"
    done = testbed.sync()
    assert done.returncode == 0, output(done)
    testbed.assert_settled(a=SIZE)
    testbed.write({"name": "a", "replicas": SIZE - 300, "labels": {"tier": "gold"}})
    counts = [run_and_kill(testbed, rng) for _ in range(ROUNDS)]
    assert counts == sorted(counts, reverse=True), "no deleted node is back"
    done = testbed.sync()
    assert done.returncode == 0, output(done)
    testbed.assert_settled(a=SIZE - 300)
    assert all(node["metadata"]["labels"]["tier"] == "gold" for node in testbed.nodes().values())
