"""Processes of the image, run as the Deployment in deploy/base has them run: see container_init.py."""

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
# Nothing of this machine gets in but its loopback; what it starts ends with it.
_ISOLATE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", sys.executable, "-IS")
_INSIDE = Path(__file__).with_name("container_init.py")


@dataclass(frozen=True)
class Image:
    """The image, and a place where its files lie."""

    name: str
    root: Path

    @property
    def config(self) -> dict[str, Any]:
        """How its process is run."""
        return buildah.config(self.name)

    def run(self, *command: str, **given: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401  # as Process has it
        """Run a program of the image and return how it ended."""
        process = Process(self, command, **given).start()
        with process:
            out, err = process.communicate(timeout=RUN_S)
        return subprocess.CompletedProcess(command, process.returncode, out, err)


@dataclass(frozen=True)
class Process:
    """What to run."""

    image: Image
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, Path] = field(default_factory=dict)
    """Folders of this machine by where they are to be seen, read-only."""
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
            "environment": dict(each.split("=", 1) for each in config["Env"]) | dict(self.environment),
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
        """The process itself, which is number 1 to itself."""
        return waiting.until(lambda: psutil.Process(self.process.pid).children())[0]

    def facts(self) -> dict[str, str]:
        """Return what the kernel says of the process: user, capabilities and the like."""
        lines = Path(f"/proc/{self.inner.pid}/status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def stop(self) -> int:
        """End it as a kubelet would; return its exit code."""
        if self.process.poll() is None:
            self.inner.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(daemon_process.STOP_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()  # and what it started with it


@dataclass(frozen=True)
class Pod:
    """How the Deployment has the image run, and what a kubelet and its user add."""

    image: Image
    environment: Mapping[str, str]
    folders: Mapping[str, Path]
    overlay: str = ""
    """Whose arguments are used, the base's if empty."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Flags that get another value."""

    @contextmanager
    def running(self) -> Iterator[Daemon]:
        """Run it, on a free port, until the block ends."""
        made = Daemon(self._process().start())
        with made.process:
            try:
                yield made
            except BaseException as exc:
                exc.add_note("log of the pod:\n" + "\n".join(made.lines[-40:]))
                raise
            finally:
                made.stop()

    def _process(self) -> Process:
        pod = _pod(BASE)
        [container] = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        empty = {each["name"] for each in pod["volumes"] if "emptyDir" in each}
        return Process(
            self.image,
            [*self.image.config["Entrypoint"], *self._arguments()],
            environment=_variables(container["env"]) | dict(self.environment),
            folders=self.folders,
            empty=[each["mountPath"] for each in container["volumeMounts"] if each["name"] in empty],
            user=pod["securityContext"]["runAsUser"],
        )

    def _arguments(self) -> list[str]:
        [container] = _pod(OVERLAYS / self.overlay if self.overlay else BASE)["containers"]
        ours = {"--listen": "127.0.0.1:0", **self.flags}
        flags = [each.partition("=")[0] for each in container["args"]]
        assert set(ours) <= set(flags), "a flag that is to be changed must be there"
        return [
            f"{flag}={ours[flag]}" if flag in ours else each
            for flag, each in zip(flags, container["args"], strict=True)
        ]


def _pod(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(folder / "deployment.yaml")["spec"]["template"]["spec"]
    return found


def _variables(given: list[dict[str, Any]]) -> dict[str, str]:
    """Return a container's variables, as they are for a pod of our name."""
    facts = {"metadata.name": "kwokfleet-0", "metadata.namespace": "kwokfleet"}
    return {
        each["name"]: each["value"] if "value" in each else facts[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in given
    }


def is_read_only(pid: int, path: str) -> bool:
    """Return whether what a process sees at a path is mounted read-only."""
    return bool(os.statvfs(f"/proc/{pid}/root{path}").f_flag & os.ST_RDONLY)
