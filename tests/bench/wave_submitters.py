"""Submits a Wave with the wave controller, or with a client-side rate limiter as other load generators do.

    python -m tests.bench.wave_submitters player|limiter KUBECONFIG FILE

FILE is a fleet with one Wave of a constant rate. It prints as JSON: the delay of each request in seconds, the
rate, and its CPU seconds. It is a separate program, so that its CPU can be measured.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kwokfleet.kube import client, discovery, requests, throttled_client
from kwokfleet.render import desired, workloads
from kwokfleet.source import loader
from kwokfleet.waves import controller, ledger, run_executor

THREADS = 16
QPS, BURST = 100.0, 100
"""Rate limiter settings for 100 objects per second."""


class SubmissionListener:
    """Records when each request was sent."""

    def __init__(self) -> None:
        self.sent: dict[int, tuple[float, float]] = {}
        self.errors: list[str] = []

    def run_started(self, context: workloads.RunContext, record: ledger.RunRecord, total: int) -> None:
        """Do nothing."""

    def timeline_mark(self, key: run_executor.RunKey, text: str) -> None:
        """Do nothing."""

    def object_submitted(self, key: run_executor.RunKey, submission: run_executor.Submission) -> None:
        """Record the times."""
        del key
        self.sent[submission.index] = (submission.due.timestamp(), submission.sent.timestamp())
        if submission.error:
            self.errors.append(submission.error)


def main(who: str, kubeconfig: str, file: str) -> None:
    """Submit the Wave of a file."""
    tree = loader.Loader().load(Path(file)).tree
    api = client.connect(kubeconfig=Path(kubeconfig))
    sender = throttled_client.ThrottledClient(api, throttled_client.ClientLimits(), threading.Event())
    cpu = time.process_time()
    listener = {"player": _play, "limiter": _limit}[who](tree, sender)
    assert not listener.errors, listener.errors[:3]
    pairs = [listener.sent[index] for index in sorted(listener.sent)]
    times = sorted(sent for _, sent in pairs)
    print(
        json.dumps(
            {
                "late": [sent - due for due, sent in pairs],
                "rate": (len(times) - 1) / (times[-1] - times[0]),
                "cpu": time.process_time() - cpu,
            }
        )
    )


def _play(tree: desired.Tree, sender: throttled_client.ThrottledClient) -> SubmissionListener:
    listener, done = SubmissionListener(), threading.Event()
    [fleet] = tree.fleets
    wave_controller = controller.WaveController(sender, lambda: None, listener)
    wave_controller.schedule_due_runs(tree, lambda _: True, datetime.now(UTC), {})
    wave_controller.start_persisted_runs(tree, lambda name: {"waves": wave_controller.serialized_ledgers()[name]})
    while not done.wait(0.5):
        [page] = wave_controller.wave_ledgers()[fleet.name].values()
        if not page.running:
            break
    wave_controller.stop()
    return listener


class TokenBucket:
    """Token bucket as in client-go."""

    def __init__(self, qps: float, burst: int) -> None:
        self._qps, self._burst = qps, burst
        self._lock = threading.Lock()
        self._tokens, self._last = float(burst), time.monotonic()

    def wait(self) -> None:
        """Take a token; wait until it is available."""
        with self._lock:
            now = time.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._last) * self._qps) - 1
            self._last = now
            pause = -self._tokens / self._qps
        if pause > 0:
            time.sleep(pause)


def _limit(tree: desired.Tree, sender: throttled_client.ThrottledClient) -> SubmissionListener:
    """Submit with a rate limiter; compare with the planned times."""
    listener, bucket = SubmissionListener(), TokenBucket(QPS, BURST)
    [fleet] = tree.fleets
    [wave] = fleet.spec.waves
    context = desired.run_context(tree, fleet, wave, "0")
    make, kinds = workloads.object_factory(context), discovery.KindResolver(sender)
    kinds.of_manifest(make(0))
    start = datetime.now(UTC) + timedelta(seconds=0.5)
    clock = time.monotonic() - datetime.now(UTC).timestamp()
    waiting, turn = iter(list(workloads.due_objects(context, start))), threading.Lock()
    time.sleep(0.5)

    def post() -> None:
        while True:
            with turn:
                instant = next(waiting, None)
            if instant is None:
                return
            manifest = make(instant.index)
            bucket.wait()
            passage = throttled_client.SendTiming()
            sender.send(requests.create_any(kinds.of_manifest(manifest), manifest), passage)
            sent = datetime.fromtimestamp(passage.sent_at - clock, UTC)
            listener.object_submitted(("", "", ""), run_executor.Submission(instant.index, instant.at, sent))

    _in_threads(post)
    return listener


def _in_threads(target: Callable[[], None]) -> None:
    threads = [threading.Thread(target=target) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:4])
