"""Backend for kwok in pods of a StatefulSet: Kubernetes runs the pods, kwokfleet scales and configures them.

The pods continue without kwokfleet, and when another kwokfleet leads. Only the replicas, the container's flags and
the ConfigMap are written. A pod is deleted only if its kwok has stopped working.
"""

import http.client
import threading
import time
import urllib.request
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus

import structlog

from kwokfleet import errors
from kwokfleet.kube import client, requests
from kwokfleet.kube.informer import full_objects, reflector
from kwokfleet.kwok import backend, exits, flags, lease_client, lease_health, log_lines, shard, sharding, statefulset

log = structlog.get_logger()

SYNC_S = 10.0
"""Time limit of the first list."""
REPAIR_S = 2.0
"""Pause between two writes to the StatefulSet."""
STOP_TIMEOUT_S, POLL_S = 60.0, 0.1
LOST_AFTER_S = 10.0
"""A pod that does not end this long after its grace period is on a lost machine."""
MEMORY_S, NO_METRICS_S = 10.0, 60.0
"""Interval of memory reads, and the pause after a failed one."""
_MEMORY_METRIC = b"\nprocess_resident_memory_bytes "
_NO_POD = "the pod does not exist yet"


class PodBackend:
    """All pods of a StatefulSet."""

    def __init__(
        self, api: requests.RequestSender, watch_api: reflector.WatchApi, name: statefulset.StatefulSetName
    ) -> None:
        self._api, self.stateful_set, self.name = api, name, str(name)
        sets, pods = (requests.in_namespace(kind, name.namespace) for kind in (requests.STATEFUL_SET, requests.POD))
        self._sets = full_objects.FullObjectCache(watch_api, sets, fields=f"metadata.name={name.name}")
        self._pods = full_objects.FullObjectCache(watch_api, pods, selector=statefulset.SELECTOR)
        self._target: tuple[statefulset.PodConfig, int] | None = None
        self._lock = threading.Lock()
        self._next_write = 0.0

    def open(self) -> None:
        """Start the watches; raise if the StatefulSet does not exist or may not be read."""
        self._sets.start()
        self._pods.start()
        problem = self._sets.wait_until_synced(SYNC_S) or self._pods.wait_until_synced(SYNC_S)
        if problem or not self._sets.objects():
            self.close()
            raise _missing_error(self.stateful_set, problem)

    def close(self) -> None:
        """Stop the watches; after a scale to 0, wait for the end of the pods first."""
        if self._target is not None and self._target[1] == 0:
            self._wait_for_no_pods()
        self._sets.close()
        self._pods.close()

    def _wait_for_no_pods(self) -> None:
        """Wait for the last pod, so that the next backend does not meet it."""
        deadline, prefix = time.monotonic() + STOP_TIMEOUT_S, f"{self.stateful_set.name}-"
        while time.monotonic() < deadline:
            pods = self._pods.objects()
            if pods is not None and not any(name.startswith(prefix) for name in pods):
                return
            self.repair()
            time.sleep(POLL_S)

    def scale(self, desired: backend.DesiredKwok, count: int) -> None:
        """Set the number of pods and their configuration."""
        with self._lock:
            self._target = statefulset.pod_config(desired.spec, desired.kinds, desired.mark), count
            self._next_write = 0.0
        self.repair()

    def repair(self) -> None:
        """Write the StatefulSet if it differs from the target."""
        with self._lock:
            sets = self._sets.objects()
            if self._target is None or not sets or time.monotonic() < self._next_write:
                return
            config, count = self._target
            current = sets[self.stateful_set.name]
            if statefulset.replicas(current) == count and (statefulset.digest(current) == config.digest or not count):
                return
            self._next_write = time.monotonic() + REPAIR_S  # also gives the watch time to see the write
            try:
                self._write(config, count)
            except errors.ClusterError as error:
                log.warning("kwok_pods_not_scaled", name=self.name, error=str(error))

    def _write(self, config: statefulset.PodConfig, count: int) -> None:
        """Write the ConfigMap first: new pods read it once."""
        scale = statefulset.scale_patch(self.stateful_set, count, config if count else None)
        writes = [("patch configmaps", statefulset.configmap_patch(self.stateful_set, config))] if count else []
        for action, request in (*writes, ("patch statefulsets", scale)):
            response = self._api.send(request)
            if response.status != HTTPStatus.OK:
                raise client.rejection_error(self._api, response, action)
        log.info("kwok_pods_scaled", name=self.name, replicas=count)

    def shard_backend(self, index: int) -> "PodShardBackend":
        """Return the pod of a shard."""
        return PodShardBackend(self, index)

    def container_run(self, index: int) -> statefulset.ContainerRun | None:
        """Return the current run of a pod, None without a pod; raise if the pods are unknown."""
        pods = self._pods.objects()
        if pods is None:
            raise errors.UnreachableError(f"the pods of {self.name} are unknown: {self._pods.problem}")
        pod = pods.get(self.stateful_set.pod(index).name)
        return statefulset.container_run(pod) if pod and statefulset.is_configured(pod) else None

    def delete_pod(self, index: int, uid: str, grace_s: int | None = None) -> None:
        """Delete a pod; Kubernetes replaces it."""
        with suppress(errors.ClusterError):
            self._api.send(requests.delete(self.stateful_set.pod(index), uid, grace_s=grace_s))

    def write_node_addresses(self, nodes: AbstractSet[str], address: str) -> None:
        """Write an address to nodes."""
        lease_client.send_all(self._api, [statefulset.node_address_patch(name, address) for name in sorted(nodes)])


