"""kwok in the pods of a StatefulSet: Kubernetes runs them, on any machine; we size and configure them, and look.

The pods go on without us, and when another kwokfleet leads. What is written is the StatefulSet's size, its
container's flags and its ConfigMap; a pod is deleted only when its kwok no longer does its work.
"""

import threading
import time
import urllib.error
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

KNOWN_S = 10.0
"""How long it may take to learn what there is."""
MEND_S = 2.0
"""Between two tries to make a StatefulSet what it should be."""
GONE_S, LOOK_S = 60.0, 0.1
LOST_S = 10.0
"""How much longer than its grace a pod may take to end; then its machine is taken for lost."""
MEMORY_S, NO_ANSWER_S = 10.0, 60.0
"""How often a pod is asked for its memory; how long it is left alone if it did not answer."""
_MEMORY = b"\nprocess_resident_memory_bytes "


class PodBackend:
    """All pods of one StatefulSet."""

    def __init__(
        self, api: requests.RequestSender, watched: reflector.WatchApi, name: statefulset.StatefulSetName
    ) -> None:
        self._api, self.stateful_set, self.name = api, name, str(name)
        kinds = (requests.in_namespace(each, name.namespace) for each in (requests.STATEFUL_SET, requests.POD))
        self._set = full_objects.FullObjectCache(watched, next(kinds), fields=f"metadata.name={name.name}")
        self._pods = full_objects.FullObjectCache(watched, next(kinds), selector=statefulset.SELECTOR)
        self._target: tuple[statefulset.PodConfig, int] | None = None
        self._configured = ""
        """The digest of the layout that the ConfigMap was last written for."""
        self._lock = threading.Lock()
        self._next = 0.0

    def open(self) -> None:
        """Begin to look; raise if there is no such StatefulSet, or it may not be seen."""
        self._set.__enter__()
        self._pods.__enter__()
        trouble = self._set.wait_until_synced(KNOWN_S) or self._pods.wait_until_synced(KNOWN_S)
        if trouble or not self._set.objects():
            self.close()
            raise _missing(self.stateful_set, trouble)

    def close(self) -> None:
        """Look no more; the pods go on, unless there should be none: then they are waited for."""
        if self._target is not None and self._target[1] == 0:
            self._wait_until_gone()
        self._set.__exit__()
        self._pods.__exit__()

    def _wait_until_gone(self) -> None:
        """Wait for the last pod: whoever comes next must not meet it."""
        deadline, prefix = time.monotonic() + GONE_S, f"{self.stateful_set.name}-"
        while time.monotonic() < deadline:
            found = self._pods.objects()
            if found is not None and not any(name.startswith(prefix) for name in found):
                return
            self.mend()
            time.sleep(LOOK_S)

    def lay_out(self, wanted: backend.DesiredKwok, count: int) -> None:
        """Let there be so many pods, which run as the files say."""
        with self._lock:
            self._target = statefulset.pod_config(wanted.spec, wanted.kinds, wanted.mark), count
            self._next = 0.0
        self.mend()

    def mend(self) -> None:
        """Make the StatefulSet what it should be, unless it is; what fails is tried again."""
        with self._lock:
            found = self._set.objects()
            if self._target is None or not found or time.monotonic() < self._next:
                return
            how, count = self._target
            there = found[self.stateful_set.name]
            if statefulset.replicas(there) == count and (statefulset.digest(there) == how.digest or not count):
                return
            self._next = time.monotonic() + MEND_S  # also: until the watch has told of it
            try:
                self._write(how, count)
            except errors.ClusterError as error:
                log.warning("kwok_pods_not_laid_out", name=self.name, error=str(error))

    def _write(self, how: statefulset.PodConfig, count: int) -> None:
        """Write the configuration first: pods that come read it once."""
        wanted = [("patch configmaps", statefulset.configmap_patch(self.stateful_set, how))] if count else []
        sized = statefulset.scale_patch(self.stateful_set, count, how if count else None)
        for what, request in (*wanted, ("patch statefulsets", sized)):
            answer = self._api.send(request)
            if answer.status != HTTPStatus.OK:
                raise client.rejection_error(self._api, answer, what)
        log.info("kwok_pods_laid_out", name=self.name, replicas=count)

    def place(self, index: int) -> "PodShardBackend":
        """Return the pod of a shard."""
        return PodShardBackend(self, index)

    def life(self, index: int) -> statefulset.ContainerRun | None:
        """Return how a pod fares, None if there is none; raise if nobody knows."""
        found = self._pods.objects()
        if found is None:
            raise errors.UnreachableError(f"nobody knows of the pods of {self.name}: {self._pods.problem}")
        pod = found.get(self.stateful_set.pod(index).name)
        return statefulset.container_run(pod) if pod and statefulset.is_configured(pod) else None

    def delete(self, index: int, uid: str, grace_s: int | None = None) -> None:
        """Let one pod be replaced."""
        with suppress(errors.ClusterError):
            self._api.send(requests.delete(self.stateful_set.pod(index), uid, grace_s=grace_s))

    def show(self, nodes: AbstractSet[str], address: str) -> None:
        """Let nodes show an address."""
        lease_client.send_all(self._api, [statefulset.node_address_patch(each, address) for each in sorted(nodes)])


