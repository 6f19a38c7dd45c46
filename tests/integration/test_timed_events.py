"""Watch events with their arrival time, on a real API server."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kwokfleet.kube import client, requests
from kwokfleet.kube.informer import timed_events
from kwokfleet.kube.requests import Kind
from tests.harness import faulty_proxy, waiting
from tests.harness.sandbox import Sandbox

Manifest = dict[str, Any]


class RecordingHandler:
    """Records all calls in order."""

    def __init__(self) -> None:
        self.records: list[tuple[str, str, float]] = []
        """Call, object or reason, and time."""

    def event(self, kind: Kind, event_type: str, manifest: Manifest, received: float) -> None:
        """Record an event."""
        assert manifest["kind"] == kind.kind
        self.records.append((event_type, manifest["metadata"]["name"].rpartition("-")[2], received))

    def list_started(self, kind: Kind) -> None:
        """Record the start of a list."""
        self.records.append(("listing", kind.plural, 0.0))

    def list_completed(self, kind: Kind, at: float) -> None:
        """Record the end of a list."""
        self.records.append(("listed", kind.plural, at))

    def watch_lost(self, kind: Kind, at: float, reason: str) -> None:
        """Record a lost watch."""
        del kind
        self.records.append(("lost", reason, at))

    def watch_restored(self, kind: Kind, at: float) -> None:
        """Record a restored watch."""
        self.records.append(("back", kind.plural, at))

    @property
    def calls(self) -> list[tuple[str, str]]:
        """The recorded calls, without times and reasons."""
        return [(what, "" if what == "lost" else about) for what, about, _ in list(self.records)]

    def wait_for(self, *calls: tuple[str, str]) -> None:
        """Wait until these are the last recorded calls."""
        waiting.until(lambda: tuple(self.calls[-len(calls) :]) == calls)


@pytest.fixture
def open_watch(box: Sandbox, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Return a function that watches the ConfigMaps of this test through a faulty proxy."""
    with faulty_proxy.proxy_to(box.cluster) as proxy:
        api = client.connect(kubeconfig=Path(proxy.kubeconfig(tmp_path / "through.json")))

        @contextmanager
        def follow(
            *, buffered: bool = False
        ) -> Iterator[tuple[RecordingHandler, faulty_proxy.FaultyProxy, timed_events.EventWatcher]]:
            handler = RecordingHandler()
            watcher = timed_events.EventWatcher(api, requests.CONFIG_MAP, box.selector, handler, buffered=buffered)
            watcher.start()
            try:
                yield handler, proxy, watcher
            finally:
                watcher.close()

        yield follow
        api.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("event-watcher-")]


def apply(box: Sandbox, name: str, **data: str) -> None:
    """Create or change a ConfigMap of this test."""
    box.cluster.apply(box.manifest("v1", "ConfigMap", name, data=data))


def remove(box: Sandbox, name: str) -> None:
    """Delete a ConfigMap of this test."""
    box.cluster.kubectl("delete", "configmap", f"{box.name}-{name}", "-n", box.name)


BEGINNING = (("listing", "configmaps"), ("listed", "configmaps"), ("back", "configmaps"))


def test_every_event_has_its_time(box: Sandbox, open_watch: Callable[[], Any]) -> None:
    """Existing objects come in the list, later events one by one, in the order of their times."""
    apply(box, "old")
    with open_watch() as (handler, _proxy, watcher):
        handler.wait_for(BEGINNING[0], ("LISTED", "old"), *BEGINNING[1:])
        assert watcher.settled.is_set()
        apply(box, "new")
        apply(box, "new", changed="yes")
        remove(box, "new")
        handler.wait_for(("ADDED", "new"), ("MODIFIED", "new"), ("DELETED", "new"))
        times = [at for what, _, at in handler.records if what.isupper()]
        assert times == sorted(times)


def test_buffered_events_are_delivered_on_request_with_their_arrival_time(
    box: Sandbox, open_watch: Callable[..., Any]
) -> None:
    """They keep their order; events before a broken connection come before its loss."""
    with open_watch(buffered=True) as (handler, proxy, watcher):
        handler.wait_for(*BEGINNING)
        apply(box, "new")
        time.sleep(0.5)
        requested_at = time.time()
        assert handler.calls[-1] == BEGINNING[-1], "deliver was not called yet"
        watcher.deliver()
        [(what, name, received)] = handler.records[-1:]
        assert (what, name) == ("ADDED", "new")
        assert received < requested_at - 0.2
        apply(box, "new", changed="yes")
        proxy.rule = lambda request: faulty_proxy.Reset() if request.is_watch else None
        time.sleep(0.5)
        proxy.reset_all()
        handler.wait_for(("MODIFIED", "new"), ("lost", ""))


def test_a_broken_connection_is_reported_and_no_event_is_missed(box: Sandbox, open_watch: Callable[[], Any]) -> None:
    """The watch continues from its last version; missed events come after it is restored."""
    with open_watch() as (handler, proxy, _made):
        handler.wait_for(*BEGINNING)
        proxy.rule = lambda request: faulty_proxy.Reset() if request.is_watch else None
        proxy.reset_all()
        handler.wait_for(("lost", ""))
        apply(box, "meanwhile")
        proxy.rule = faulty_proxy.pass_through
        handler.wait_for(("lost", ""), ("back", "configmaps"), ("ADDED", "meanwhile"))


def test_an_expired_version_causes_a_new_list(box: Sandbox, open_watch: Callable[[], Any]) -> None:
    """Objects that are not in it have been deleted."""
    apply(box, "gone")
    apply(box, "stays")
    with open_watch() as (handler, proxy, _made):
        handler.wait_for(BEGINNING[0], ("LISTED", "gone"), ("LISTED", "stays"), *BEGINNING[1:])
        proxy.rule = lambda request: (
            faulty_proxy.Reject(410) if request.is_watch and "sendInitial" not in request.path else None
        )
        remove(box, "gone")
        proxy.reset_all()
        handler.wait_for(("lost", ""), BEGINNING[0], ("LISTED", "stays"), *BEGINNING[1:])


@pytest.mark.parametrize("status", [400, 422])
def test_a_server_without_streaming_lists_is_listed_page_by_page(
    box: Sandbox, open_watch: Callable[[], Any], status: int
) -> None:
    """The items of a page have no kind; it is added."""
    apply(box, "old")
    with open_watch() as (handler, proxy, _made):
        handler.wait_for(*BEGINNING[1:])
        assert ("LISTED", "old") in handler.calls
        proxy.rule = lambda request: faulty_proxy.Reject(status) if "sendInitial" in request.path else None
    with open_watch() as (handler, _proxy, _made):
        handler.wait_for(*BEGINNING[1:])
        assert ("LISTED", "old") in handler.calls
        apply(box, "new")
        handler.wait_for(("ADDED", "new"))


def test_a_forbidden_watch_is_lost_and_settled(box: Sandbox, open_watch: Callable[[], Any]) -> None:
    """It is lost from the start, with the reason."""
    del box
    with open_watch() as (handler, proxy, watcher):
        proxy.rule = lambda _asked: faulty_proxy.Reject(403, "you may not")
        proxy.reset_all()
        waiting.until(lambda: handler.calls[-1] == ("lost", ""))
        waiting.until(watcher.settled.is_set)
        proxy.rule = faulty_proxy.pass_through
        handler.wait_for(("back", "configmaps"))
