"""What commands that talk to a cluster share: options, and a mirror that has listed what is ours."""

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

    from kwokfleet.kube import client
    from kwokfleet.kube.informer import informer
    from kwokfleet.kube.requests import Kind, Request, Response

BUSY = HTTPStatus.TOO_MANY_REQUESTS
RESTART_S, PAUSE_S = 3.0, 0.2
"""How long nobody may answer at first. Later there is more patience; but here the address may be wrong."""
LIST_S = 60.0
"""How long the first list of all our objects may take."""

Context = Annotated[
    str | None, typer.Option(help="The kubeconfig context to use; the current one without it.", show_default=False)
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(help="The kubeconfig to use. [env: KUBECONFIG, else ~/.kube/config]", show_default=False),
]


def connected(context: str | None, kubeconfig: Path | None) -> "client.KubeClient":
    """Return a way to the cluster; raise if nobody answers there."""
    from kwokfleet.kube import client, requests

    api = client.connect(context, kubeconfig)
    answer = _first_answer(api, requests.Request("GET", "/version"))
    # Whoever is too busy for an answer is there; what follows is asked with more patience.
    if HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR and answer.status != BUSY:
        raise client.rejection_error(api, answer, "tell its version")
    return api


def _first_answer(api: "client.KubeClient", request: "Request") -> "Response":
    """Ask, and for a moment ask again: an API server that restarts takes connections and drops them."""
    from kwokfleet.kube import client

    began, told = time.monotonic(), False
    while True:
        try:
            return api.send(request, timeout_s=client.CONNECT_TIMEOUT_S)
        except errors.UnreachableError as error:
            if time.monotonic() - began > RESTART_S:
                raise
            if not told:
                output.print_line(f"note: {error}; trying again for {RESTART_S:g} s")
            told = True
            time.sleep(PAUSE_S)


@contextmanager
def following(api: "client.KubeClient", kinds: "tuple[Kind, ...] | None" = None) -> "Iterator[informer.Informer]":
    """Follow our objects from here to the end of the block; what the mirror logs never meets results."""
    from kwokfleet.kube import requests
    from kwokfleet.kube.informer import informer

    output.start_logging()
    try:
        with informer.Informer(api, kinds or requests.MANAGED_KINDS) as follower:
            yield follower
    finally:
        api.close()


def known(follower: "informer.Informer") -> "informer.CacheView":
    """Wait until it is known what there is; raise if that cannot be found out at all."""
    view = follower.wait_until_known(LIST_S)
    if len(view.unknown) == len(view.versions):
        raise errors.ClusterError(
            f"nothing of the cluster is known: {next(iter(view.unknown.values()))}",
            hint="see kubectl auth can-i list nodes; read-only rights are enough for a diff",
        )
    return view