class PodShardBackend:
    """One pod of a StatefulSet, whichever it is at the moment."""

    renews = True

    def __init__(self, site: PodBackend, index: int) -> None:
        self._site, self._index = site, index

    def leftover(self) -> str:
        """Leave the pod alone: it goes on from one of our lives to the next."""
        return ""

    def start(self, wanted: backend.DesiredKwok, shard: sharding.ShardSpec, listener: backend.LogListener) -> "PodKwok":
        """Return the pod that is there, or the next one that comes."""
        del shard, listener
        return PodKwok(self._site, self._index, wanted.spec.port)

    def note(self, pid: int, identity: str) -> None:
        """Write nothing down: a pod's kwok is known by the pod's name."""

    def names(self, holder: str) -> bool:
        """Tell by the pod's name, which kwok's own begins with."""
        return holder.startswith(f"{self._site.stateful_set.pod(self._index).name}_")


class PodKwok:
    """One life of a pod's kwok: from when it is first seen to its end."""

    pid = 0

    def __init__(self, site: PodBackend, index: int, shown_port: int | None) -> None:
        self._site, self._index, self._shown_port = site, index, shown_port
        self.port = shown_port or flags.POD_PORT
        self.pod = site.stateful_set.pod(index).name
        self._life: statefulset.ContainerRun | None = None
        """The life that this is about, as it was last seen; None before its beginning."""
        self._next: statefulset.ContainerRun | None = None
        """What came after it, or is there before it has begun."""
        self._asked = False
        self._lost = 0.0
        """From when on a pod that should be gone is taken for lost."""
        self._memory, self._ask_at = 0, 0.0
        self.ended()

    def ended(self) -> exits.ExitReason | None:
        """Look at the pod; return why its kwok ended, None while it lives, has not begun, or nobody knows."""
        try:
            now = self._site.life(self._index)
        except errors.UnreachableError:
            return None
        if self._life is None:
            self._next = now
            if now is not None and now.began is not None:
                self._life = now
            return None
        if now is not None and now.is_same(self._life) and now.began is not None:
            self._life = now
            self._hurry(now)
            return None
        self._next = now
        if self._asked or self._life.deleting or now is None or now.uid != self._life.uid:
            return exits.ExitReason.ASKED
        return exits.exit_reason(now.code, now.last_words, asked=False)

    def _hurry(self, now: statefulset.ContainerRun) -> None:
        """Do not wait for a machine that is lost to tell of a pod's end: leases keep its kwok from its nodes."""
        if not now.deleting:
            return
        self._lost = self._lost or time.monotonic() + now.grace_s + LOST_S
        if time.monotonic() > self._lost:
            log.warning("kwok_pod_lost", pod=self.pod)
            self._site.delete(self._index, now.uid, grace_s=0)
            self._lost = 0.0

    @property
    def since(self) -> datetime:
        """When its container started."""
        return (self._life and self._life.began) or datetime.now(UTC)

    @property
    def until(self) -> datetime:
        """When the container started that came after it."""
        return (self._next and self._next.began) or datetime.now(UTC)

    @property
    def ran_s(self) -> float:
        """How long its container has run; 0 if it does not yet, or by its machine's clock."""
        return max(0.0, (datetime.now(UTC) - self.since).total_seconds())

    def last_words(self) -> str:
        """Return the end of its log, as far as Kubernetes has it."""
        lines = (self._next.last_words if self._next else "").splitlines()
        return log_lines.last_error(lines)

    def lacks(self) -> str:
        """Return why its container does not run."""
        if self._life is not None:
            return ""
        return self._next.lacks if self._next else "there is no pod yet"

    def is_healthy(self) -> bool:
        """Return whether its probes say so."""
        return self._life is not None and self._life.ready

    def memory(self) -> int:
        """Return what it holds, as it says itself: asked for now and then."""
        if self._life is None or not self._life.address or time.monotonic() < self._ask_at:
            return self._memory
        self._ask_at = time.monotonic() + MEMORY_S
        try:
            url = f"http://{flags.ServerAddress(self._life.address, self.port).text}/metrics"
            with urllib.request.urlopen(url, timeout=1) as answer:
                _, _, rest = answer.read().partition(_MEMORY)
            self._memory = int(float(rest.split(b"\n", 1)[0] or 0))
        except (urllib.error.URLError, OSError, ValueError):
            self._ask_at = time.monotonic() + NO_ANSWER_S
        return self._memory

    def place(self, nodes: AbstractSet[str]) -> None:
        """Let nodes show the pod's address, if the files give them a port there."""
        if self._shown_port and self._life is not None and self._life.address:
            self._site.show(nodes, self._life.address)

    def stop(self) -> None:
        """Let Kubernetes end it, and wait for that: while it lives, it drives its nodes."""
        self._asked = True
        if self._life is not None:
            self._site.delete(self._index, self._life.uid)
        deadline = time.monotonic() + GONE_S
        while self._life is not None and self.ended() is None and time.monotonic() < deadline:
            time.sleep(LOOK_S)


