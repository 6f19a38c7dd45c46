"""Volumes of a pod as folders: ConfigMaps and Secrets replaced atomically, tokens from the TokenRequest API."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kwokfleet import errors
from kwokfleet.kube import client
from kwokfleet.kube.requests import Request

Manifest = dict[str, Any]
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass
class Volumes:
    """All volumes of one pod."""

    api: client.KubeClient
    folder: Path
    pod: Manifest
    _written: dict[str, dict[str, str]] = field(default_factory=dict)
    _tokens: dict[str, str] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """Return the folder of a volume."""
        return self.folder / "volumes" / name

    def refresh(self) -> bool:
        """Update all volumes; return whether all sources were available."""
        try:
            for volume in self.pod["spec"].get("volumes", ()):
                self.path(volume["name"]).mkdir(parents=True, exist_ok=True)
                if "emptyDir" not in volume:
                    self._swap(volume["name"], self._content(volume))
        except (errors.ClusterError, KeyError):  # retried with the next refresh
            return False
        return True

    def value(self, origin: Manifest) -> str:
        """Return the value of a ConfigMap or Secret key."""
        kind, reference = next(iter(origin.items()))
        plural = "configmaps" if kind == "configMapKeyRef" else "secrets"
        data = self._data(plural, reference["name"], optional=bool(reference.get("optional")))
        return data.get(reference["key"], "") if reference.get("optional") else data[reference["key"]]

    def all_values(self, origins: Sequence[Manifest]) -> dict[str, str]:
        """Return all values of some ConfigMaps and Secrets."""
        values: dict[str, str] = {}
        for origin in origins:
            for kind, plural in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
                if reference := origin.get(kind):
                    values |= self._data(plural, reference["name"], optional=bool(reference.get("optional")))
        return values

    def write_kubeconfig(self, server: str, secrets: Path) -> Path:
        """Write a kubeconfig for the pod's service account."""
        user = {"tokenFile": str(secrets / "token")}
        cluster = {"server": server, "certificate-authority": str(secrets / "ca.crt")}
        content = {
            "apiVersion": "v1", "kind": "Config", "current-context": "pod",
            "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}],
            "clusters": [{"name": "pod", "cluster": cluster}], "users": [{"name": "pod", "user": user}],
        }  # fmt: skip
        path = self.folder / "kubeconfig.json"
        path.write_text(json.dumps(content))
        return path

    def _content(self, volume: Manifest) -> dict[str, str]:
        if "projected" in volume:
            parts = [self._content({**source, "name": volume["name"]}) for source in volume["projected"]["sources"]]
            return {name: text for part in parts for name, text in part.items()}
        if "serviceAccountToken" in volume:
            return {volume["serviceAccountToken"]["path"]: self._token(volume["serviceAccountToken"])}
        if "configMap" in volume:
            return self._items("configmaps", volume["configMap"]["name"], volume["configMap"])
        if "secret" in volume:
            source = volume["secret"]
            return self._items("secrets", source.get("secretName") or source["name"], source)
        return {}  # downward API volumes are not supported

    def _items(self, plural: str, name: str, source: Manifest) -> dict[str, str]:
        data = self._data(plural, name, optional=bool(source.get("optional")))
        items = source.get("items")
        return {item["path"]: data[item["key"]] for item in items} if items else data

    def _data(self, plural: str, name: str, *, optional: bool) -> dict[str, str]:
        response = self.api.send(
            Request("GET", f"/api/v1/namespaces/{self.pod['metadata']['namespace']}/{plural}/{name}")
        )
        if response.status == 404 and optional:
            return {}
        if response.status != 200:
            raise errors.ClusterError(f"{plural} {name}: {response.status}")
        data: dict[str, str] = response.json().get("data") or {}
        return {key: base64.b64decode(text).decode() for key, text in data.items()} if plural == "secrets" else data

    def _token(self, projection: Manifest) -> str:
        """Return a token bound to the pod; it is requested once per audience."""
        audience = projection.get("audience", "")
        if audience not in self._tokens:
            metadata, account = self.pod["metadata"], self.pod["spec"].get("serviceAccountName", "default")
            bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
            spec: Manifest = {"expirationSeconds": projection.get("expirationSeconds", 3600), "boundObjectRef": bound}
            spec |= {"audiences": [audience]} if audience else {}
            body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
            path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
            response = self.api.send(Request("POST", path, json.dumps(body).encode()))
            if response.status != 201:
                raise errors.ClusterError(f"token of {account}: {response.status} {response.message}")
            self._tokens[audience] = response.json()["status"]["token"]
        return self._tokens[audience]

    def _swap(self, name: str, content: dict[str, str]) -> None:
        """Replace the files atomically, by a symbolic link to the new folder."""
        if self._written.get(name) == content:
            return
        self._written[name] = dict(content)
        folder = self.path(name)
        fresh = folder / f"..{len(list(folder.glob('..2*'))) + 2000}"
        fresh.mkdir()
        for file, text in content.items():
            (fresh / file).parent.mkdir(parents=True, exist_ok=True)
            (fresh / file).write_text(text)
        part = folder / "..data_tmp"
        part.symlink_to(fresh.name)
        part.replace(folder / "..data")
        tops = {file.split("/")[0] for file in content}
        for top in tops:
            if not (folder / top).is_symlink():
                (folder / top).symlink_to(f"..data/{top}")
        for link in folder.iterdir():
            if link.is_symlink() and link.name != "..data" and link.name not in tops:
                link.unlink()
