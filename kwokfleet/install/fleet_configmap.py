"""Fleet files as one ConfigMap: its keys are flat, and each file gets its path back where it is mounted.

A ConfigMap of files that lie in one folder needs no list of paths, so it can be edited by hand and with
`kubectl create configmap --from-file`; files in folders of folders need one, which the volume carries.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from posixpath import basename, splitext

from kwokfleet.kube.objects import Manifest

MAX_BYTES = 1 << 20
"""What the API server lets a ConfigMap hold."""
_LONGEST_KEY = 253
_NOT_IN_KEYS = re.compile(r"[^-._a-zA-Z0-9]+")


@dataclass(frozen=True, slots=True)
class FleetConfigMap:
    """Files, ready to go into a ConfigMap."""

    data: Mapping[str, str]
    """Texts by key."""
    paths: Mapping[str, str]
    """Where each key's file is, below the folder that it is mounted at."""
    start: str = ""
    """The folder below it that holds the fleet files; the others are what those refer to."""

    @property
    def items(self) -> list[Manifest]:
        """What a volume must say for each file to be in its place; nothing if keys and paths are the same."""
        if all(key == path for key, path in self.paths.items()):
            return []
        return [{"key": key, "path": path} for key, path in sorted(self.paths.items())]

    @property
    def size(self) -> int:
        """How many bytes it holds."""
        return sum(len(text.encode()) for text in self.data.values())

    def largest(self, count: int) -> list[tuple[str, int]]:
        """Return the largest files and their sizes."""
        sizes = {self.paths[key]: len(text.encode()) for key, text in self.data.items()}
        return sorted(sizes.items(), key=lambda pair: (-pair[1], pair[0]))[:count]


def build(files: Mapping[str, str], start: str = "") -> FleetConfigMap:
    """Return files, given as texts by path, with a key of its own for each."""
    paths: dict[str, str] = {}
    for path in sorted(files):
        paths[_key(path, taken=paths)] = path
    return FleetConfigMap({key: files[path] for key, path in paths.items()}, paths, start)


def _key(path: str, taken: Mapping[str, str]) -> str:
    """Return a key that reads like the path and that no other file has."""
    flat = _NOT_IN_KEYS.sub("_", path.replace("/", ".")).lstrip(".") or "file"
    stem, ending = splitext(flat) if "." in basename(path) else (flat, "")
    room = _LONGEST_KEY - len(ending)
    key, number = stem[:room] + ending, 1
    while key in taken:
        number += 1
        mark = f"-{number}"
        key = stem[: room - len(mark)] + mark + ending
    return key
