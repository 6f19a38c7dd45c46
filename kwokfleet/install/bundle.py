"""Reads the install bundle, and packs fleet files into a ConfigMap."""

import hashlib
import os
from pathlib import Path

from kwokfleet import errors
from kwokfleet.documents import parser
from kwokfleet.install import fleet_configmap
from kwokfleet.install.fleet_configmap import FleetConfigMap
from kwokfleet.install.manifests import Bundle
from kwokfleet.source import files, loader, revision, shipped_files

_KIB = 1024


def manifests() -> Bundle:
    """Return the objects of each layer of deploy/bundle."""
    return {
        layer: [document.value for document in parser.parse(layer, text)[0]]
        for layer, text in shipped_files.install_bundle().items()
    }


def pack_files(path: Path, loaded: loader.Loaded, extra: dict[str, str] | None = None) -> FleetConfigMap:
    """Return the fleet files at a path, with all files they reference; *extra*: additional texts, by name.

    References into a sibling folder (`../stages/chaos.yaml`) are packed too.
    """
    folder = _whole(path if path.is_dir() else path.parent)
    paths = {_whole(file_path) for file_path in (*(file.path for file in loaded.snapshot.files), *loaded.references)}
    outside = sorted(file_path for file_path in paths if not file_path.is_relative_to(folder))
    root, start = (folder.parent, folder.name) if outside else (folder, "")
    for file_path in outside:
        if not file_path.is_relative_to(root):
            raise errors.InputError(
                f"{file_path} is referenced by the fleet files, but is outside the parent folder of {folder.name}/",
                hint="move it there, or let the daemon read the whole repository with --git-url",
            )
    texts = {file_path.relative_to(root).as_posix(): _text(file_path) for file_path in sorted(paths)}
    texts |= {(Path(start) / name).as_posix(): text for name, text in (extra or {}).items()}
    packed = fleet_configmap.build(texts, start)
    _refuse_large(packed)
    return packed


def declares_kwok(loaded: loader.Loaded) -> bool:
    """Return whether a file declares a KwokController."""
    documents = (document.value for file in loaded.snapshot.files for document in parser.parse(file.path, file.text)[0])
    return any(isinstance(document, dict) and document.get("kind") == "KwokController" for document in documents)


def _whole(path: Path | str) -> Path:
    """Return an absolute path; symlinks are not followed, because references use their names."""
    return Path(os.path.normpath(Path(path).absolute()))


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:  # the loader read it a moment ago
        raise errors.InputError(f"{path} cannot be read: {error}", hint="run the command again") from error


def _refuse_large(packed: FleetConfigMap) -> None:
    sizes = packed.sizes()
    total, limit = sum(sizes.values()), fleet_configmap.MAX_BYTES
    if total > limit:
        largest = ", ".join(f"{path} ({size / _KIB:,.0f} KiB)" for path, size in list(sizes.items())[:3])
        kib = f"{total / _KIB:,.0f} KiB, but a ConfigMap holds at most {limit // _KIB:,} KiB"
        hint = "put them into a git repository and install with --git-url"
        raise errors.InputError(f"the files have {kib}; the largest: {largest}", hint=hint)


def digest(packed: FleetConfigMap) -> str:
    """Return the source digest that the daemon reports for these files."""
    prefix = f"{packed.start}/" if packed.start else ""
    return revision.tree_digest(
        (path.removeprefix(prefix), hashlib.sha256(packed.data[key].encode()).hexdigest())
        for key, path in packed.paths.items()
        if path.startswith(prefix) and path.endswith(files.SUFFIXES)
    )
