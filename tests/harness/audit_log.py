"""An API server that writes down every request: who asked for what, and whether that was allowed."""

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
        # A watch is over when nobody watches any more; it counts from its beginning.
        {"level": "Metadata", "verbs": ["watch"], "omitStages": ["RequestReceived"]},
        {"level": "Metadata", "omitStages": ["RequestReceived", "ResponseStarted"]},
    ],
}


@dataclass(frozen=True)
class AuditedRequest:
    """A request, as the API server has it."""

    user: str
    agent: str
    verb: str
    group: str
    resource: str
    """With its subresource, as roles name it."""
    namespace: str
    name: str
    code: int
    path: str

    def __str__(self) -> str:
        """Return it in a line."""
        return f"{self.code} {self.verb} {self.path} by {self.user} ({self.agent.partition(' ')[0]})"


@dataclass(frozen=True)
class AuditLog:
    """What was written down."""

    file: Path

    def asked(self, user: str = "") -> list[AuditedRequest]:
        """Return all requests, or those of one user."""
        lines = self.file.read_text(encoding="utf-8").splitlines()
        found = (_asked(json.loads(line)) for line in lines if line.endswith("}"))
        return [each for each in dict.fromkeys(found) if not user or each.user == user]


def _asked(event: dict[str, object]) -> AuditedRequest:
    about, user, answer = (dict(event.get(key) or {}) for key in ("objectRef", "user", "responseStatus"))  # type: ignore[call-overload]  # mappings
    parts = (about.get("resource", ""), about.get("subresource", ""))
    return AuditedRequest(
        user["username"],
        str(event.get("userAgent", "")),
        str(event["verb"]),
        about.get("apiGroup", ""),
        "/".join(filter(None, parts)),
        about.get("namespace", ""),
        about.get("name", ""),
        int(answer.get("code", 0)),
        str(event["requestURI"]),
    )


@contextmanager
def audited_control_plane(name: str, folder: Path) -> Iterator[tuple[ControlPlane, AuditLog]]:
    """Run a control plane that keeps an audit log, until the block ends.

    It lists as API servers did before they could stream lists: who may only watch would see nothing there.
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
