"""Watch of real pods for `kwokfleet learn`: their states, with the time of each event."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from kwokfleet import errors
from kwokfleet.cli import connection, output
from kwokfleet.kube import client, requests
from kwokfleet.kube.informer import timed_events
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.requests import Kind
from kwokfleet.learn import learner

POLL_S = 0.5
"""Interval of the check whether enough pods were observed."""


@dataclass(frozen=True, slots=True)
class PodSelection:
    """Selection of pods."""

    selector: str
    namespace: str
    """Empty for all."""
    context: str | None
    kubeconfig: Path | None

    @property
    def kind(self) -> Kind:
        """Kind to watch, limited to the namespace."""
        return requests.in_namespace(requests.POD, self.namespace) if self.namespace else requests.POD

    def __str__(self) -> str:
        labels = f" with {self.selector}" if self.selector else ""
        place = f"namespace {self.namespace}" if self.namespace else "all namespaces"
        return f"{place}{labels}" + (f" ({self.context})" if self.context else "")


class _Listener:
    """Receives events, in the thread of the watcher."""

    def __init__(self) -> None:
        self.study = learner.LifecycleLearner()
        self.lock = threading.Lock()
        self.error = ""
        self.is_listed = False
        """True after the first list."""
        self.gaps = 0

    def event(self, _kind: Kind, event_type: str, manifest: Manifest, received: float) -> None:
        """Record an event; listed objects have no event time."""
        with self.lock:
            self.study.observe(event_type, manifest, None if event_type == timed_events.LISTED else received)

    def list_started(self, _kind: Kind) -> None:
        """Do nothing: listed objects arrive as events."""

    def list_completed(self, _kind: Kind, _at: float) -> None:
        """Record the first list."""
        self.is_listed = True

    def watch_lost(self, _kind: Kind, _at: float, reason: str) -> None:
        """Record an interruption of the watch."""
        self.error = reason
        self.gaps += self.is_listed

    def watch_restored(self, _kind: Kind, _at: float) -> None:
        """Record the end of an interruption."""
        self.error = ""


def watch_pods(where: PodSelection, lasting_s: float, pods: int | None) -> learner.LifecycleLearner:
    """Watch until enough pods were observed, the time is over, or Ctrl-C; return all observations."""
    output.start_logging()
    api = connection.connect(where.context, where.kubeconfig)
    _require_list_permission(api, where)
    listener = _Listener()
    watcher = timed_events.EventWatcher(api, where.kind, where.selector, listener)
    watcher.start()
    try:
        with _interruptible() as stop:
            _wait_until_listed(watcher, listener, where, stop)
            _wait(listener, where, lasting_s, pods, stop)
    finally:
        watcher.close()
        api.close()
    if listener.gaps:
        output.print_line(
            f"note: the watch was interrupted {listener.gaps} times; for these periods "
            "only the timestamps in the pods are known"
        )
    with listener.lock:
        return listener.study


def _require_list_permission(api: client.KubeClient, where: PodSelection) -> None:
    """Raise if pods cannot be listed for a permanent reason: the watcher would retry forever."""
    answer = api.send(requests.list_page(where.kind, where.selector, metadata_only=True))
    if HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR and answer.status != connection.BUSY:
        scope = f"-n {where.namespace}" if where.namespace else "--all-namespaces"
        raise client.rejection_error(api, answer, f"list pods {scope}")


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Let Ctrl-C end the wait, not the program: the observations are used."""
    stop = threading.Event()
    before = signal.signal(signal.SIGINT, lambda _number, _frame: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def _wait_until_listed(
    watcher: timed_events.EventWatcher, listener: _Listener, where: PodSelection, stop: threading.Event
) -> None:
    deadline = time.monotonic() + connection.LIST_S
    while not watcher.settled.wait(POLL_S) and time.monotonic() < deadline and not stop.is_set():
        pass
    if not listener.is_listed and not stop.is_set():
        raise errors.ClusterError(
            f"cannot watch the pods of {where}: {listener.error or 'they have not been listed yet'}",
            hint="list and watch access to pods is enough; check kubectl auth can-i watch pods",
        )


def _wait(listener: _Listener, where: PodSelection, lasting_s: float, pods: int | None, stop: threading.Event) -> None:
    deadline = time.monotonic() + lasting_s
    with _progress_line(f"watching pods in {where}; Ctrl-C ends the watch, and the data up to then is used") as show:
        while (left := deadline - time.monotonic()) > 0 and not stop.is_set():
            with listener.lock:
                seen, through = listener.study.pods, listener.study.finished
            if pods is not None and through >= pods:
                return
            show(f"{learner.pod_count_text(seen)}, {through:,} finished; {output.age_of(left)} left")
            stop.wait(min(left, POLL_S))


@contextmanager
def _progress_line(what: str) -> Iterator[Callable[[str], None]]:
    """Show progress: a live line on a terminal, one line otherwise."""
    if not sys.stderr.isatty():
        output.print_line(what)
        yield lambda _text: None
        return
    with output.console(stderr=True).status(what) as status:
        yield lambda text: status.update(f"{what}\n  {text}")
