"""Pods watched on a cluster, for `kwokfleet learn`: their states, and when each was received."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import FrameType

from kwokfleet import errors
from kwokfleet.cli import connection, output
from kwokfleet.kube import client, requests
from kwokfleet.kube.informer import timed_events
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.requests import Kind
from kwokfleet.learn import model

LOOK_S = 0.5
"""How often it is looked whether enough was seen."""


@dataclass(frozen=True, slots=True)
class PodSelection:
    """Which pods."""

    selector: str
    namespace: str
    """Empty for all."""
    context: str | None
    kubeconfig: Path | None

    @property
    def kind(self) -> Kind:
        """What is watched."""
        return requests.in_namespace(requests.POD, self.namespace) if self.namespace else requests.POD

    def __str__(self) -> str:
        labels = f" with {self.selector}" if self.selector else ""
        place = f"namespace {self.namespace}" if self.namespace else "all namespaces"
        return f"{place}{labels}" + (f" ({self.context})" if self.context else "")


class _Listener:
    """Takes in what a Witness tells, in its thread."""

    def __init__(self) -> None:
        self.study = model.LifecycleLearner()
        self.lock = threading.Lock()
        self.trouble = ""
        self.known = False
        """Whether it was ever known what is there."""
        self.gaps = 0

    def event(self, _kind: Kind, event_type: str, manifest: Manifest, received: float) -> None:
        """Take an event; when something in a list has happened is not known."""
        with self.lock:
            self.study.take(event_type, manifest, None if event_type == timed_events.LISTED else received)

    def list_started(self, _kind: Kind) -> None:
        """Do nothing: what is listed comes as events."""

    def list_completed(self, _kind: Kind, _at: float) -> None:
        """Take note that it is known what is there."""
        self.known = True

    def watch_lost(self, _kind: Kind, _at: float, reason: str) -> None:
        """Take note that nobody sees what happens."""
        self.trouble = reason
        self.gaps += self.known

    def watch_restored(self, _kind: Kind, _at: float) -> None:
        """Take note that it is seen again."""
        self.trouble = ""


def watch_pods(where: PodSelection, lasting_s: float, pods: int | None) -> model.LifecycleLearner:
    """Watch until enough was seen, the time is over, or somebody presses Ctrl-C; return all that was seen."""
    output.start_logging()
    api = connection.connect(where.context, where.kubeconfig)
    _refuse_unlisted(api, where)
    listener = _Listener()
    sight = timed_events.EventWatcher(api, where.kind, where.selector, listener)
    sight.start()
    try:
        with _interruptible() as stop:
            _wait_until_known(sight, listener, where, stop)
            _wait(listener, where, lasting_s, pods, stop)
    finally:
        sight.close()
        api.close()
    if listener.gaps:
        output.print_line(
            f"note: the watch was interrupted {listener.gaps} times; of what happened meanwhile "
            "only the times written in the pods are known"
        )
    with listener.lock:
        return listener.study


def _refuse_unlisted(api: client.KubeClient, where: PodSelection) -> None:
    """Raise if pods cannot be listed for a reason that lasts: a Witness would go on trying."""
    answer = api.send(requests.list_page(where.kind, where.selector, metadata_only=True))
    if HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR and answer.status != connection.BUSY:
        scope = f"-n {where.namespace}" if where.namespace else "--all-namespaces"
        raise client.rejection_error(api, answer, f"list pods {scope}")


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Let Ctrl-C end the wait and not the program: what was seen is worth having."""
    stop = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    before = signal.signal(signal.SIGINT, end)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def _wait_until_known(
    sight: timed_events.EventWatcher, listener: _Listener, where: PodSelection, stop: threading.Event
) -> None:
    deadline = time.monotonic() + connection.LIST_S
    while not sight.settled.wait(LOOK_S) and time.monotonic() < deadline and not stop.is_set():
        pass
    if not listener.known and not stop.is_set():
        raise errors.ClusterError(
            f"the pods of {where} cannot be watched: {listener.trouble or 'they have not been listed yet'}",
            hint="rights to list and watch pods are enough: see kubectl auth can-i watch pods",
        )


def _wait(listener: _Listener, where: PodSelection, lasting_s: float, pods: int | None, stop: threading.Event) -> None:
    deadline = time.monotonic() + lasting_s
    with _shown(f"watching pods in {where}; Ctrl-C ends it and uses what was seen") as show:
        while (left := deadline - time.monotonic()) > 0 and not stop.is_set():
            with listener.lock:
                seen, through = listener.study.pods, listener.study.through
            if pods is not None and through >= pods:
                return
            show(f"{model.pod_count_text(seen)}, {through:,} seen through; {output.age_of(left)} left")
            stop.wait(min(left, LOOK_S))


@contextmanager
def _shown(what: str) -> Iterator[Callable[[str], None]]:
    """Show how it goes: a line that changes on a terminal, one line anywhere else."""
    if not sys.stderr.isatty():
        output.print_line(what)
        yield lambda _text: None
        return
    with output.console(stderr=True).status(what) as status:
        yield lambda text: status.update(f"{what}\n  {text}")
