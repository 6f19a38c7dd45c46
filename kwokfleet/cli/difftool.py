"""The diff program of the user's choice, shown both sides of every change, as kubectl diff does it."""

import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from kwokfleet import errors

_SAFE = re.compile(r"[a-zA-Z0-9=/._-]+")
"""What kubectl lets through as an argument of such a program."""


def show(command: str, files: "dict[str, tuple[str, str]]") -> None:
    """Run *command* on two folders, one with each object as it is, one as it would be."""
    program, *arguments = shlex.split(command)
    with tempfile.TemporaryDirectory(prefix="LIVE-") as live, tempfile.TemporaryDirectory(prefix="MERGED-") as merged:
        for name, (before, after) in files.items():
            (Path(live) / name).write_text(before, encoding="utf-8")
            (Path(merged) / name).write_text(after, encoding="utf-8")
        sys.stdout.flush()
        kept = [argument for argument in arguments if _SAFE.fullmatch(argument)]
        try:
            done = subprocess.run([program, *kept, live, merged], check=False)
        except OSError as error:
            raise errors.HostError(
                f"KUBECTL_EXTERNAL_DIFF={command} cannot be run: {error.strerror}", hint="unset it, or mend it"
            ) from error
    if done.returncode > 1:
        raise errors.HostError(f"{program} ended with {done.returncode}", hint="see what it printed above")
