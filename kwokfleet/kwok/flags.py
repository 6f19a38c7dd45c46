"""The kwok controller, purely: its flags and configuration, its log lines, how it ends, and when it is started again.

Built for how kwok really behaves. It reads its configuration once, so whatever is in it needs a
restart; it logs JSON and, from libraries below it, plain lines; it ends with 1 for everything, so
that only its last words tell a wrong configuration from an API server that is away.
"""

import hashlib
import re
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
"""Variables of a pod: which of its StatefulSet it is, and its address."""
POD_CONFIG, POD_PORT = "/etc/kwok/kwok.yaml", 10247
STAGE, METRIC = "Stage", "Metric"
DEBUG_KINDS = (
    "Attach", "ClusterAttach", "Exec", "ClusterExec", "Logs", "ClusterLogs", "PortForward", "ClusterPortForward",
)  # fmt: skip
"""What lets kubectl logs, exec, attach and port-forward reach fake pods."""

_LEVELS = {"debug": "DEBUG", "info": "INFO", "warning": "WARN", "error": "ERROR"}
_KLOG = re.compile(r"([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ ([^\]]+)\] (.*)", re.DOTALL)
_KLOG_LEVELS = {"I": "info", "W": "warning", "E": "error", "F": "error"}
_JSON_LEVELS = {"DEBUG": "debug", "INFO": "info", "WARN": "warning", "ERROR": "error"}
_MOST_WORDS = 2000


def config_file(
    spec: KwokControllerSpec, shard: sharding.ShardSpec, documents: Sequence[Manifest], kinds: Sequence[str] = ()
) -> str:
    """Return the configuration file of one process: JSON is YAML, document by document."""
    options: dict[str, Any] = {
        "podPlayStageParallelism": spec.parallelism.pods,
        "nodePlayStageParallelism": spec.parallelism.nodes,
        "nodeLeaseParallelism": spec.parallelism.leases,
        "enableDebuggingHandlers": not set(DEBUG_KINDS).isdisjoint(kinds),
        "enableProfilingHandler": False,
    }
    first = {"apiVersion": CONFIG_API_VERSION, "kind": "KwokConfiguration", "options": options}
    kept = [each for each in documents if shard.index == 0 or _is_per_node(each)]
    return "".join(f"---\n{orjson.dumps(each, option=orjson.OPT_SORT_KEYS).decode()}\n" for each in (first, *kept))


def _is_per_node(document: Manifest) -> bool:
    """Return whether every shard needs a document: kinds other than nodes and pods belong to the first alone."""
    if document.get("kind") != STAGE:
        return True
    return (document["spec"].get("resourceRef") or {}).get("kind") in ("Node", "Pod")


def arguments(spec: KwokControllerSpec, shard: sharding.ShardSpec, kinds: Sequence[str]) -> list[str]:
    """Return the flags of one process, but for those that name its files and its port."""
    selectors = _managed(spec, "" if shard.drives_all else shard.name)
    return _flags(spec, spec.node_ip, spec.port + shard.index if spec.port else None, selectors, kinds)


def pod_arguments(spec: KwokControllerSpec, kinds: Sequence[str]) -> list[str]:
    """Return the flags of every pod of a StatefulSet: what tells one from another are variables of its own."""
    address = f"$({POD_IP})" if spec.port else spec.node_ip
    flags = _flags(spec, address, spec.port, _managed(spec, f"$({POD_INDEX})"), kinds)
    return [*flags, f"--config={POD_CONFIG}", f"--server-address=0.0.0.0:{spec.port or POD_PORT}"]


def _flags(
    spec: KwokControllerSpec, address: str, port: int | None, selectors: Sequence[str], kinds: Sequence[str]
) -> list[str]:
    lease = int(spec.lease_duration / timedelta(seconds=1))
    flags = [
        f"--cidr={spec.cidr}",
        f"--node-ip={address}",
        f"--node-lease-duration-seconds={lease}",
        f"-v={_LEVELS[spec.log_level]}",
        *([f"--node-port={port}"] if port else []),
        *selectors,
    ]
    # A kind that is followed in the cluster must not stand in the file, and the other way round.
    return flags + ([f"--enable-crds={','.join((STAGE, *kinds))}"] if spec.stages_as == "resources" else [])


class ServerAddress(NamedTuple):
    """Where a process answers."""

    host: str
    port: int
    """0 for any that is free."""

    @property
    def text(self) -> str:
        """How it is written."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def near(self) -> "ServerAddress":
        """Where we find it: who listens everywhere listens on loopback, too."""
        return ServerAddress({"0.0.0.0": LOOPBACK, "::": "::1"}.get(self.host, self.host), self.port)  # noqa: S104


def server_address(spec: KwokControllerSpec, shard: sharding.ShardSpec) -> ServerAddress:
    """Return where one process answers: nobody has to log in there, so on loopback unless the files say otherwise."""
    if spec.port is None:
        return ServerAddress(LOOPBACK, 0)
    return ServerAddress(spec.listen or spec.node_ip, spec.port + shard.index)


def static_digest(desired: Iterable[Manifest]) -> str:
    """Return a digest of what kwok reads once though it follows the kind: how a Metric is shown, it never changes."""
    metrics = sorted(orjson.dumps(each, option=orjson.OPT_SORT_KEYS) for each in desired if each["kind"] == METRIC)
    return hashlib.blake2b(b"\n".join(metrics), digest_size=8).hexdigest() if metrics else ""


def _managed(spec: KwokControllerSpec, shard: str) -> list[str]:
    labels = [spec.manage.label] if spec.manage.label else []
    if shard:
        labels.append(f"{objects.SHARD}={shard}")
    flags = [f"--manage-nodes-with-label-selector={','.join(labels)}"] if labels else []
    if not spec.manage.label:
        flags.append(f"--manage-nodes-with-annotation-selector={spec.manage.annotation}")
    return flags
