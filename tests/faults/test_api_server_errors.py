"""Requests to the API server: broken connections, rejected requests, expired lists."""

import json
import random
from collections.abc import Callable

import pytest

from tests.harness import faulty_proxy, sync_testbed, waiting
from tests.harness.faulty_proxy import Fault, ProxiedRequest, Reject, Reset, Respond
from tests.harness.sync_testbed import SyncTestbed, output

SIZE = 100
FAULT_SHARE = 0.05
"""Share of requests with a fault."""


def random_faults(
    seed: int, *faults: Fault, only: Callable[[ProxiedRequest], bool] = lambda _asked: True
) -> faulty_proxy.Rule:
    """Return a rule that injects one of *faults* into a share of the matching requests."""
    rng = random.Random(seed)  # noqa: S311  # chance that can be repeated

    def rule(request: ProxiedRequest) -> Fault | None:
        return rng.choice(faults) if only(request) and rng.random() < FAULT_SHARE else None

    return rule


@pytest.mark.parametrize("seed", range(2))
def test_a_sync_survives_broken_connections(
    testbed: SyncTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str], seed: int
) -> None:
    """Before a request is received, after it is processed, and in the middle of a response or watch."""
    testbed.write({"name": "a", "replicas": SIZE})
    proxy.rule = random_faults(seed, Reset(), Reset(0), Reset(100))
    done = testbed.sync(**through)
    assert done.returncode == 0, output(done)
    assert proxy.faults
    testbed.assert_settled(a=SIZE)
    testbed.write({"name": "a", "replicas": SIZE - 20, "labels": {"tier": "gold"}})
    done = testbed.sync(**through)
    assert done.returncode == 0, output(done)
    testbed.assert_settled(a=SIZE - 20)


def test_a_sync_survives_the_reset_of_all_connections(
    testbed: SyncTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str]
) -> None:
    """Several times: the Informer resumes its watches, and every write is made once."""
    testbed.write({"name": "a", "replicas": SIZE})
    process = testbed.start("--qps", "60", **through)
    for share in (0.2, 0.5, 0.8):
        waiting.until(lambda share=share: len(testbed.names()) >= SIZE * share)  # type: ignore[misc]
        proxy.reset_all()
    done = sync_testbed.wait_for_exit(process)
    assert done.returncode == 0, output(done)
    testbed.assert_settled(a=SIZE)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_rejections_for_overload_are_retried(
    testbed: SyncTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str], status: int
) -> None:
    """For all requests, including the first, reads and watches."""
    testbed.write({"name": "a", "replicas": SIZE})
    proxy.rule = random_faults(status, Reject(status), Reject(status, retry_after=1))
    done = testbed.sync(**through)
    assert done.returncode == 0, output(done)
    testbed.write({"name": "a", "replicas": SIZE - 5, "labels": {"tier": "gold"}})
    done = testbed.sync(**through)
    assert done.returncode == 0, output(done)
    assert len(proxy.faults) > 3
    testbed.assert_settled(a=SIZE - 5)


def test_a_conflict_is_resolved(testbed: SyncTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str]) -> None:
    """A spurious 409 on a share of all patches, creations and deletions."""
    testbed.write({"name": "a", "replicas": SIZE})
    proxy.rule = random_faults(1, Reject(409), only=lambda request: request.method != "GET")
    assert testbed.sync(**through).returncode == 0
    testbed.write({"name": "a", "replicas": SIZE - 20, "labels": {"tier": "gold"}, "taints": ["a=b:NoSchedule"]})
    done = testbed.sync(**through)
    assert done.returncode == 0, output(done)
    testbed.assert_settled(a=SIZE - 20)
    assert all(node["metadata"]["labels"]["tier"] == "gold" for node in testbed.nodes().values())


QUIET_S = 6
IN_FLIGHT_S = 1.5
"""Requests that were already in flight may arrive this much later."""


@pytest.mark.parametrize("qps", ["0", "100"])
def test_no_write_is_sent_during_retry_after(
    testbed: SyncTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str], qps: str
) -> None:
    """A 429 with Retry-After stops all writers, not only the rejected one."""
    testbed.write({"name": "a", "replicas": SIZE})
    posts: list[ProxiedRequest] = []

    def rule(request: ProxiedRequest) -> Fault | None:
        if request.method != "POST" or not request.resource.endswith("/nodes"):
            return None
        posts.append(request)
        return Reject(429, retry_after=QUIET_S) if len(posts) in (50, 60) else None

    proxy.rule = rule
    done = testbed.sync("--qps", qps, **through)
    assert done.returncode == 0, output(done)
    begin = max(at for at, _, _ in proxy.faults)
    early = [request for request in proxy.requests if begin + IN_FLIGHT_S < request.at < begin + QUIET_S - 0.1]
    assert [f"{request.method} {request.path}" for request in early] == []
    testbed.assert_settled(a=SIZE)


