"""A control plane with an audit log: user, verb, resource and status of every request."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kwokfleet.embedded import state
from tests.harness import control_plane
from tests.harness.control_plane import ControlPlane

POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "rules": [
        # A watch completes only when the client disconnects, so log its start.
        {"level": "Metadata", "verbs": ["watch"], "omitStages": ["RequestReceived"]},
        {"level": "Metadata", "omitStages": ["RequestReceived", "ResponseStarted"]},
    ],
}


@dataclass(frozen=True)
class AuditedRequest:
    """One request in the audit log."""

    user: str
    agent: str
    verb: str
    group: str
    resource: str
    """With its subresource, as in roles: `nodes/status`."""
    namespace: str
    name: str
    code: int
    path: str

    def __str__(self) -> str:
        """Return a one-line summary."""
        return f"{self.code} {self.verb} {self.path} by {self.user} ({self.agent.partition(' ')[0]})"


@dataclass(frozen=True)
class AuditLog:
    """The audit log file."""

    file: Path

    def requests(self, user: str = "") -> list[AuditedRequest]:
        """Return all requests, or the requests of one user."""
        lines = self.file.read_text(encoding="utf-8").splitlines()
        requests = (_parse(json.loads(line)) for line in lines if line.endswith("}"))
        return [request for request in dict.fromkeys(requests) if not user or request.user == user]


def _parse(event: dict[str, object]) -> AuditedRequest:
    target, user, response = (dict(event.get(key) or {}) for key in ("objectRef", "user", "responseStatus"))  # type: ignore[call-overload]  # mappings
    parts = (target.get("resource", ""), target.get("subresource", ""))
    return AuditedRequest(
        user["username"],
        str(event.get("userAgent", "")),
        str(event["verb"]),
        target.get("apiGroup", ""),
        "/".join(filter(None, parts)),
        target.get("namespace", ""),
        target.get("name", ""),
        int(response.get("code", 0)),
        str(event["requestURI"]),
    )


@contextmanager
def audited_control_plane(name: str, folder: Path) -> Iterator[tuple[ControlPlane, AuditLog]]:
    """Run a control plane that keeps an audit log, until the block ends.

    Streaming lists are off: with them, a client with only the watch verb could list.
    """
    policy, log = folder / "audit-policy.json", folder / "audit.log"
    policy.write_text(json.dumps(POLICY))
    flags = {"audit-policy-file": str(policy), "audit-log-path": str(log), "feature-gates": "WatchList=false"}
    spec = state.Spec(extra_args=tuple(("kube-apiserver", key, value) for key, value in flags.items()))
    started = control_plane.running(name, spec)
    try:
        yield next(started), AuditLog(log)
    finally:
        next(started, None)
