"""Grants of RBAC roles: one verb on one resource each."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.harness.audit_log import AuditedRequest

DEPLOY = Path(__file__).parents[2] / "deploy"
RIGHTS = DEPLOY / "base" / "rights.yaml"
VIEWER = DEPLOY / "components" / "viewer" / "viewer.yaml"
KWOK_PODS = DEPLOY / "components" / "kwok-pods" / "rights.yaml"
Manifest = dict[str, Any]
_COMPONENT = "app.kubernetes.io/component"
_IN_NAMESPACE = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True)
class Grant:
    """One verb on one resource in one rule of a role."""

    kind: str
    role: str
    namespace: str
    """Namespace of the role; empty for a ClusterRole."""
    rule: int
    verb: str
    group: str
    resource: str
    names: tuple[str, ...]
    component: str

    def __str__(self) -> str:
        """Return the test id."""
        where = f" in {self.namespace}" if self.namespace else ""
        only = f" {'|'.join(self.names)}" if self.names else ""
        target = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.role}{where}: {self.verb} {target}{only}"

    @property
    def slug(self) -> str:
        """A valid object name."""
        return _IN_NAMESPACE.sub("-", str(self).lower()).strip("-")

    def allows(self, request: AuditedRequest) -> bool:
        """Return whether the grant covers a request."""
        return (
            (request.verb, request.group, request.resource) == (self.verb, self.group, self.resource)
            and (not self.namespace or request.namespace == self.namespace)
            and (not self.names or request.name in self.names)
        )


def documents(file: Path) -> list[Manifest]:
    """Return the objects of a file."""
    return [document for document in YAML(typ="safe", pure=True).load_all(file.read_text(encoding="utf-8")) if document]


def roles(*files: Path) -> list[Manifest]:
    """Return the roles with rules in some files."""
    manifests = (manifest for file in files for manifest in documents(file))
    return [manifest for manifest in manifests if manifest["kind"] in ("Role", "ClusterRole") and manifest.get("rules")]


def grants_of(role: Manifest) -> Iterator[Grant]:
    """Yield the grants of a role."""
    metadata = role["metadata"]
    for number, rule in enumerate(role["rules"]):
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield Grant(
                        role["kind"],
                        metadata["name"],
                        metadata.get("namespace", ""),
                        number,
                        verb,
                        group,
                        resource,
                        tuple(rule.get("resourceNames", ())),
                        metadata["labels"][_COMPONENT],
                    )


def rules_without(role: Manifest, grant: Grant) -> list[Manifest]:
    """Return the rules of a role without one grant."""
    rules: list[Manifest] = []
    for number, rule in enumerate(role["rules"]):
        if number != grant.rule:
            rules.append(rule)
            continue
        others = [resource for resource in rule["resources"] if resource != grant.resource]
        verbs = [verb for verb in rule["verbs"] if verb != grant.verb]
        rules += [{**rule, "resources": others}] if others else []
        rules += [{**rule, "resources": [grant.resource], "verbs": verbs}] if verbs else []
    return rules