def test_a_watch_respects_retry_after(
    testbed: SyncTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str]
) -> None:
    """A list that is rejected with Retry-After is not repeated before."""
    testbed.write({"name": "a", "replicas": 10})

    def rule(request: ProxiedRequest) -> Fault | None:
        first = request.is_watch and request.resource.endswith("/nodes") and not proxy.faults
        return Reject(429, retry_after=QUIET_S) if first else None

    proxy.rule = rule
    done = testbed.sync(**through)
    assert done.returncode == 0, output(done)
    begin = proxy.faults[0][0]
    early = [
        request
        for request in proxy.requests
        if begin < request.at < begin + QUIET_S - 0.1 and "/nodes" in request.resource
    ]
    assert early == []
    testbed.assert_settled(a=10)


def test_a_rejected_object_is_reported_and_delays_no_other(
    testbed: SyncTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str]
) -> None:
    """With the message of the API server, and exit code 4."""
    testbed.write({"name": "a", "replicas": SIZE})
    proxy.rule = lambda request: (
        Reject(422, "Node is invalid: spec.flavour: must be sweet") if b'"scene-a-7"' in request.body else None
    )
    done = testbed.sync(**through)
    assert done.returncode == 4, output(done)
    assert "scene-a-7: 422 Node is invalid: spec.flavour: must be sweet" in done.stderr
    assert "scene-a-8" not in done.stderr
    assert testbed.names() == [name for name in sync_testbed.node_names(a=SIZE) if name != "scene-a-7"]
    proxy.rule = faulty_proxy.pass_through
    assert testbed.sync(**through).returncode == 0
    testbed.assert_settled(a=SIZE)


GONE = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "reason": "Expired",
    "code": 410,
    "message": "too old",
}


@pytest.mark.parametrize(
    "fault",
    [Reject(410, "too old resource version"), Respond(json.dumps({"type": "ERROR", "object": GONE}).encode() + b"\n")],
    ids=["status", "event"],
)
def test_an_expired_watch_causes_a_new_list(
    testbed: SyncTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str], fault: Fault
) -> None:
    """Changes meanwhile are neither lost nor invented."""
    testbed.write({"name": "a", "replicas": SIZE})
    assert testbed.sync().returncode == 0
    testbed.write({"name": "a", "replicas": SIZE + 50, "labels": {"tier": "gold"}})
    deaf = True

    def rule(request: ProxiedRequest) -> Fault | None:
        if not request.is_watch or "resourceVersion=" not in request.path:
            return None
        return Reset() if deaf else fault

    proxy.rule = rule
    process = testbed.start("--qps", "60", **through)
    waiting.until(lambda: len(testbed.names()) > SIZE)
    proxy.reset_all()
    waiting.until(lambda: proxy.faults)
    testbed.cluster.kubectl("delete", "nodes", *(f"scene-a-{index}" for index in range(0, SIZE, 5)))
    deaf = False
    done = sync_testbed.wait_for_exit(process)
    assert done.returncode == 0, output(done)
    assert fault in [injected for _, _, injected in proxy.faults]
    testbed.assert_settled(a=SIZE + 50)


def test_an_expired_page_causes_a_new_list(
    testbed: SyncTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str]
) -> None:
    """The continue token of a paged list can expire."""
    testbed.write({"name": "a", "replicas": 1200})
    assert testbed.sync().returncode == 0

    def rule(request: ProxiedRequest) -> Fault | None:
        if "sendInitialEvents" in request.path:
            return Reject(400, "sendInitialEvents is forbidden")
        expired = "continue=" in request.path and not any(
            isinstance(injected, Reject) and injected.status == 410 for _, _, injected in proxy.faults
        )
        return Reject(410, "The provided continue parameter is too old") if expired else None

    proxy.rule = rule
    done = testbed.diff(**through)
    assert done.returncode == 0, output(done)
    assert any(isinstance(injected, Reject) and injected.status == 410 for _, _, injected in proxy.faults)


def test_a_long_outage_ends_the_sync(
    testbed: SyncTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str]
) -> None:
    """After some retries: exit code 4 with a hint, and the next sync continues."""
    testbed.write({"name": "a", "replicas": SIZE})
    proxy.rule = lambda request: Reset() if request.number > 60 else None
    done = testbed.sync(**through)
    assert done.returncode == 4, output(done)
    assert "the next sync continues" in done.stderr
    assert testbed.sync().returncode == 0
    testbed.assert_settled(a=SIZE)
