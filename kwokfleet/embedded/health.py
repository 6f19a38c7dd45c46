"""Whether the components answer, and what to say when one does not."""

import http.client
import json
import ssl
import time
from collections.abc import Callable

from kwokfleet import errors
from kwokfleet.embedded import causes, kwokctl, logs, ports, processes, state, versions

ASK_TIMEOUT_S = 5
POLL_S = 0.1
LOOK_FOR_DEAD_EVERY_S = 0.5
_TAIL_LINES = 6
_SEARCHED_LINES = 200
_LATE_API_SERVER = causes.FailureCause(
    r"failed to wait for apiserver being healthy",
    "the API server did not come up in time",
    "is this machine very busy? Then try again when it is not",
)
_WRONG_FLAG = causes.FailureCause(
    r"unknown (shorthand )?flag|invalid argument|flag provided but not|strict decoding error",
    "it was told something wrong",
    "check --extra-args and --kube-scheduler-config",
)
_CAUSES = (
    _LATE_API_SERVER,
    causes.FailureCause(causes.DISK, "the disk is full", "free some space, or set KWOKFLEET_DATA_DIR to a larger disk"),
    causes.FailureCause(causes.PORT, "a port it needs is in use", "end the program that has it, then try again"),
    _WRONG_FLAG,
    causes.FailureCause(r"permission denied", "a file may not be read or written", "mend that file's permissions"),
)


class ApiServerTimeoutError(errors.HostError):
    """A component ended because the API server was not up in time: on a slow machine, no more than that."""


def answers(where: state.ClusterFolder, component: str, chosen: state.Ports) -> bool:
    """Ask *component* whether it is well."""
    match component:
        case "etcd":
            return _is_ok(chosen.etcd, "/health", None)
        case "kube-apiserver":
            return _is_ok(chosen.kube_apiserver, "/readyz", state.client_context(where))
        case "kube-controller-manager":
            return _is_ok(chosen.kube_controller_manager, "/healthz", _unverified())
        case _:
            return _is_ok(chosen.kube_scheduler, "/healthz", _unverified())


def wait_until_ready(
    where: state.ClusterFolder,
    chosen: state.Ports,
    starter: kwokctl.KwokctlProcess,
    *,
    until: float,
    on_ready: Callable[[str], None],
) -> None:
    """Wait until every component is usable and *starter* is done; raise at once if one has died.

    *until* is a moment of the monotonic clock.
    """
    look_at = time.monotonic() + LOOK_FOR_DEAD_EVERY_S
    waiting = list(versions.COMPONENTS)
    while not (starter.is_done() and not waiting):
        if waiting and _is_usable(where, waiting[0], chosen):
            on_ready(waiting.pop(0))
            continue
        if time.monotonic() > look_at:
            _require_alive(where)
            look_at = time.monotonic() + LOOK_FOR_DEAD_EVERY_S
        if time.monotonic() > until:
            raise _too_slow(where, waiting[0] if waiting else "kwokctl")
        time.sleep(POLL_S)


def _too_slow(where: state.ClusterFolder, who: str) -> errors.DeadlineError:
    return errors.DeadlineError(
        f"{who} did not get ready in time; its log ends with:\n{log_end(where, who)}",
        hint="try again if this machine was very busy; if one of an existing cluster hangs: "
        f"kwokfleet cluster restart {who} --name {where.name}",
    )


def _is_usable(where: state.ClusterFolder, component: str, chosen: state.Ports) -> bool:
    if component == "kube-controller-manager":
        # Without the first service account, which it makes, no pod can be created.
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        return answers(where, component, chosen) and _is_ok(chosen.kube_apiserver, account, state.client_context(where))
    return answers(where, component, chosen)


def _require_alive(where: state.ClusterFolder) -> None:
    """Raise if a component that was started, as its pid file shows, is not there any more."""
    started = [each for each in versions.COMPONENTS if where.pid_file(each).exists()]
    alive = {each.component for each in processes.find_processes(where)}
    for component in started:
        if component not in alive:
            raise _explain(where, component)


def _explain(where: state.ClusterFolder, component: str) -> errors.KwokfleetError:
    """Say why *component* ended, as far as its log tells."""
    end = [line for _, line in logs.lines([where.log(component)], tail=_SEARCHED_LINES, follow=False)]
    if known := causes.find_cause(_CAUSES, end):
        cause, line = known
        kind = {_LATE_API_SERVER: ApiServerTimeoutError, _WRONG_FLAG: errors.InputError}.get(cause, errors.HostError)
        return kind(f"{component} ended by itself: {cause.what} ({line})", hint=cause.hint)
    return errors.HostError(
        f"{component} ended by itself; its log ends with:\n{log_end(where, component)}",
        hint="check the flags and files that were passed to it",
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
    """Return status and body; status 0 if nobody answered."""
    connection = (
        http.client.HTTPSConnection(ports.LOOPBACK, port, timeout=ASK_TIMEOUT_S, context=context)
        if context
        else http.client.HTTPConnection(ports.LOOPBACK, port, timeout=ASK_TIMEOUT_S)
    )
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def _unverified() -> ssl.SSLContext:
    # These two make a certificate of their own at every start; only "ok" is asked, on loopback.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
