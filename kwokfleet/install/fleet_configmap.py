"""Fleet files in one ConfigMap: keys are flat, and the volume restores each path.

Files of a single folder need no list of paths: such a ConfigMap can be edited by hand and with
`kubectl create configmap --from-file`. Files in subfolders need one, which the volume has.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from posixpath import basename, splitext

from kwokfleet.kube.objects import Manifest

MAX_BYTES = 1 << 20
"""Limit of the API server."""
_LONGEST_KEY = 253
_NOT_IN_KEYS = re.compile(r"[^-._a-zA-Z0-9]+")


@dataclass(frozen=True, slots=True)
class FleetConfigMap:
    """Files as ConfigMap data."""

    data: Mapping[str, str]
    """Texts by key."""
    paths: Mapping[str, str]
    """Path of each key below the mount path."""
    start: str = ""
    """Folder of the fleet files below the mount path; other folders hold referenced files."""

    @property
    def items(self) -> list[Manifest]:
        """Items of the volume; empty if keys and paths are equal."""
        if all(key == path for key, path in self.paths.items()):
            return []
        return [{"key": key, "path": path} for key, path in sorted(self.paths.items())]

    def sizes(self) -> dict[str, int]:
        """Return the size of each file in bytes, by path, largest first."""
        sizes = {self.paths[key]: len(text.encode()) for key, text in self.data.items()}
        return dict(sorted(sizes.items(), key=lambda pair: (-pair[1], pair[0])))


def build(files: Mapping[str, str], start: str = "") -> FleetConfigMap:
    """Return texts by path as ConfigMap data with unique keys."""
    paths: dict[str, str] = {}
    for path in sorted(files):
        paths[_key(path, taken=paths)] = path
    return FleetConfigMap({key: files[path] for key, path in paths.items()}, paths, start)


def _key(path: str, taken: Mapping[str, str]) -> str:
    """Return a unique key that resembles the path."""
    flat = _NOT_IN_KEYS.sub("_", path.replace("/", ".")).lstrip(".") or "file"
    stem, ending = splitext(flat) if "." in basename(path) else (flat, "")
    room = _LONGEST_KEY - len(ending)
    key, number = stem[:room] + ending, 1
    while key in taken:
        number += 1
        mark = f"-{number}"
        key = stem[: room - len(mark)] + mark + ending
    return key
