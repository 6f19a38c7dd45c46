"""From here into a cluster: the manifests that we are installed from, and fleet files as a ConfigMap carries them."""

import hashlib
import os
from pathlib import Path

from kwokfleet import errors
from kwokfleet.documents import parser
from kwokfleet.install import fleet_configmap
from kwokfleet.install.fleet_configmap import FleetConfigMap
from kwokfleet.install.manifests import Bundle
from kwokfleet.source import files, library, loader, revision

_KIB = 1024


def manifests() -> Bundle:
    """Return the objects of each layer of deploy/bundle."""
    return {
        layer: [document.value for document in parser.parse(layer, text)[0]]
        for layer, text in library.install_bundle().items()
    }


def pack_files(path: Path, loaded: loader.Loaded, extra: dict[str, str] | None = None) -> FleetConfigMap:
    """Return the fleet files at a path, and all that they refer to; *extra*: files of ours, by name.

    Files may refer into the folder beside theirs (`../stages/chaos.yaml`): then that goes along as well.
    """
    folder = _whole(path if path.is_dir() else path.parent)
    found = {_whole(each) for each in (*(file.path for file in loaded.snapshot.files), *loaded.references)}
    beside = sorted(each for each in found if not each.is_relative_to(folder))
    root, start = (folder.parent, folder.name) if beside else (folder, "")
    for each in beside:
        if not each.is_relative_to(root):
            raise errors.InputError(
                f"{each} is used by the fleet files, and is further out than the folder around {folder.name}/",
                hint="move it there, or let the pod read the whole repository: --git-url",
            )
    texts = {each.relative_to(root).as_posix(): _text(each) for each in sorted(found)}
    texts |= {(Path(start) / name).as_posix(): text for name, text in (extra or {}).items()}
    made = fleet_configmap.build(texts, start)
    _refuse_large(made)
    return made


def declares_kwok(loaded: loader.Loaded) -> bool:
    """Return whether fleet files say how kwok runs."""
    found = (each.value for file in loaded.snapshot.files for each in parser.parse(file.path, file.text)[0])
    return any(isinstance(each, dict) and each.get("kind") == "KwokController" for each in found)


def _whole(path: Path | str) -> Path:
    """Return a path from the root, without following symlinks: what files are called is what counts."""
    return Path(os.path.normpath(Path(path).absolute()))


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:  # it could be read a moment ago
        raise errors.InputError(f"{path} cannot be read: {error}", hint="try again") from error


def _refuse_large(made: FleetConfigMap) -> None:
    if made.size <= fleet_configmap.MAX_BYTES:
        return
    largest = ", ".join(f"{path} ({size / _KIB:,.0f} KiB)" for path, size in made.largest(3))
    limit = f"{fleet_configmap.MAX_BYTES // _KIB:,} KiB"
    raise errors.InputError(
        f"the files have {made.size / _KIB:,.0f} KiB, and a ConfigMap holds at most {limit}; the largest: {largest}",
        hint="put them into a git repository and install with --git-url",
    )


def digest(made: FleetConfigMap) -> str:
    """Return the digest that a daemon will tell of these files when it has read them."""
    inside = f"{made.start}/" if made.start else ""
    return revision.tree_digest(
        (path.removeprefix(inside), hashlib.sha256(made.data[key].encode()).hexdigest())
        for key, path in made.paths.items()
        if path.startswith(inside) and path.endswith(files.SUFFIXES)
    )
