"""Whether the components answer, and what to say when one does not."""

import http.client
import json
import ssl
import time
from collections.abc import Callable

from kwokfleet import errors
from kwokfleet.embedded import logs, ports, processes, state, versions

ASK_TIMEOUT_S = 5
POLL_S = 0.05
LOOK_FOR_DEAD_EVERY_S = 0.5
_TAIL_LINES = 6


def answers(where: state.Folder, component: str, chosen: state.Ports) -> bool:
    """Ask *component* whether it is well."""
    match component:
        case "etcd":
            return _is_ok(chosen.etcd, "/health", None)
        case "kube-apiserver":
            return _is_ok(chosen.kube_apiserver, "/readyz", _as_admin(where))
        case "kube-controller-manager":
            return _is_ok(chosen.kube_controller_manager, "/healthz", _unverified())
        case _:
            return _is_ok(chosen.kube_scheduler, "/healthz", _unverified())


def wait(where: state.Folder, chosen: state.Ports, *, deadline_s: float, on_ready: Callable[[str], None]) -> None:
    """Wait until every component answers; raise at once if one has died."""
    until = time.monotonic() + deadline_s
    look_at = time.monotonic() + LOOK_FOR_DEAD_EVERY_S
    waiting = list(versions.COMPONENTS)
    while waiting:
        if _is_usable(where, waiting[0], chosen):
            on_ready(waiting.pop(0))
            continue
        if time.monotonic() > look_at:
            _require_alive(where)
            look_at = time.monotonic() + LOOK_FOR_DEAD_EVERY_S
        if time.monotonic() > until:
            raise errors.DeadlineError(
                f"{waiting[0]} is not ready after {deadline_s:.0f} s; its log ends with:\n{log_end(where, waiting[0])}",
                hint="see what it waits for in its log, or start anew: kwokfleet cluster down, then up",
            )
        time.sleep(POLL_S)


def _is_usable(where: state.Folder, component: str, chosen: state.Ports) -> bool:
    if component == "kube-controller-manager":
        # Without the first service account, which it makes, no pod can be created.
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        return answers(where, component, chosen) and _is_ok(chosen.kube_apiserver, account, _as_admin(where))
    return answers(where, component, chosen)


def _require_alive(where: state.Folder) -> None:
    alive = {each.component for each in processes.find(where)}
    for component in versions.COMPONENTS:
        if component not in alive:
            raise errors.HostError(f"{component} ended by itself; its log ends with:\n{log_end(where, component)}")


def log_end(where: state.Folder, component: str, lines: int = _TAIL_LINES) -> str:
    """Return the last lines of a component's log, indented."""
    end = logs.lines([where.log(component)], tail=lines, follow=False)
    return "\n".join(f"  {line}" for _, line in end) or "  (nothing)"


def version(where: state.Folder, chosen: state.Ports) -> str:
    """Return the API server's version; empty if it does not answer."""
    status, body = _get(chosen.kube_apiserver, "/version", _as_admin(where))
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


def _as_admin(where: state.Folder) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(where.pki("ca.crt")))
    context.load_cert_chain(where.pki("admin.crt"), where.pki("admin.key"))
    return context


def _unverified() -> ssl.SSLContext:
    # These two make a certificate of their own at every start; only "ok" is asked, on loopback.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
