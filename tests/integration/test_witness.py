"""The witness on a real API server: every event with its time, whole lists, and when nobody was looking."""

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


class Ear:
    """Remembers what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, float]] = []
        """What, about which object or why, and when."""

    def event(self, kind: Kind, event_type: str, manifest: Manifest, received: float) -> None:
        """Remember an event."""
        assert manifest["kind"] == kind.kind
        self.told.append((event_type, manifest["metadata"]["name"].rpartition("-")[2], received))

    def list_started(self, kind: Kind) -> None:
        """Remember that a list began."""
        self.told.append(("listing", kind.plural, 0.0))

    def list_completed(self, kind: Kind, at: float) -> None:
        """Remember a list."""
        self.told.append(("listed", kind.plural, at))

    def watch_lost(self, kind: Kind, at: float, reason: str) -> None:
        """Remember that nobody looks."""
        del kind
        self.told.append(("lost", reason, at))

    def watch_restored(self, kind: Kind, at: float) -> None:
        """Remember that somebody looks."""
        self.told.append(("back", kind.plural, at))

    @property
    def words(self) -> list[tuple[str, str]]:
        """What was told, without times and reasons."""
        return [(what, "" if what == "lost" else about) for what, about, _ in list(self.told)]

    def heard(self, *words: tuple[str, str]) -> None:
        """Wait until the last things that were told are these."""
        waiting.until(lambda: tuple(self.words[-len(words) :]) == words)


@pytest.fixture
def listening(box: Sandbox, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Return what follows the ConfigMaps of this test, through a proxy on which things go wrong."""
    with faulty_proxy.proxy_to(box.cluster) as proxy:
        api = client.connect(kubeconfig=Path(proxy.kubeconfig(tmp_path / "through.json")))

        @contextmanager
        def follow(
            *, gathers: bool = False
        ) -> Iterator[tuple[Ear, faulty_proxy.FaultyProxy, timed_events.EventWatcher]]:
            ear = Ear()
            made = timed_events.EventWatcher(api, requests.CONFIG_MAP, box.selector, ear, buffered=gathers)
            made.start()
            try:
                yield ear, proxy, made
            finally:
                made.close()

        yield follow
        api.close()
    assert not [each.name for each in threading.enumerate() if each.name.startswith("witness-")]


def make(box: Sandbox, name: str, **data: str) -> None:
    """Make a ConfigMap of this test, or change it."""
    box.cluster.apply(box.manifest("v1", "ConfigMap", name, data=data))


def remove(box: Sandbox, name: str) -> None:
    """Delete a ConfigMap of this test."""
    box.cluster.kubectl("delete", "configmap", f"{box.name}-{name}", "-n", box.name)


BEGINNING = (("listing", "configmaps"), ("listed", "configmaps"), ("back", "configmaps"))


def test_every_event_is_told_with_its_time(box: Sandbox, listening: Callable[[], Any]) -> None:
    """What was there is in the list; what comes after it is told one by one, in the order of its times."""
    make(box, "old")
    with listening() as (ear, _proxy, made):
        ear.heard(BEGINNING[0], ("LISTED", "old"), *BEGINNING[1:])
        assert made.settled.is_set()
        make(box, "new")
        make(box, "new", changed="yes")
        remove(box, "new")
        ear.heard(("ADDED", "new"), ("MODIFIED", "new"), ("DELETED", "new"))
        times = [at for what, _, at in ear.told if what.isupper()]
        assert times == sorted(times)


def test_what_is_gathered_is_told_when_asked_for_with_the_time_at_which_it_came(
    box: Sandbox, listening: Callable[..., Any]
) -> None:
    """In order, however late somebody asks; what came before a connection broke is told before that."""
    with listening(gathers=True) as (ear, proxy, made):
        ear.heard(*BEGINNING)
        make(box, "new")
        time.sleep(0.5)
        asked = time.time()
        assert ear.words[-1] == BEGINNING[-1], "nobody has asked yet"
        made.tell()
        [(what, name, received)] = ear.told[-1:]
        assert (what, name) == ("ADDED", "new")
        assert received < asked - 0.2
        make(box, "new", changed="yes")
        proxy.rule = lambda asked: faulty_proxy.Reset() if asked.is_watch else None
        time.sleep(0.5)
        proxy.reset_all()
        ear.heard(("MODIFIED", "new"), ("lost", ""))


def test_a_connection_that_breaks_is_told_and_nothing_is_missed(box: Sandbox, listening: Callable[[], Any]) -> None:
    """It goes on where it was: what happened meanwhile is told late, after it is back."""
    with listening() as (ear, proxy, _made):
        ear.heard(*BEGINNING)
        proxy.rule = lambda asked: faulty_proxy.Reset() if asked.is_watch else None
        proxy.reset_all()
        ear.heard(("lost", ""))
        make(box, "meanwhile")
        proxy.rule = faulty_proxy.pass_through
        ear.heard(("lost", ""), ("back", "configmaps"), ("ADDED", "meanwhile"))


def test_a_version_that_is_too_old_means_a_new_list(box: Sandbox, listening: Callable[[], Any]) -> None:
    """What was there and is not in it has gone meanwhile."""
    make(box, "gone")
    make(box, "stays")
    with listening() as (ear, proxy, _made):
        ear.heard(BEGINNING[0], ("LISTED", "gone"), ("LISTED", "stays"), *BEGINNING[1:])
        proxy.rule = lambda asked: (
            faulty_proxy.Reject(410) if asked.is_watch and "sendInitial" not in asked.path else None
        )
        remove(box, "gone")
        proxy.reset_all()
        ear.heard(("lost", ""), BEGINNING[0], ("LISTED", "stays"), *BEGINNING[1:])


@pytest.mark.parametrize("status", [400, 422])
def test_a_server_that_streams_no_lists_is_asked_page_by_page(
    box: Sandbox, listening: Callable[[], Any], status: int
) -> None:
    """With the same in it: a page leaves out of what kind its objects are."""
    make(box, "old")
    with listening() as (ear, proxy, _made):
        ear.heard(*BEGINNING[1:])
        assert ("LISTED", "old") in ear.words
        proxy.rule = lambda asked: faulty_proxy.Reject(status) if "sendInitial" in asked.path else None
    with listening() as (ear, _proxy, _made):
        ear.heard(*BEGINNING[1:])
        assert ("LISTED", "old") in ear.words
        make(box, "new")
        ear.heard(("ADDED", "new"))


def test_what_may_not_be_watched_is_told_and_nobody_need_wait(box: Sandbox, listening: Callable[[], Any]) -> None:
    """It is lost from the beginning, with the reason."""
    del box
    with listening() as (ear, proxy, made):
        proxy.rule = lambda _asked: faulty_proxy.Reject(403, "you may not")
        proxy.reset_all()
        waiting.until(lambda: ear.words[-1] == ("lost", ""))
        waiting.until(made.settled.is_set)
        proxy.rule = faulty_proxy.pass_through
        ear.heard(("back", "configmaps"))
