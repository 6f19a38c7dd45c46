"""Builds binaries from a pinned Go module; for the control plane, the one in controlplane/.

Go's caches are in a scratch folder beside the result. An interrupted build continues from them; a finished
build removes them. The user's Go folders do not grow by 4 GB.
"""

import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from kwokfleet import errors, settings
from kwokfleet.embedded import causes, toolchain, versions
from kwokfleet.embedded.causes import FailureCause

log = structlog.get_logger()

NEEDED_BYTES = 6 << 30
"""Build cache 3.2 GB, modules 0.8 GB, binaries 0.5 GB, and space for the linker."""
TAIL_LINES = 40

_CAUSES = (
    FailureCause(
        causes.DISK, "the disk is full", f"free {NEEDED_BYTES >> 30} GB, or set KWOKFLEET_CACHE_DIR to a larger disk"
    ),
    FailureCause(
        r"SECURITY ERROR|checksum mismatch",
        "a downloaded module does not match go.sum",
        "the module was changed in transit: check GOPROXY and the network, then try again",
    ),
    FailureCause(
        r"dial tcp|lookup |no such host|i/o timeout|connection re(fused|set)|TLS handshake|proxyconnect|GOPROXY=off",
        "cannot download the Go modules",
        "check the network and GOPROXY, or use existing binaries: --bin-dir",
    ),
    FailureCause(
        r"signal: killed|cannot allocate memory|out of memory",
        "the compiler ran out of memory",
        "free 3 GB of memory, then try again; the build continues from its cache",
    ),
)


def build(
    binary: versions.Binary, go: toolchain.GoToolchain, scratch: Path, target: Path, report: Callable[[str, int], None]
) -> None:
    """Build *binary* to *target*, atomically; *report* gets the current line and the number of compiled packages."""
    part = target.with_name(f".{target.name}.{os.getpid()}.build")
    command = [str(go.program), "build", "-v", "-trimpath", "-buildvcs=false", "-tags", binary.build_tags]
    command += ["-ldflags", " ".join(("-s", "-w", *binary.stamps)), "-o", str(part), binary.go_package]
    try:
        tail = _run(command, binary.module, _environment(scratch), report)
        if tail is not None:
            raise explain(binary.name, tail)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def explain(name: str, tail: list[str]) -> errors.HostError:
    """Return the error for the last lines of a failed build."""
    if match := causes.find_cause(_CAUSES, tail):
        cause, line = match
        return errors.HostError(f"cannot build {name}: {cause.what} ({line})", hint=cause.hint)
    text = "\n".join(tail)
    return errors.HostError(f"cannot build {name}:\n{text}", hint="use existing binaries: --bin-dir")


def _environment(scratch: Path) -> dict[str, str]:
    return settings.child_environment(lambda name: name not in ("GOOS", "GOARCH", "GOEXPERIMENT")) | {
        "CGO_ENABLED": "0",
        "GOCACHE": str(scratch / "build"),
        "GOMODCACHE": str(scratch / "modules"),
        "GOFLAGS": "-mod=readonly -modcacherw",  # writable, so that the scratch folder can be removed
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }


def _run(
    command: list[str], module: Path, environment: dict[str, str], report: Callable[[str, int], None]
) -> list[str] | None:
    """Run the compiler; return None on success, else its last lines."""
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    packages = 0
    log.debug("compiler_started", command=command)
    with subprocess.Popen(
        command,
        cwd=module,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # the compiler's children end with it
    ) as process:
        try:
            for line in process.stderr or ():
                tail.append(line.rstrip())
                packages += not line.startswith(("go: ", "#"))
                report(line.removeprefix("go: ").strip(), packages)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return list(tail) if process.returncode else None
