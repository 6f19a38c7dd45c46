"""kwokctl makes the certificates, writes the flags and starts the components; this tells it how."""

import json
import os
import subprocess
import tempfile
from typing import Any

import structlog

from kwokfleet import errors, settings
from kwokfleet.embedded import binaries, ports, state, versions

log = structlog.get_logger()

_INFLIGHT = "3000"
_QPS, _BURST = "5000", "10000"
_DEFAULT_ARGS = (
    # Priority and fairness stay on, as in any real cluster, but with limits that one machine's
    # load generator does not meet before the machine's own.
    ("kube-apiserver", "max-requests-inflight", _INFLIGHT),
    ("kube-apiserver", "max-mutating-requests-inflight", _INFLIGHT),
    # There is one of each: an election would delay the start by seconds and never end asking.
    ("kube-controller-manager", "leader-elect", "false"),
    ("kube-scheduler", "leader-elect", "false"),
    ("kube-controller-manager", "kube-api-qps", _QPS),
    ("kube-controller-manager", "kube-api-burst", _BURST),
    ("kube-scheduler", "kube-api-qps", _QPS),
    ("kube-scheduler", "kube-api-burst", _BURST),
)


def configuration(spec: state.Spec, chosen: state.Ports) -> dict[str, Any]:
    """Build the KwokctlConfiguration of a cluster."""
    paths = dict(spec.binaries)
    options: dict[str, Any] = {
        "runtime": "binary",
        # kwokctl's own default is 0.0.0.0, with an etcd that asks nobody for a password.
        "bindAddress": ports.LOOPBACK,
        "kubeAuthorization": True,
        "kubeAdmission": True,
        "components": list(versions.COMPONENTS),  # without kwok: that process is kwokfleet's own
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
    components = sorted({component for component, _, _ in args})
    return [
        {
            "name": name,
            "extraArgs": [{"key": key, "value": value} for component, key, value in args if component == name],
        }
        for name in components
    ]


def write_configuration(where: state.ClusterFolder, spec: state.Spec, chosen: state.Ports) -> None:
    """Write the configuration where `create` finds it. JSON is YAML, and needs no library."""
    where.kwokctl_config.write_text(json.dumps(configuration(spec, chosen), indent=2) + "\n")


class KwokctlProcess:
    """A kwokctl at work.

    `create` is for a cluster that is not there yet: when it cannot read what is there, it takes it
    for nothing, and when it fails it removes the folder. `start` starts what is not running.
    """

    def __init__(self, where: state.ClusterFolder, tools: binaries.Binaries, *, create: bool) -> None:
        program = tools.path("kwokctl")
        self._command = [str(program), "create" if create else "start", "cluster", "--name", where.name]
        self._command += ["--config", str(where.kwokctl_config)]
        self._command += ["--kubeconfig", ""] if create else []
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        try:
            self._process = subprocess.Popen(
                self._command,
                env=_environment(where, tools),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                start_new_session=True,  # Ctrl-C is ours to handle: kwokctl would go on half-way
            )
        except OSError as exc:
            self._said.close()
            raise errors.HostError(
                f"cannot run {program}: {exc.strerror}", hint="is it a program for this machine?"
            ) from exc

    def is_done(self) -> bool:
        """Tell whether kwokctl has ended well; raise if it has failed."""
        if self._process.poll():
            raise errors.HostError(
                f"kwokctl could not start the cluster: {_reason(self._read())}",
                hint="kwokfleet --log-level debug shows all that it said",
            )
        return self._process.poll() == 0

    def close(self) -> None:
        """End kwokctl, if it is still there."""
        if self._process.poll() is None:
            self._process.kill()
        code = self._process.wait()
        log.debug("kwokctl_ended", command=self._command, exit_code=code, stderr=self._read())
        self._said.close()

    def _read(self) -> str:
        self._said.seek(0)
        return self._said.read().decode(errors="replace")


def _environment(where: state.ClusterFolder, tools: binaries.Binaries) -> dict[str, str]:
    # Every KWOK_ variable is an option to kwokctl, and a kubectl on PATH beats the one configured.
    inherited = settings.child_environment(lambda name: not name.startswith(("KWOK_", "KUBECONFIG")))
    path = os.pathsep.join((str(tools.path("kubectl").parent), inherited.get("PATH", "")))
    return inherited | {"KWOK_WORKDIR": str(where.data_dir.resolve()), "PATH": path}


def _reason(stderr: str) -> str:
    """Pick the error out of kwokctl's JSON log lines."""
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
