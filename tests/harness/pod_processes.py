"""Runs one pod as local processes: volumes as folders, containers, probes, status.

Volume paths are rewritten in the command, arguments and environment of a container. Programs get the service account
by `KUBECONFIG`, because all pods share /var/run/secrets.
"""

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kwokfleet import errors
from kwokfleet.kube import client
from kwokfleet.kube.requests import Request
from tests.harness import hostname_exec, pod_volumes

Manifest = dict[str, Any]
TICK_S = 0.1
REFRESH_TICKS = 10
MESSAGE_CHARACTERS = 2048
RESTART_DELAY_S, MAX_RESTART_DELAY_S = 0.2, 5.0
STRATEGIC = "application/strategic-merge-patch+json"
_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


@dataclass(frozen=True)
class HostContext:
    """API client, folder, programs and paths of a pod's host."""

    api: client.KubeClient
    folder: Path
    programs: Mapping[str, Sequence[str]]
    paths: Mapping[str, str]


@dataclass
class ContainerProcess:
    """One container: its current process and status."""

    spec: Manifest
    command: list[str]
    environment: dict[str, str]
    folder: Path
    host: str
    starts: int = 0
    process: subprocess.Popen[bytes] | None = None
    ready: bool = False
    started_up: bool = False
    failures: int = 0
    """Consecutive failures of the liveness or startup probe."""
    started_at: str = ""
    last: Manifest = field(default_factory=dict)
    """Exit state of the last process."""
    next_start: float = 0.0
    next_probe: float = 0.0

    @property
    def name(self) -> str:
        """Name of the container."""
        return str(self.spec["name"])

    @property
    def pid(self) -> int:
        """Process id; the process must run."""
        assert self.process is not None, f"{self.name} was never started"
        assert self.process.poll() is None, f"{self.name} does not run"
        return self.process.pid

    def start(self) -> None:
        """Start a process with a new log file."""
        log = self.folder / f"{self.name}.{self.starts}.log"
        self.starts += 1
        self.ready, self.started_up, self.failures = False, "startupProbe" not in self.spec, 0
        self.started_at, self.next_probe = _now(), 0.0
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-P", hostname_exec.__file__, str(os.getpid()), self.host, *self.command],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to a running process."""
        if self.process is not None and self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def restart_or_probe(self, address: str) -> bool:
        """Restart or probe the process; return whether its status changed."""
        before = (self.ready, self.starts, self.process and self.process.poll())
        if self.process is None or self.process.poll() is not None:
            self._restart()
        elif time.monotonic() >= self.next_probe:
            self._probe(address)
        return before != (self.ready, self.starts, self.process and self.process.poll())

    def _restart(self) -> None:
        if self.process is not None and not self.next_start:
            self.ready = False
            times = {"startedAt": self.started_at, "finishedAt": _now()}
            self.last = {"exitCode": self.process.returncode % 256, "message": self._termination_message(), **times}
            self.next_start = time.monotonic() + min(MAX_RESTART_DELAY_S, RESTART_DELAY_S * 2 ** (self.starts - 1))
        if time.monotonic() >= self.next_start:
            self.next_start = 0.0
            self.start()

    def _termination_message(self) -> str:
        """Return the end of its log, if the termination message policy asks for it."""
        if not self.process or not self.process.returncode or "terminationMessagePolicy" not in self.spec:
            return ""
        return (self.folder / f"{self.name}.{self.starts - 1}.log").read_text(errors="replace")[-MESSAGE_CHARACTERS:]

    def _probe(self, address: str) -> None:
        """Probe once. Periods, thresholds and ports are respected, delays are not."""
        kind = "livenessProbe" if self.started_up else "startupProbe"
        self.next_probe = time.monotonic() + min(self.spec.get(probe, {}).get("periodSeconds", 1) for probe in _PROBES)
        alive = self._probe_succeeds(kind, address)
        self.failures = 0 if alive else self.failures + 1
        self.started_up |= alive
        self.ready = self.started_up and self._probe_succeeds("readinessProbe", address)
        if self.failures >= self.spec.get(kind, {}).get("failureThreshold", 3):
            self.end()

    def _probe_succeeds(self, kind: str, address: str) -> bool:
        get = self.spec.get(kind, {}).get("httpGet")
        if get is None:
            return True
        ports = {port.get("name"): port["containerPort"] for port in self.spec.get("ports", ())}
        url = f"http://{address}:{ports.get(get['port'], get['port'])}{get.get('path', '/')}"
        try:
            with urllib.request.urlopen(url, timeout=self.spec[kind].get("timeoutSeconds", 1)) as response:
                return bool(200 <= response.status < 400)
        except (urllib.error.URLError, OSError, http.client.InvalidURL):  # InvalidURL: unknown port name
            return False

    def status(self) -> Manifest:
        """Return its container status."""
        running = self.process is not None and self.process.poll() is None
        state = {"running": {"startedAt": self.started_at}} if running else {"waiting": {"reason": "CrashLoopBackOff"}}
        return {
            "name": self.name, "image": self.spec["image"], "imageID": "", "ready": self.ready and running,
            "restartCount": max(0, self.starts - 1), "started": running, "state": state,
            "lastState": {"terminated": self.last} if self.last else {},
        }  # fmt: skip


