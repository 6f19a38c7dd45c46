"""The image of this checkout, built from its Containerfile."""

import re
import shutil
import subprocess
from pathlib import Path

import kwokfleet
from tests.image import base_images, buildah

CHECKOUT = Path(__file__).parents[2]
IMAGE = "localhost/kwokfleet-test"
_ISOLATED = ("unshare", "--mount", "--pid", "--fork", "mount", "--types", "tmpfs", "tmpfs", "/mnt")
_BASE = re.compile(r"^ARG (?:DEBIAN|GO)=(\S+)$", re.MULTILINE)


def missing() -> str:
    """Return the missing requirement; empty if there is none."""
    lacking = [name for name in ("buildah", "unshare") if shutil.which(name) is None]
    if lacking:
        return f"no {' and no '.join(lacking)} here; on Debian: apt install buildah debootstrap"
    isolated = subprocess.run(_ISOLATED, capture_output=True, text=True, check=False)
    if isolated.returncode:
        return f"this host does not allow mounts in a user namespace: {isolated.stderr.strip()}"
    return "" if _has_bases() else base_images.missing()


def build(scratch: Path) -> str:
    """Build the image, with substitutes for unavailable base images; return its name."""
    stand_ins = [] if _has_bases() else base_images.arguments(scratch)
    version = f"VERSION={kwokfleet.__version__}"
    buildah.run("build", *stand_ins, "--build-arg", version, "--tag", IMAGE, str(CHECKOUT))
    return IMAGE


def _has_bases() -> bool:
    """Return whether the base images are present or can be pulled."""
    if buildah.has(base_images.DEBIAN):
        return False  # an earlier pull failed
    named = _BASE.findall((CHECKOUT / "Containerfile").read_text())
    return all(buildah.attempt("pull", "--policy=missing", name).returncode == 0 for name in named)