class PodShardBackend:
    """The pod of one shard."""

    restarts_itself = True

    def __init__(self, pods: PodBackend, index: int) -> None:
        self._pods, self._index = pods, index

    def stop_orphan(self) -> str:
        """Do nothing: a pod continues across kwokfleet processes."""
        return ""

    def start(
        self, desired: backend.DesiredKwok, shard: sharding.ShardSpec, listener: backend.LogListener
    ) -> "PodKwok":
        """Return the current pod, or the next one."""
        del shard, listener
        return PodKwok(self._pods, self._index, desired.spec.port)

    def record_identity(self, pid: int, identity: str) -> None:
        """Do nothing: the pod's name identifies its kwok."""

    def owns_holder(self, holder: str) -> bool:
        """Compare pod names: a holder identity of kwok starts with it."""
        return holder.startswith(f"{self._pods.stateful_set.pod(self._index).name}_")


class PodKwok:
    """One run of the kwok container of a pod."""

    pid = 0

    def __init__(self, pods: PodBackend, index: int, node_port: int | None) -> None:
        self._pods, self._index, self._node_port = pods, index, node_port
        self.port = node_port or flags.POD_PORT
        self.pod = pods.stateful_set.pod(index).name
        self._run: statefulset.ContainerRun | None = None
        """The run as it was last seen; None before its start."""
        self._other_run: statefulset.ContainerRun | None = None
        """The run after it, or the container before its start."""
        self._stop_requested = False
        self._lost_at = 0.0
        """The time from which a terminating pod counts as lost."""
        self._memory, self._next_memory_read = 0, 0.0
        self.exit_reason()

    def exit_reason(self) -> exits.ExitReason | None:
        """Check the pod; return why its kwok exited, None while it runs, has not started, or is unknown."""
        try:
            current = self._pods.container_run(self._index)
        except errors.UnreachableError:
            return None
        if self._run is None:
            self._other_run = current
            if current is not None and current.started_at is not None:
                self._run = current
            return None
        if current is not None and current.is_same(self._run) and current.started_at is not None:
            self._run = current
            self._delete_if_lost(current)
            return None
        self._other_run = current
        if self._stop_requested or self._run.deleting or current is None or current.uid != self._run.uid:
            return exits.ExitReason.ASKED
        return exits.exit_reason(current.last_exit_code, current.last_log, asked=False)

    def _delete_if_lost(self, run: statefulset.ContainerRun) -> None:
        """Force the deletion of a pod on a lost machine; the leases keep its kwok away from the nodes."""
        if not run.deleting:
            return
        self._lost_at = self._lost_at or time.monotonic() + run.grace_s + LOST_AFTER_S
        if time.monotonic() > self._lost_at:
            log.warning("kwok_pod_lost", pod=self.pod)
            self._pods.delete_pod(self._index, run.uid, grace_s=0)
            self._lost_at = 0.0

    @property
    def started_at(self) -> datetime:
        """The start of its container."""
        return (self._run and self._run.started_at) or datetime.now(UTC)

    @property
    def replaced_at(self) -> datetime:
        """The start of the next container."""
        return (self._other_run and self._other_run.started_at) or datetime.now(UTC)

    @property
    def ran_s(self) -> float:
        """The run time of its container; 0 before its start, or if the clocks differ."""
        return max(0.0, (datetime.now(UTC) - self.started_at).total_seconds())

    def last_error(self) -> str:
        """Return the last error of the log that Kubernetes keeps."""
        return log_lines.last_error((self._other_run.last_log if self._other_run else "").splitlines())

    def not_running_reason(self) -> str:
        """Return why its container does not run."""
        if self._run is not None:
            return ""
        return self._other_run.not_running_reason if self._other_run else _NO_POD

    def is_healthy(self) -> bool:
        """Return whether its probes succeed."""
        return self._run is not None and self._run.ready

    def memory_bytes(self) -> int:
        """Return its memory by its own metrics, read from time to time."""
        if self._run is None or not self._run.address or time.monotonic() < self._next_memory_read:
            return self._memory
        self._next_memory_read = time.monotonic() + MEMORY_S
        memory = read_memory_bytes(flags.ServerAddress(self._run.address, self.port))
        if memory is None:
            self._next_memory_read = time.monotonic() + NO_METRICS_S
        else:
            self._memory = memory
        return self._memory

    def publish_address(self, nodes: AbstractSet[str]) -> None:
        """Write the pod's address to nodes, if the files set a port."""
        if self._node_port and self._run is not None and self._run.address:
            self._pods.write_node_addresses(nodes, self._run.address)

    def stop(self) -> None:
        """Delete the pod and wait: until its end it drives its nodes."""
        self._stop_requested = True
        if self._run is not None:
            self._pods.delete_pod(self._index, self._run.uid)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while self._run is not None and self.exit_reason() is None and time.monotonic() < deadline:
            time.sleep(POLL_S)


