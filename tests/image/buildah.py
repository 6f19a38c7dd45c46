"""Commands of buildah, which builds images without a daemon."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BUILD_S = 1200
# chroot isolation also works where containers cannot be nested, as in most CI.
_ENVIRONMENT = {"BUILDAH_ISOLATION": "chroot", "BUILDAH_FORMAT": "docker", "BUILDAH_LAYERS": "true"}


def run(*arguments: str) -> str:
    """Run buildah, which must succeed; return its output."""
    done = attempt(*arguments)
    assert done.returncode == 0, f"buildah {' '.join(arguments)}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout.strip()


def attempt(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run buildah; return its result, also when it fails."""
    environment = os.environ | _ENVIRONMENT
    command = ["buildah", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BUILD_S, check=False)


def has(image: str) -> bool:
    """Return whether an image exists."""
    return attempt("inspect", "--type", "image", image).returncode == 0


def config(image: str) -> dict[str, Any]:
    """Return an image's configuration: user, entry point, environment, labels."""
    inspected: dict[str, Any] = json.loads(run("inspect", "--type", "image", image))
    return dict(inspected["Docker"]["config"])


@contextmanager
def mounted(image: str) -> Iterator[Path]:
    """Mount an image until the block ends."""
    container = run("from", "--pull=never", image)
    try:
        yield Path(run("mount", container))
    finally:
        run("umount", container)
        run("rm", container)
