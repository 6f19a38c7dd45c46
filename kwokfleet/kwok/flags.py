"""The kwok controller, purely: its flags and configuration, its log lines, how it ends, and when it is started again.

Built for how kwok really behaves. It reads its configuration once, so whatever is in it needs a
restart; it logs JSON and, from libraries below it, plain lines; it ends with 1 for everything, so
that only its last words tell a wrong configuration from an API server that is away.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

from kwokfleet.api.kwok_controller import LOOPBACK, KwokControllerSpec
from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest

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


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """One of several processes that share the nodes."""

    index: int = 0
    count: int = 1
    labelled: bool = False
    """Whether it drives only nodes that carry its label, even if it is the only one."""

    @property
    def name(self) -> str:
        """What it is called, also as the label's value."""
        return str(self.index)

    @property
    def drives_all(self) -> bool:
        """Whether it drives every node, whatever its label says."""
        return self.count == 1 and not self.labelled


def shard_spec(spec: KwokControllerSpec, index: int) -> ShardSpec:
    """Return one of the shards that the files ask for: pods of a StatefulSet are told apart by the label alone."""
    return ShardSpec(index, spec.shards, labelled=spec.stateful_set is not None)


def shard_of(node: str, count: int) -> int:
    """Return which shard drives a node: of more shards, only as many nodes move as the new one needs."""
    scores = (hashlib.blake2b(f"{number}/{node}".encode(), digest_size=8).digest() for number in range(count))
    return max(enumerate(scores), key=lambda each: each[1])[0]


def config_file(
    spec: KwokControllerSpec, shard: ShardSpec, documents: Sequence[Manifest], kinds: Sequence[str] = ()
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


def arguments(spec: KwokControllerSpec, shard: ShardSpec, kinds: Sequence[str]) -> list[str]:
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


def server_address(spec: KwokControllerSpec, shard: ShardSpec) -> ServerAddress:
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


# ----------------------------------------------------------------------------------------
# what it says


@dataclass(frozen=True, slots=True)
class LogLine:
    """One thing that kwok said."""

    level: str
    event: str
    keys: Mapping[str, Any]


def parse_log_line(text: str) -> LogLine:
    """Read a line of kwok's log, whoever below it wrote it."""
    if text.startswith("{"):
        try:
            said = orjson.loads(text)
        except orjson.JSONDecodeError:
            return LogLine("warning", text[:_MOST_WORDS], {})
        level = _JSON_LEVELS.get(str(said.pop("level", "")).partition("+")[0].partition("-")[0], "info")
        event = str(said.pop("msg", ""))
        return LogLine(level, event, {key: value for key, value in said.items() if key not in ("time", "source")})
    match = _KLOG.match(text)
    if match:
        return LogLine(_KLOG_LEVELS[match[1]], match[3][:_MOST_WORDS], {"source": match[2]})
    level = "error" if text.startswith(("panic:", "fatal error:", "goroutine ")) else "info"
    return LogLine(level, text[:_MOST_WORDS], {})


def last_error(texts: Iterable[str]) -> str:
    """Return the last thing it said that sounds like an error, or the last at all."""
    lines = [parse_log_line(text) for text in texts]
    bad = [each for each in lines if each.level == "error"] or lines
    if not bad:
        return "it said nothing"
    error = bad[-1].keys.get("err") or bad[-1].keys.get("error")
    return f"{bad[-1].event}: {error}" if error else bad[-1].event


class ExitReason(StrEnum):
    """Why a process ended."""

    ASKED = "asked"
    CONFIGURATION = "configuration"
    """It would end the same way again."""
    AWAY = "away"
    """The API server did not answer in time."""
    PORT = "port"
    KILLED = "killed"
    CRASHED = "crashed"


_AWAY = re.compile(
    "connection refused|no route to host|i/o timeout|TLS handshake timeout|EOF|context deadline exceeded"
    "|connection reset|server is currently unable|failed to wait for ready",
    re.IGNORECASE,
)
_CONFIGURATION = re.compile(
    "no stages found|invalid crd|unknown flag|invalid argument|no nodes are managed|conflicted with"
    "|failed to load|failed to parse|is enabled in CRDs|yaml|unmarshal|invalid CIDR",
    re.IGNORECASE,
)


def exit_reason(code: int, last_words: str, *, asked: bool) -> ExitReason:
    """Tell why a process ended, from its exit code and the end of its log."""
    if asked:
        return ExitReason.ASKED  # after a signal of ours it ends with 0 or 1, as it happens
    if code < 0:
        return ExitReason.KILLED
    if "address already in use" in last_words:
        return ExitReason.PORT
    if "panic:" in last_words or "fatal error:" in last_words:
        return ExitReason.CRASHED
    if _AWAY.search(last_words):
        return ExitReason.AWAY
    return ExitReason.CONFIGURATION if _CONFIGURATION.search(last_words) else ExitReason.CRASHED


# ----------------------------------------------------------------------------------------
# when it is started again

FIRST_RESTART_PAUSE_S, MAX_RESTART_PAUSE_S = 0.0, 30.0
STABLE_AFTER_S = 60.0
"""A process that has run for so long starts with a clean record."""
_STEP_S = 0.25


@dataclass(frozen=True, slots=True)
class RestartRecord:
    """What is remembered of a process that ends again and again."""

    restarts: int = 0
    in_a_row: int = 0

    def after(self, ran_s: float) -> "RestartRecord":
        """Return the record with one more ending."""
        return RestartRecord(self.restarts + 1, 1 if ran_s > STABLE_AFTER_S else self.in_a_row + 1)

    @property
    def pause_s(self) -> float:
        """How long to wait before the next start: not at all at first, twice as long each time from the third on."""
        if self.in_a_row <= 2:  # noqa: PLR2004 - one crash is nothing, two may be chance
            return FIRST_RESTART_PAUSE_S
        return min(_STEP_S * float(1 << min(self.in_a_row - 3, 16)), MAX_RESTART_PAUSE_S)