def read_memory_bytes(address: flags.ServerAddress) -> int | None:
    """Return the memory of a kwok by its own metrics; None if it cannot be read, e.g. while kwok exits."""
    with suppress(OSError, http.client.HTTPException, ValueError):
        with urllib.request.urlopen(f"http://{address.text}/metrics", timeout=1) as response:
            _, _, rest = response.read().partition(_MEMORY_METRIC)
        return int(float(rest.split(b"\n", 1)[0] or 0))
    return None


def statuses(
    api: requests.RequestSender, name: statefulset.StatefulSetName, health: lease_health.DriverHealth, max_lag_s: float
) -> list[shard.ShardStatus]:
    """Return the status of each pod, without a supervisor; a larger lag than *max_lag_s* is LAGGING."""
    pods = client.list_objects(api, requests.POD, statefulset.SELECTOR, namespace=name.namespace)
    runs = {pod["metadata"]["name"]: statefulset.container_run(pod) for pod in pods}
    response = api.send(_list_request(name))
    if response.status != HTTPStatus.OK:
        raise client.rejection_error(api, response, f"list statefulsets {name.name}")
    sets = response.json()["items"]
    if not sets:
        raise _missing_error(name)
    pod_names = [name.pod(index).name for index in range(statefulset.replicas(sets[0]))]
    return [_status(index, pod, runs.get(pod), health, max_lag_s) for index, pod in enumerate(pod_names)]


def _status(
    index: int, pod: str, run: statefulset.ContainerRun | None, health: lease_health.DriverHealth, max_lag_s: float
) -> shard.ShardStatus:
    if run is None or not run.ready:
        why = run.not_running_reason or run.last_log if run else _NO_POD
        return shard.ShardStatus(index, restarts=run.restarts if run else 0, why=why, pod=pod)
    drivers = [driver for driver in health.drivers if driver.holder.startswith(f"{pod}_") and driver.fresh]
    lag = max((driver.lag_s for driver in drivers), default=0.0)
    state = shard.ShardState.LAGGING if lag > max_lag_s else shard.ShardState.READY
    holder = drivers[0].holder if drivers else ""
    return shard.ShardStatus(index, state, restarts=run.restarts, why=run.last_log, identity=holder, lag_s=lag, pod=pod)


def scale_down_former(api: requests.RequestSender, name: statefulset.StatefulSetName, stop: threading.Event) -> bool:
    """Scale a StatefulSet that kwok ran as to 0 and wait; return whether it was running."""
    response = api.send(_list_request(name))
    sets = response.json()["items"] if response.status == HTTPStatus.OK else ()
    if not any(statefulset.digest(live_set) and statefulset.replicas(live_set) for live_set in sets):
        return False
    scaled = api.send(statefulset.scale_patch(name, 0))
    if scaled.status != HTTPStatus.OK:
        raise client.rejection_error(api, scaled, "patch statefulsets")
    log.info("kwok_pods_scaled", name=str(name), replicas=0)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while any(
        (live_set.get("status") or {}).get("replicas")
        for live_set in api.send(_list_request(name)).json().get("items") or ()
    ):
        if time.monotonic() > deadline or stop.wait(POLL_S):
            raise errors.DeadlineError(
                f"{name} still has pods after {STOP_TIMEOUT_S:g} s",
                hint=f"check `kubectl describe statefulset {name.name} -n {name.namespace}`",
            )
    return True


def _missing_error(name: statefulset.StatefulSetName, problem: str = "") -> errors.ClusterError:
    return errors.ClusterError(
        f"kwok cannot run as {name}: {problem or 'it does not exist'}",
        hint="install it: kubectl apply -k deploy/overlays/shards; or remove statefulSet from the document",
    )


def _list_request(name: statefulset.StatefulSetName) -> requests.Request:
    """Return the request for one StatefulSet: a list, because it needs the same right as the watch."""
    return requests.list_page(requests.STATEFUL_SET, namespace=name.namespace, fields=f"metadata.name={name.name}")