_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


class PodProcess(threading.Thread):
    """Runs one pod until it is deleted."""

    def __init__(self, manifest: Manifest, address: str, host: HostContext) -> None:
        super().__init__(name=manifest["metadata"]["name"], daemon=True)
        self.namespace, self.address, self._host = manifest["metadata"]["namespace"], address, host
        self.containers: list[ContainerProcess] = []
        self._manifest: Manifest | None = manifest
        self._written_status: Manifest = {}
        self._powered_off = False
        self._path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    def update(self, manifest: Manifest | None) -> None:
        """Update the manifest; None after deletion."""
        self._manifest = manifest

    def power_off(self) -> None:
        """Kill it without reporting, as in a power failure."""
        self._powered_off = True

    def container(self, name: str = "") -> ContainerProcess:
        """Return the first container with a name prefix."""
        return next(container for container in self.containers if container.name.startswith(name))

    def logs(self) -> dict[str, str]:
        """Return the logs by file name."""
        files = sorted(self._host.folder.glob("*.log"))
        return {f"{self.name}/{file.name}": file.read_text(errors="replace") for file in files}

    def run(self) -> None:
        """Create volumes, run init containers, run and restart containers, stop them."""
        manifest = self._manifest
        if manifest is None:
            return
        volumes = pod_volumes.Volumes(self._host.api, self._host.folder, manifest)
        while not volumes.refresh() and self._is_desired():
            time.sleep(TICK_S)
        self.containers = [self._create_container(spec, manifest, volumes) for spec in manifest["spec"]["containers"]]
        self._initialize(
            [self._create_container(spec, manifest, volumes) for spec in manifest["spec"].get("initContainers", ())]
        )
        ticks = 0
        while self._is_desired():
            changed = [container.restart_or_probe(self.address) for container in self.containers]
            if any(changed) or not self._written_status:
                self._write_status()
            ticks += 1
            if ticks % REFRESH_TICKS == 0:
                volumes.refresh()
            time.sleep(TICK_S)
        self._end()

    def _is_desired(self) -> bool:
        exists = self._manifest is not None and not self._manifest["metadata"].get("deletionTimestamp")
        return exists and not self._powered_off

    def _initialize(self, containers: Sequence[ContainerProcess]) -> None:
        """Run init containers one after the other; restartPolicy Always makes a sidecar."""
        for container in containers:
            if container.spec.get("restartPolicy") == "Always":
                self.containers.append(container)
                continue
            while self._is_desired() and (container.process is None or container.process.poll() != 0):
                if container.process is None or container.process.poll() is not None:
                    container.start()
                time.sleep(TICK_S)
            container.end()

    def _end(self) -> None:
        """Terminate the processes, kill them after the grace period, and delete the pod."""
        metadata = {} if self._powered_off else (self._manifest or {}).get("metadata", {})
        deadline = time.monotonic() + metadata.get("deletionGracePeriodSeconds", 5)
        for container in self.containers:
            container.end()
        while time.monotonic() < deadline and any(
            container.process and container.process.poll() is None for container in self.containers
        ):
            time.sleep(TICK_S)
        for container in self.containers:
            container.end(signal.SIGKILL)
            if container.process is not None:
                container.process.wait()
        if metadata:
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
            with suppress(errors.ClusterError):
                self._host.api.send(Request("DELETE", self._path, json.dumps(options).encode()))

    def _write_status(self) -> None:
        """Write the pod status; a failure is retried with the next change."""
        containers = [container.status() for container in self.containers]
        ready = all(container["ready"] for container in containers)
        states = {"PodReadyToStartContainers": True, "Initialized": True, "ContainersReady": ready, "Ready": ready}
        conditions = [
            {
                "type": kind,
                "status": str(is_true),
                "lastTransitionTime": _now(),
                "reason": None if is_true else "ContainersNotReady",
            }
            for kind, is_true in states.items()
        ]
        status = {
            "phase": "Running", "podIP": self.address, "podIPs": [{"ip": self.address}], "hostIP": "127.0.0.1",
            "conditions": conditions, "containerStatuses": containers, "startTime": _now(),
        }  # fmt: skip
        with suppress(errors.ClusterError):
            body = json.dumps({"status": status}).encode()
            if self._host.api.send(Request("PATCH", f"{self._path}/status", body, STRATEGIC)).status == 200:
                self._written_status = status

    # start parameters of containers

    def _create_container(self, spec: Manifest, pod: Manifest, volumes: pod_volumes.Volumes) -> ContainerProcess:
        mounts = dict(self._host.paths) | {
            mount["mountPath"]: str(volumes.path(mount["name"]) / mount.get("subPath", ""))
            for mount in spec.get("volumeMounts", ())
        }
        environment = self._environment(spec, pod, volumes)

        mount_paths = "|".join(re.escape(path) for path in sorted(mounts, key=len, reverse=True))
        paths = re.compile(rf"(?<![\w/.-])(?:{mount_paths})(?=[/:,]|$)")

        def localize(text: str) -> str:
            text = _VARIABLE.sub(lambda match: environment.get(match[1], match[0]), text)
            text = paths.sub(lambda match: mounts[match[0]], text)  # in one step: a local folder may be below /tmp
            return text.replace("0.0.0.0", self.address)  # noqa: S104  # only the address of the pod

        folder = self._host.folder
        scratch = mounts.get("/tmp", str(folder))  # noqa: S108  # the pod's own
        variables = {"HOME": str(folder), "TMPDIR": scratch, "KWOK_WORKDIR": str(folder)}
        variables |= {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2]), "HOSTNAME": self.name}
        variables |= self._api_access(volumes, mounts)
        program, *more = spec.get("command") or [spec["image"].rpartition(":")[0] or spec["image"]]
        local_program = self._host.programs.get(program) or [shutil.which(program) or program]
        command = [*local_program, *map(localize, [*more, *spec.get("args", ())])]
        all_variables = variables | {name: localize(value) for name, value in environment.items()}
        return ContainerProcess(spec, command, all_variables, folder, self.name)

    def _environment(self, spec: Manifest, pod: Manifest, volumes: pod_volumes.Volumes) -> dict[str, str]:
        variables = volumes.all_values(spec.get("envFrom", ()))
        for variable in spec.get("env", ()):
            origin = variable.get("valueFrom", {})
            if "fieldRef" in origin:
                variables[variable["name"]] = self._field(origin["fieldRef"]["fieldPath"], pod)
            elif origin:
                variables[variable["name"]] = volumes.value(origin)
            else:
                text = variable.get("value", "")
                variables[variable["name"]] = _VARIABLE.sub(lambda match: variables.get(match[1], match[0]), text)
        return variables

    def _field(self, path: str, pod: Manifest) -> str:
        if match := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
            return str(pod["metadata"].get(match[1], {}).get(match[2], ""))
        own = {"status.podIP": self.address, "status.hostIP": "127.0.0.1"}
        section, _, key = path.partition(".")
        return own.get(path) or str(pod[section].get(key, ""))

    def _api_access(self, volumes: pod_volumes.Volumes, mounts: Mapping[str, str]) -> dict[str, str]:
        """Return the variables for access to the API server, with a kubeconfig for the pod's token file."""
        server = urlsplit(self._host.api.host)
        secrets = mounts.get(pod_volumes.SERVICE_ACCOUNT)
        variables = {"KUBERNETES_SERVICE_HOST": server.hostname or "", "KUBERNETES_SERVICE_PORT": str(server.port)}
        if secrets:
            variables["KUBECONFIG"] = str(volumes.write_kubeconfig(self._host.api.host, Path(secrets)))
        return variables


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
