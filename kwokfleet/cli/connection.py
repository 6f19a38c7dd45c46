"""Cluster options, the first connection, and the informer of one-shot commands."""

import time
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kwokfleet import errors
from kwokfleet.cli import output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kwokfleet.kube import client, throttled_client
    from kwokfleet.kube.informer import informer
    from kwokfleet.kube.requests import Kind, Request, Response

BUSY = HTTPStatus.TOO_MANY_REQUESTS
FIRST_RESPONSE_S, RETRY_S = 3.0, 0.2
"""Time limit for the first response. It is short, because the address may be wrong."""
LIST_S = 60.0
"""Time limit for the first list of all managed objects."""

Context = Annotated[str | None, typer.Option(help="Kubeconfig context; default: the current context.")]
Kubeconfig = Annotated[Path | None, typer.Option(help="Path of the kubeconfig. [env: KUBECONFIG, else ~/.kube/config]")]


def connect(context: str | None, kubeconfig: Path | None) -> "client.KubeClient":
    """Return a client of the cluster; raise if the API server does not respond."""
    from kwokfleet.kube import client, requests

    api = client.connect(context, kubeconfig)
    response = _first_response(api, requests.Request("GET", "/version"))
    # A busy API server (429) is reachable; later requests are retried.
    if HTTPStatus.BAD_REQUEST <= response.status < HTTPStatus.INTERNAL_SERVER_ERROR and response.status != BUSY:
        raise client.rejection_error(api, response, "get its version")
    return api


def _first_response(api: "client.KubeClient", request: "Request") -> "Response":
    """Send a request, and retry for a moment: a restarting API server accepts connections and drops them."""
    from kwokfleet.kube import client

    start, reported = time.monotonic(), False
    while True:
        try:
            return api.send(request, timeout_s=client.CONNECT_TIMEOUT_S)
        except errors.UnreachableError as error:
            if time.monotonic() - start > FIRST_RESPONSE_S:
                raise
            if not reported:
                output.print_line(f"note: {error}; retrying for {FIRST_RESPONSE_S:g} s")
            reported = True
            time.sleep(RETRY_S)


@contextmanager
def connect_throttled(
    context: str | None, kubeconfig: Path | None, retry_timeout_s: float | None = None
) -> "Iterator[throttled_client.ThrottledClient]":
    """Return a client with retries and limits; close it when the block ends."""
    import threading

    from kwokfleet.kube import throttled_client

    api, stop = connect(context, kubeconfig), threading.Event()
    limits = throttled_client.ClientLimits(retry_timeout_s=retry_timeout_s or throttled_client.RETRY_TIMEOUT_S)
    try:
        yield throttled_client.ThrottledClient(api, limits, stop)
    finally:
        stop.set()
        api.close()


@contextmanager
def run_informer(api: "client.KubeClient", kinds: "tuple[Kind, ...] | None" = None) -> "Iterator[informer.Informer]":
    """Watch managed objects until the block ends. Logs go to standard error, away from results."""
    from kwokfleet.kube import requests
    from kwokfleet.kube.informer import informer

    output.start_logging()
    try:
        with informer.Informer(api, kinds or requests.MANAGED_KINDS) as running_informer:
            yield running_informer
    finally:
        api.close()


def wait_until_listed(running_informer: "informer.Informer") -> "informer.CacheView":
    """Wait for the first list of every kind; raise if no kind can be listed."""
    view = running_informer.wait_until_synced(LIST_S)
    if len(view.unknown) == len(view.versions):
        raise errors.ClusterError(
            f"cannot list any objects: {next(iter(view.unknown.values()))}",
            hint="check kubectl auth can-i list nodes; a diff needs only read access",
        )
    return view
