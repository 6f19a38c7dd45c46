"""Health checks of the components, and errors that explain why one has ended."""

import http.client
import json
import ssl
import time
from collections.abc import Callable

from kwokfleet import errors
from kwokfleet.embedded import causes, kwokctl, logs, ports, processes, state, versions
from kwokfleet.embedded.causes import FailureCause

REQUEST_TIMEOUT_S = 5
POLL_S = 0.1
LIVENESS_CHECK_S = 0.5
_TAIL_LINES = 6
_SEARCHED_LINES = 200
_LATE_API_SERVER = FailureCause(
    r"failed to wait for apiserver being healthy",
    "the API server did not start in time",
    "try again when this machine is less busy",
)
_INVALID_FLAG = FailureCause(
    r"unknown (shorthand )?flag|invalid argument|flag provided but not|strict decoding error",
    "a flag or a configuration file is invalid",
    "check --extra-args and --kube-scheduler-config",
)
_CAUSES = (
    _LATE_API_SERVER,
    FailureCause(causes.DISK, "the disk is full", "free disk space, or set KWOKFLEET_DATA_DIR to a larger disk"),
    FailureCause(causes.PORT, "a port it needs is in use", "end the program that uses the port, then try again"),
    _INVALID_FLAG,
    FailureCause(r"permission denied", "a file is not readable or writable", "fix the permissions of that file"),
)


class ApiServerTimeoutError(errors.HostError):
    """A component ended because the API server was slow to start. A restart can succeed."""


def answers(where: state.ClusterFolder, component: str, chosen: state.Ports) -> bool:
    """Return whether the health endpoint of *component* answers 200."""
    port = chosen.of(component)
    if component == "etcd":
        return _is_ok(port, "/health", None)
    if component == "kube-apiserver":
        return _is_ok(port, "/readyz", state.client_context(where))
    return _is_ok(port, "/healthz", _unverified())


def wait_until_ready(
    where: state.ClusterFolder,
    chosen: state.Ports,
    starter: kwokctl.KwokctlProcess,
    *,
    until: float,
    on_ready: Callable[[str], None],
) -> None:
    """Wait until every component is usable and *starter* is done; raise as soon as a component has ended.

    *until* is a time of the monotonic clock.
    """
    next_check = time.monotonic() + LIVENESS_CHECK_S
    waiting = list(versions.COMPONENTS)
    while not (starter.is_done() and not waiting):
        if waiting and _is_usable(where, waiting[0], chosen):
            on_ready(waiting.pop(0))
            continue
        if time.monotonic() > next_check:
            _require_alive(where)
            next_check = time.monotonic() + LIVENESS_CHECK_S
        if time.monotonic() > until:
            component = waiting[0] if waiting else "kwokctl"
            raise errors.DeadlineError(
                f"{component} was not ready in time; its log ends with:\n{log_end(where, component)}",
                hint="try again if this machine was busy; to restart the component of an existing cluster: "
                f"kwokfleet cluster restart {component} --name {where.name}",
            )
        time.sleep(POLL_S)


def _is_usable(where: state.ClusterFolder, component: str, chosen: state.Ports) -> bool:
    is_usable = answers(where, component, chosen)
    if is_usable and component == "kube-controller-manager":
        # Pods need the default ServiceAccount, which this component creates.
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        return _is_ok(chosen.kube_apiserver, account, state.client_context(where))
    return is_usable


def _require_alive(where: state.ClusterFolder) -> None:
    """Raise if a component has a pid file and no process."""
    started = [component for component in versions.COMPONENTS if where.pid_file(component).exists()]
    alive = {process.component for process in processes.find_processes(where)}
    for component in started:
        if component not in alive:
            raise _exit_error(where, component)


def _exit_error(where: state.ClusterFolder, component: str) -> errors.KwokfleetError:
    """Return the error for a component that ended, with the cause from its log."""
    end = [line for _, line in logs.lines([where.log(component)], tail=_SEARCHED_LINES, follow=False)]
    if match := causes.find_cause(_CAUSES, end):
        cause, line = match
        kind = {_LATE_API_SERVER: ApiServerTimeoutError, _INVALID_FLAG: errors.InputError}.get(cause, errors.HostError)
        return kind(f"{component} ended unexpectedly: {cause.what} ({line})", hint=cause.hint)
    return errors.HostError(
        f"{component} ended unexpectedly; its log ends with:\n{log_end(where, component)}",
        hint="check --extra-args and --kube-scheduler-config",
    )


def log_end(where: state.ClusterFolder, component: str, lines: int = _TAIL_LINES) -> str:
    """Return the last lines of a component's log, indented."""
    end = logs.lines([where.log(component)], tail=lines, follow=False)
    return "\n".join(f"  {line}" for _, line in end) or "  (nothing)"


def version(where: state.ClusterFolder, chosen: state.Ports) -> str:
    """Return the API server's version; empty if it does not answer."""
    status, body = _get(chosen.kube_apiserver, "/version", state.client_context(where))
    return str(json.loads(body)["gitVersion"]) if status == http.HTTPStatus.OK else ""


def _is_ok(port: int, path: str, context: ssl.SSLContext | None) -> bool:
    return _get(port, path, context)[0] == http.HTTPStatus.OK


def _get(port: int, path: str, context: ssl.SSLContext | None) -> tuple[int, bytes]:
    """Return status and body; status 0 without an answer."""
    connection = http.client.HTTPConnection(ports.LOOPBACK, port, timeout=REQUEST_TIMEOUT_S)
    if context:
        connection = http.client.HTTPSConnection(ports.LOOPBACK, port, timeout=REQUEST_TIMEOUT_S, context=context)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def _unverified() -> ssl.SSLContext:
    # These components create a self-signed certificate at every start. The request is on loopback and has no secret.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
