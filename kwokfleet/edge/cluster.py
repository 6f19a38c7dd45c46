"""The cluster behind a kubeconfig or, in a pod, behind its service account: requests out, plain values in."""

from http import HTTPStatus
from typing import Any

import orjson
import urllib3
from kubernetes import client, config

from kwokfleet import errors
from kwokfleet.core.objects import Manifest

PAGE = 500
TIMEOUT_S = 30.0


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
    try:
        try:
            config.load_kube_config(context=context, client_configuration=configuration)  # type: ignore[no-untyped-call]
        except config.ConfigException:
            if context is not None:
                raise
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise errors.ClusterError(
            f"there is no usable kubeconfig: {error}",
            hint="set KUBECONFIG, name a context that is in it, or run `kwokfleet cluster up`",
        ) from error
    configuration.retries = False
    return client.ApiClient(configuration)


def _get(api: client.ApiClient, path: str, query: dict[str, Any]) -> Manifest:
    what = path.rpartition("/")[2]
    host = api.configuration.host
    try:
        request = api.param_serialize("GET", path, query_params=list(query.items()), auth_settings=["BearerToken"])
        response = api.call_api(*request[:3], _request_timeout=TIMEOUT_S)
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