def statuses(
    api: requests.RequestSender, name: statefulset.StatefulSetName, now: lease_health.DriverHealth, late_s: float
) -> list[shard.ShardStatus]:
    """Return how each pod fares as anybody can see it, who drives the nodes being known; *late_s* behind is lagging."""
    found = client.list_objects(api, requests.POD, statefulset.SELECTOR, namespace=name.namespace)
    there = {each["metadata"]["name"]: statefulset.container_run(each) for each in found}
    answer = api.send(_asking(name))
    if answer.status != HTTPStatus.OK:
        raise client.rejection_error(api, answer, f"list statefulsets {name.name}")
    sets = answer.json()["items"]
    if not sets:
        raise _missing(name)
    names = [name.pod(index).name for index in range(statefulset.replicas(sets[0]))]
    return [_status(index, pod, there.get(pod), now, late_s) for index, pod in enumerate(names)]


def _status(
    index: int, pod: str, life: statefulset.ContainerRun | None, now: lease_health.DriverHealth, late_s: float
) -> shard.ShardStatus:
    mine = [each for each in now.drivers if each.holder.startswith(f"{pod}_") and each.fresh]
    if life is None or not life.ready:
        why = life.lacks or life.last_words if life else "there is no pod yet"
        return shard.ShardStatus(index, restarts=life.restarts if life else 0, why=why, pod=pod)
    lag = max((each.lag_s for each in mine), default=0.0)
    state = shard.ShardState.LAGGING if lag > late_s else shard.ShardState.READY
    holder = mine[0].holder if mine else ""
    return shard.ShardStatus(
        index, state, restarts=life.restarts, why=life.last_words, identity=holder, lag_s=lag, pod=pod
    )


def scale_down_former(api: requests.RequestSender, name: statefulset.StatefulSetName, stop: threading.Event) -> bool:
    """End the pods of a StatefulSet that kwok ran as before the files said otherwise; return whether it was one."""
    answer = api.send(_asking(name))
    found = answer.json()["items"] if answer.status == HTTPStatus.OK else ()
    if not any(statefulset.digest(each) and statefulset.replicas(each) for each in found):
        return False
    sized = api.send(statefulset.scale_patch(name, 0))
    if sized.status != HTTPStatus.OK:
        raise client.rejection_error(api, sized, "patch statefulsets")
    log.info("kwok_pods_ended", name=str(name))
    deadline = time.monotonic() + GONE_S
    while any((each.get("status") or {}).get("replicas") for each in api.send(_asking(name)).json().get("items") or ()):
        if time.monotonic() > deadline or stop.wait(LOOK_S):
            raise errors.DeadlineError(f"{name} still has pods after {GONE_S:g} s", hint="kubectl describe it")
    return True


def _missing(name: statefulset.StatefulSetName, trouble: str = "") -> errors.ClusterError:
    return errors.ClusterError(
        f"kwok cannot run as {name}: {trouble or 'there is none'}",
        hint="install it: kubectl apply -k deploy/overlays/shards; or take statefulSet out of the document",
    )


def _asking(name: statefulset.StatefulSetName) -> requests.Request:
    """Return the request for one StatefulSet: a list, for which the right that it takes to watch it is enough."""
    return requests.list_page(requests.STATEFUL_SET, namespace=name.namespace, fields=f"metadata.name={name.name}")
