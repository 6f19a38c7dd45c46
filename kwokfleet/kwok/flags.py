"""Flags and configuration file of kwok.

kwok reads its configuration once, so any change of it needs a restart.
"""

import hashlib
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import orjson

from kwokfleet.api.kwok_controller import LOOPBACK, KwokControllerSpec
from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest
from kwokfleet.kwok import sharding

CONFIG_API_VERSION = "config.kwok.x-k8s.io/v1alpha1"
POD_INDEX, POD_IP = "POD_INDEX", "POD_IP"
"""Environment variables of a pod: its index in the StatefulSet, and its address."""
POD_CONFIG, POD_PORT = "/etc/kwok/kwok.yaml", 10247
STAGE, METRIC = "Stage", "Metric"
DEBUG_KINDS = (
    "Attach", "ClusterAttach", "Exec", "ClusterExec", "Logs", "ClusterLogs", "PortForward", "ClusterPortForward",
)  # fmt: skip
"""Kinds behind kubectl logs, exec, attach and port-forward for fake pods."""

_LEVELS = {"debug": "DEBUG", "info": "INFO", "warning": "WARN", "error": "ERROR"}


def config_file(
    spec: KwokControllerSpec, shard: sharding.ShardSpec, documents: Sequence[Manifest], kinds: Sequence[str] = ()
) -> str:
    """Return the configuration file of a shard, with JSON documents, which are valid YAML."""
    options: dict[str, Any] = {
        "podPlayStageParallelism": spec.parallelism.pods,
        "nodePlayStageParallelism": spec.parallelism.nodes,
        "nodeLeaseParallelism": spec.parallelism.leases,
        "enableDebuggingHandlers": not set(DEBUG_KINDS).isdisjoint(kinds),
        "enableProfilingHandler": False,
    }
    configuration = {"apiVersion": CONFIG_API_VERSION, "kind": "KwokConfiguration", "options": options}
    own = [document for document in documents if shard.index == 0 or _is_per_node(document)]
    return "".join(f"---\n{_sorted_json(document).decode()}\n" for document in (configuration, *own))


def _sorted_json(document: Manifest) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def _is_per_node(document: Manifest) -> bool:
    """Return whether every shard needs a document; Stages of kinds other than nodes and pods are for shard 0 only."""
    if document.get("kind") != STAGE:
        return True
    return (document["spec"].get("resourceRef") or {}).get("kind") in ("Node", "Pod")


def arguments(spec: KwokControllerSpec, shard: sharding.ShardSpec, kinds: Sequence[str]) -> list[str]:
    """Return the flags of a local process, without those of its files and its address."""
    selectors = _node_selectors(spec, "" if shard.drives_all else shard.name)
    return _flags(spec, spec.node_ip, spec.port + shard.index if spec.port else None, selectors, kinds)


def pod_arguments(spec: KwokControllerSpec, kinds: Sequence[str]) -> list[str]:
    """Return the flags of all pods of a StatefulSet; environment variables are the only difference between pods."""
    address = f"$({POD_IP})" if spec.port else spec.node_ip
    flags = _flags(spec, address, spec.port, _node_selectors(spec, f"$({POD_INDEX})"), kinds)
    return [*flags, f"--config={POD_CONFIG}", f"--server-address=0.0.0.0:{spec.port or POD_PORT}"]


def _flags(
    spec: KwokControllerSpec, address: str, port: int | None, selectors: Sequence[str], kinds: Sequence[str]
) -> list[str]:
    flags = [
        f"--cidr={spec.cidr}",
        f"--node-ip={address}",
        f"--node-lease-duration-seconds={int(spec.lease_duration / timedelta(seconds=1))}",
        f"-v={_LEVELS[spec.log_level]}",
        *([f"--node-port={port}"] if port else []),
        *selectors,
    ]
    # A kind is either watched in the cluster or in the configuration file; kwok rejects both.
    return flags + ([f"--enable-crds={','.join((STAGE, *kinds))}"] if spec.stages_as == "resources" else [])


def _node_selectors(spec: KwokControllerSpec, shard: str) -> list[str]:
    labels = [spec.manage.label] if spec.manage.label else []
    if shard:
        labels.append(f"{objects.SHARD}={shard}")
    flags = [f"--manage-nodes-with-label-selector={','.join(labels)}"] if labels else []
    if not spec.manage.label:
        flags.append(f"--manage-nodes-with-annotation-selector={spec.manage.annotation}")
    return flags


class ServerAddress(NamedTuple):
    """Address of kwok's server."""

    host: str
    port: int
    """0 for any free port."""

    @property
    def text(self) -> str:
        """Host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def local(self) -> "ServerAddress":
        """The address to connect to from this machine; loopback if it listens on all interfaces."""
        return ServerAddress({"0.0.0.0": LOOPBACK, "::": "::1"}.get(self.host, self.host), self.port)  # noqa: S104


def server_address(spec: KwokControllerSpec, shard: sharding.ShardSpec) -> ServerAddress:
    """Return the address of a local process; loopback by default, because the server has no authentication."""
    if spec.port is None:
        return ServerAddress(LOOPBACK, 0)
    return ServerAddress(spec.listen or spec.node_ip, spec.port + shard.index)


def static_digest(manifests: Iterable[Manifest]) -> str:
    """Return a digest of the Metrics: kwok watches them, but never applies a change."""
    metrics = sorted(_sorted_json(manifest) for manifest in manifests if manifest["kind"] == METRIC)
    return hashlib.blake2b(b"\n".join(metrics), digest_size=8).hexdigest() if metrics else ""
