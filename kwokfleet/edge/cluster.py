"""The cluster behind a kubeconfig or, in a pod, behind its service account: requests out, plain values in."""

import os
from http import HTTPStatus
from pathlib import Path
from typing import Any

import orjson
import urllib3
from kubernetes import client, config

from kwokfleet import errors
from kwokfleet.core.objects import Manifest

PAGE = 500
CONNECT_S, ANSWER_S = 5.0, 30.0
KUBECONFIG = "~/.kube/config"
"""Where kubeconfigs are, unless the variable of that name says otherwise."""


def live_nodes(context: str | None) -> list[Manifest]:
    """Return all nodes of the cluster that a kubeconfig context names, or of the current one."""
    api = _api(context)
    found: list[Manifest] = []
    token = ""
    while True:
        page = _get(api, "/api/v1/nodes", {"limit": PAGE, "continue": token} if token else {"limit": PAGE})
        found += [{"apiVersion": "v1", "kind": "Node", **item} for item in page.get("items") or []]
        token = (page.get("metadata") or {}).get("continue") or ""
        if not token:
            return found


def _api(context: str | None) -> client.ApiClient:
    configuration = client.Configuration()
    location = os.environ.get("KUBECONFIG") or KUBECONFIG
    in_pod = context is None and "KUBERNETES_SERVICE_HOST" in os.environ and not _exists(location)
    try:
        if in_pod:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            config.load_kube_config(location, context, client_configuration=configuration)  # type: ignore[no-untyped-call]
    except Exception as error:  # the client lets out whatever it stumbles over in such a file
        what = "the pod's service account" if in_pod else f"the kubeconfig {location}"
        why = " ".join(str(error).split()) if _exists(location) or in_pod else "there is no such file"
        raise errors.ClusterError(
            f"{what} cannot be used: {why}",
            hint="set KUBECONFIG, name a context that is in it, or run `kwokfleet cluster up`",
        ) from error
    configuration.retries = False
    if not configuration.verify_ssl:  # the kubeconfig says so; kubectl does not warn of it either
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    return client.ApiClient(configuration)


def _exists(location: str) -> bool:
    return any(Path(path).expanduser().is_file() for path in location.split(os.pathsep) if path)


def _get(api: client.ApiClient, path: str, query: dict[str, Any]) -> Manifest:
    what = path.rpartition("/")[2]
    host = api.configuration.host
    try:
        request = api.param_serialize("GET", path, query_params=list(query.items()), auth_settings=["BearerToken"])
        response = api.call_api(*request[:3], _request_timeout=(CONNECT_S, ANSWER_S))
        content = response.read()  # type: ignore[no-untyped-call]
    except urllib3.exceptions.HTTPError as error:
        raise errors.ClusterError(
            f"the API server at {host} does not answer: {type(error).__name__}",
            hint="see `kubectl cluster-info`; is the right context set?",
        ) from error
    if response.status != HTTPStatus.OK:
        raise errors.ClusterError(
            f"the API server at {host} refused to list {what}: {response.status} {response.reason}",
            hint=f"see `kubectl auth can-i list {what}`",
        )
    read: Manifest = orjson.loads(content)
    return read
