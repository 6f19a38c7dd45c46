"""Files shipped with kwokfleet: Stage sets, example Fleets, the CRD and the deployment manifests.

A wheel has them inside the package, a checkout beside it.
"""

from pathlib import Path

from kwokfleet import errors

_PACKAGE = Path(__file__).parents[1]


def stage_sets() -> list[str]:
    """Return the names of the Stage sets."""
    return sorted(path.stem for path in _folder("stages").glob("*.yaml"))


def stage_set(name: str) -> str:
    """Return the text of a Stage set."""
    return (_folder("stages") / f"{name}.yaml").read_text(encoding="utf-8")


def example(name: str) -> str:
    """Return the text of an example Fleet."""
    return (_folder("fleets") / f"{name}.yaml").read_text(encoding="utf-8")


def fleet_crd() -> str:
    """Return the text of the Fleet CRD."""
    return (_folder("deploy") / "crds" / "kwokfleet.dev_fleets.yaml").read_text(encoding="utf-8")


def install_bundle() -> dict[str, str]:
    """Return the rendered manifests of deploy/, by layer."""
    folder = _folder("deploy") / "bundle"
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.yaml"))}


def _folder(name: str) -> Path:
    """Return a folder of shipped files."""
    for folder in (_PACKAGE / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise errors.HostError(f"kwokfleet's own {name}/ folder is missing", hint="reinstall kwokfleet")
