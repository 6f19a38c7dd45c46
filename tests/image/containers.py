"""Runs processes of the image as the Deployment in deploy/base does; see container_init.py."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from ruamel.yaml import YAML

from tests.harness import daemon_process, waiting
from tests.image import buildah

BASE = Path(__file__).parents[2] / "deploy/base"
OVERLAYS = BASE.with_name("overlays")
RUN_S = 120
# Only the loopback network is shared with the host; child processes end with it.
_ISOLATE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", sys.executable, "-IS")
_INSIDE = Path(__file__).with_name("container_init.py")


@dataclass(frozen=True)
class Image:
    """The image and its mounted files."""

    name: str
    root: Path

    @property
    def config(self) -> dict[str, Any]:
        """Its configuration."""
        return buildah.config(self.name)

    def run(self, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401  # as Process has it
        """Run a program of the image; return its result."""
        process = Process(self, command, **options).start()
        with process:
            out, err = process.communicate(timeout=RUN_S)
        return subprocess.CompletedProcess(command, process.returncode, out, err)


@dataclass(frozen=True)
class Process:
    """A program of the image with its environment and folders."""

    image: Image
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, Path] = field(default_factory=dict)
    """Read-only host folders by mount path."""
    empty: Sequence[str] = ("/tmp", "/var/lib/kwokfleet")  # noqa: S108  # of the image
    user: int = 65532

    def start(self) -> "subprocess.Popen[str]":
        """Start it."""
        config = self.image.config
        spec = {
            "root": str(self.image.root),
            "folder": config["WorkingDir"],
            "user": self.user,
            "command": list(self.command),
            "environment": dict(variable.split("=", 1) for variable in config["Env"]) | dict(self.environment),
            "folders": {target: str(source) for target, source in self.folders.items()},
            "empty": list(self.empty),
        }
        pipe = subprocess.PIPE
        command = [*_ISOLATE, str(_INSIDE), json.dumps(spec)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)


class Daemon(daemon_process.DaemonProcess):
    """A daemon in a pod."""

    @property
    def inner(self) -> psutil.Process:
        """The process with pid 1 in its namespace."""
        return waiting.until(lambda: psutil.Process(self.process.pid).children())[0]

    def facts(self) -> dict[str, str]:
        """Return /proc/PID/status: user, capabilities and more."""
        lines = Path(f"/proc/{self.inner.pid}/status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def stop(self) -> int:
        """Stop it with SIGTERM; return its exit code."""
        if self.process.poll() is None:
            self.inner.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(daemon_process.STOP_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()


@dataclass(frozen=True)
class Pod:
    """The container of the Deployment, with the additions of a kubelet and of the user."""

    image: Image
    environment: Mapping[str, str]
    folders: Mapping[str, Path]
    overlay: str = ""
    """Overlay with the arguments; empty for the base."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Flags with a replaced value."""

    @contextmanager
    def running(self) -> Iterator[Daemon]:
        """Run it, on a free port, until the block ends."""
        daemon = Daemon(self._process().start())
        with daemon.process:
            try:
                yield daemon
            except BaseException as exc:
                exc.add_note("log of the pod:\n" + "\n".join(daemon.lines[-40:]))
                raise
            finally:
                daemon.stop()

    def _process(self) -> Process:
        pod = _pod(BASE)
        [container] = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        empty = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
        return Process(
            self.image,
            [*self.image.config["Entrypoint"], *self._arguments()],
            environment=_variables(container["env"]) | dict(self.environment),
            folders=self.folders,
            empty=[mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] in empty],
            user=pod["securityContext"]["runAsUser"],
        )

    def _arguments(self) -> list[str]:
        [container] = _pod(OVERLAYS / self.overlay if self.overlay else BASE)["containers"]
        ours = {"--listen": "127.0.0.1:0", **self.flags}
        flags = [argument.partition("=")[0] for argument in container["args"]]
        assert set(ours) <= set(flags), "a changed flag must exist"
        return [
            f"{flag}={ours[flag]}" if flag in ours else argument
            for flag, argument in zip(flags, container["args"], strict=True)
        ]


def _pod(folder: Path) -> dict[str, Any]:
    spec: dict[str, Any] = YAML(typ="safe").load(folder / "deployment.yaml")["spec"]["template"]["spec"]
    return spec


def _variables(variables: list[dict[str, Any]]) -> dict[str, str]:
    """Return the environment of a container."""
    facts = {"metadata.name": "kwokfleet-0", "metadata.namespace": "kwokfleet"}
    return {
        variable["name"]: variable["value"]
        if "value" in variable
        else facts[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        for variable in variables
    }


def is_read_only(pid: int, path: str) -> bool:
    """Return whether a path is mounted read-only for a process."""
    return bool(os.statvfs(f"/proc/{pid}/root{path}").f_flag & os.ST_RDONLY)
