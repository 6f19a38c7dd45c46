"""The Stages, examples, definitions and page parts that come with kwokfleet: in its package, or in the repository."""

from pathlib import Path

from kwokfleet import errors

_PACKAGE = Path(__file__).parents[1]


def stage_sets() -> list[str]:
    """Return the names of the library's sets."""
    return sorted(path.stem for path in _folder("stages").glob("*.yaml"))


def stage_set(name: str) -> str:
    """Return the text of one set."""
    return (_folder("stages") / f"{name}.yaml").read_text(encoding="utf-8")


def example(name: str) -> str:
    """Return the text of one example."""
    return (_folder("fleets") / f"{name}.yaml").read_text(encoding="utf-8")


def fleet_crd() -> str:
    """Return the text of our own custom resource definition."""
    return (_folder("deploy") / "crds" / "kwokfleet.dev_fleets.yaml").read_text(encoding="utf-8")


def deploy_files() -> dict[str, str]:
    """Return the texts of the files that kubectl deploys us from, by their paths."""
    folder = _folder("deploy")
    found = (path for part in ("base", "crds", "components", "overlays") for path in (folder / part).rglob("*.yaml"))
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in sorted(found)}


def page_part(name: str) -> str:
    """Return the text of a part that the page of a report is made with."""
    return (_PACKAGE / "report" / "html" / "assets" / name).read_text(encoding="utf-8")


def _folder(name: str) -> Path:
    """Return a folder that a wheel carries inside the package and a checkout beside it."""
    for folder in (_PACKAGE / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise errors.HostError(f"kwokfleet's own {name}/ folder is missing", hint="install kwokfleet again")
