"""Configuration and calls of kwokctl, which creates certificates and starts the components."""

import json
import os
import subprocess
import tempfile
from typing import Any

import structlog

from kwokfleet import errors, settings
from kwokfleet.embedded import binaries, ports, state, versions

log = structlog.get_logger()

_INFLIGHT, _QPS, _BURST = "3000", "5000", "10000"
_DEFAULT_ARGS = (
    # Priority and fairness stay on, as in a real cluster. The limits are higher than one machine can reach.
    ("kube-apiserver", "max-requests-inflight", _INFLIGHT),
    ("kube-apiserver", "max-mutating-requests-inflight", _INFLIGHT),
    # One instance of each: leader election would delay the start and send requests forever.
    ("kube-controller-manager", "leader-elect", "false"),
    ("kube-scheduler", "leader-elect", "false"),
    ("kube-controller-manager", "kube-api-qps", _QPS),
    ("kube-controller-manager", "kube-api-burst", _BURST),
    ("kube-scheduler", "kube-api-qps", _QPS),
    ("kube-scheduler", "kube-api-burst", _BURST),
)


def configuration(spec: state.Spec, chosen: state.Ports) -> dict[str, Any]:
    """Return the KwokctlConfiguration of a cluster."""
    paths = dict(spec.binaries)
    options: dict[str, Any] = {
        "runtime": "binary",
        # kwokctl's default is 0.0.0.0, with an etcd without authentication.
        "bindAddress": ports.LOOPBACK,
        "kubeAuthorization": True,
        "kubeAdmission": True,
        "components": list(versions.COMPONENTS),  # without kwok, which kwokfleet starts itself
        "etcdBinary": paths["etcd"],
        "kubeApiserverBinary": paths["kube-apiserver"],
        "kubeControllerManagerBinary": paths["kube-controller-manager"],
        "kubeSchedulerBinary": paths["kube-scheduler"],
        "etcdPort": chosen.etcd,
        "etcdPeerPort": chosen.etcd_peer,
        "kubeApiserverPort": chosen.kube_apiserver,
        "kubeControllerManagerPort": chosen.kube_controller_manager,
        "kubeSchedulerPort": chosen.kube_scheduler,
        "kwokControllerPort": chosen.kwok,
    }
    if spec.scheduler_config:
        options["kubeSchedulerConfig"] = spec.scheduler_config
    return {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokctlConfiguration",
        "metadata": {"name": "kwokctl"},
        "options": options,
        "componentsPatches": _patches((*_DEFAULT_ARGS, *spec.extra_args)),
    }


def _patches(args: tuple[tuple[str, str, str], ...]) -> list[dict[str, Any]]:
    extra_args: dict[str, list[dict[str, str]]] = {}
    for component, key, value in args:
        extra_args.setdefault(component, []).append({"key": key, "value": value})
    return [{"name": name, "extraArgs": extra_args[name]} for name in sorted(extra_args)]


def write_configuration(where: state.ClusterFolder, spec: state.Spec, chosen: state.Ports) -> None:
    """Write the configuration file, as JSON, which is valid YAML."""
    where.kwokctl_config.write_text(json.dumps(configuration(spec, chosen), indent=2) + "\n")


class KwokctlProcess:
    """A running kwokctl.

    `create` is for a new cluster: it overwrites files that it cannot read, and removes the folder when it fails.
    `start` starts components that do not run.
    """

    def __init__(self, where: state.ClusterFolder, tools: binaries.Binaries, *, create: bool) -> None:
        program = tools.path("kwokctl")
        self._command = [str(program), "create" if create else "start", "cluster", "--name", where.name]
        self._command += ["--config", str(where.kwokctl_config)]
        self._command += ["--kubeconfig", ""] if create else []
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        try:
            self._process = subprocess.Popen(
                self._command,
                env=_environment(where, tools),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                start_new_session=True,  # kwokfleet handles Ctrl-C: kwokctl would stop half-way
            )
        except OSError as exc:
            self._stderr.close()
            raise errors.HostError(
                f"cannot run {program}: {exc.strerror}", hint="check that it is a program for this platform"
            ) from exc

    def is_done(self) -> bool:
        """Return whether kwokctl has succeeded; raise if it has failed."""
        if self._process.poll():
            raise errors.HostError(
                f"kwokctl cannot start the cluster: {_reason(self._read())}",
                hint="kwokfleet --log-level debug shows the output of kwokctl",
            )
        return self._process.poll() == 0

    def close(self) -> None:
        """Kill kwokctl if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        code = self._process.wait()
        log.debug("kwokctl_ended", command=self._command, exit_code=code, stderr=self._read())
        self._stderr.close()

    def _read(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")


def _environment(where: state.ClusterFolder, tools: binaries.Binaries) -> dict[str, str]:
    # Every KWOK_ variable is an option of kwokctl, and kwokctl prefers the kubectl on PATH.
    inherited = settings.child_environment(lambda name: not name.startswith(("KWOK_", "KUBECONFIG")))
    path = os.pathsep.join((str(tools.path("kubectl").parent), inherited.get("PATH", "")))
    return inherited | {"KWOK_WORKDIR": str(where.data_dir.resolve()), "PATH": path}


def _reason(stderr: str) -> str:
    """Return the error in kwokctl's JSON log lines."""
    reason = ""
    for line in stderr.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            reason = line.strip() or reason
        else:
            if entry.get("level") == "ERROR":
                reason = f"{entry.get('msg')}: {entry.get('err')}"
    return reason or "no reason given"
