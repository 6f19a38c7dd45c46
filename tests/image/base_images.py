"""Substitutes for the Containerfile's base images, for machines without access to an image registry.

debootstrap creates a Debian image, and the host's Go becomes a golang image. They get the host's certificates, pip
settings and Go module proxy to reach package registries.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.image import buildah

SUITE = "trixie"
"""Debian release of the Containerfile."""
DEBIAN, GO = "localhost/kwokfleet-stand-in/debian", "localhost/kwokfleet-stand-in/go"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PIP = Path("/etc/pip.conf")
BOOTSTRAP_S = 600

_DEBIAN = """FROM scratch
ADD root.tar /
"""
_GO = """FROM {debian}
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates
COPY {go} /usr/local/go
ENV PATH=/usr/local/go/bin:/usr/bin:/bin GOPROXY={proxy}
"""


def missing() -> str:
    """Return the missing requirement; empty if there is none."""
    lacking = [name for name in ("debootstrap", "go") if shutil.which(name) is None]
    if lacking:
        return f"no image registry in reach, and to do without one: no {' and no '.join(lacking)}"
    if buildah.has(DEBIAN):
        return ""
    asked = ("debootstrap", "--print-debs", "--variant=minbase", SUITE)
    with tempfile.TemporaryDirectory() as folder:
        probe = subprocess.run([*asked, folder], capture_output=True, text=True, timeout=BOOTSTRAP_S, check=False)
    return "no image registry and no mirror of Debian in reach" if probe.returncode else ""


def arguments(scratch: Path) -> list[str]:
    """Build the missing substitutes; return the build arguments that select them."""
    if not buildah.has(DEBIAN):
        _make_debian(scratch / "debian")
    if not buildah.has(GO):
        _make_go(scratch / "go")
    return ["--build-arg", f"DEBIAN={DEBIAN}", "--build-arg", f"GO={GO}"]


def _make_debian(folder: Path) -> None:
    root = folder / "root"
    folder.mkdir()
    _run("debootstrap", "--variant=minbase", SUITE, str(root))
    trusted = root / "usr/local/share/ca-certificates"
    trusted.mkdir(parents=True)
    shutil.copy(CERTIFICATES, trusted / "of-this-machine.crt")
    (root / "etc/apt/apt.conf.d/99stand-in").write_text('Acquire::Check-Valid-Until "false";\n')  # a mirror may lag
    if PIP.exists():
        shutil.copy(PIP, root / "etc/pip.conf")
    _run("tar", "--create", "--file", str(folder / "root.tar"), "--directory", str(root), ".")
    (folder / "Containerfile").write_text(_DEBIAN)
    buildah.run("build", "--tag", DEBIAN, str(folder))
    shutil.rmtree(folder)


def _make_go(folder: Path) -> None:
    go = Path(_run("go", "env", "GOROOT"))
    folder.mkdir()
    text = _GO.format(debian=DEBIAN, go=go.name, proxy=_run("go", "env", "GOPROXY"))
    (folder / "Containerfile").write_text(text)
    buildah.run("build", "--tag", GO, "--file", str(folder / "Containerfile"), str(go.parent))


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOOTSTRAP_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout.strip()
