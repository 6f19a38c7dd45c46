"""Selection of the backend by the KwokController spec, and the lease holders of our own kwok."""

from pathlib import Path

from kwokfleet.api.kwok_controller import KwokControllerSpec
from kwokfleet.kube import throttled_client
from kwokfleet.kube.informer import reflector
from kwokfleet.kwok import backend, foreign_controllers, pod_backend, statefulset, supervisor


def select_backend(
    spec: KwokControllerSpec,
    namespace: str,
    folder: Path,
    client: throttled_client.ThrottledClient,
    watch_api: reflector.WatchApi,
) -> backend.Backend:
    """Return where kwok should run: pods of a StatefulSet, or local processes."""
    name = statefulset.from_spec(spec, namespace)
    return pod_backend.PodBackend(client, watch_api, name) if name else backend.LocalBackend(folder)


def must_move(spec: KwokControllerSpec, namespace: str, running: supervisor.Supervisor) -> bool:
    """Return whether kwok should run in another backend."""
    name = statefulset.from_spec(spec, namespace)
    return running.backend.name != (str(name) if name else "")


def own_holders(spec: KwokControllerSpec, namespace: str, folder: Path) -> foreign_controllers.IsOwnHolder:
    """Return a predicate for the lease holders that are our kwok."""
    identities, name = supervisor.identities(folder), statefulset.from_spec(spec, namespace)
    return lambda holder: holder in identities or (name is not None and name.holds(holder))
