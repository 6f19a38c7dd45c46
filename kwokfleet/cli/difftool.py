"""External diff program (KUBECTL_EXTERNAL_DIFF), called as kubectl diff calls it."""

import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from kwokfleet import errors

_SAFE = re.compile(r"[a-zA-Z0-9=/._-]+")
"""Arguments that kubectl allows for the program."""


def show(command: str, files: "dict[str, tuple[str, str]]") -> None:
    """Run *command* on two folders: live objects, and objects after the sync. *files* has both texts by file name."""
    program, *arguments = shlex.split(command)
    with tempfile.TemporaryDirectory(prefix="LIVE-") as live, tempfile.TemporaryDirectory(prefix="MERGED-") as merged:
        for name, (before, after) in files.items():
            (Path(live) / name).write_text(before, encoding="utf-8")
            (Path(merged) / name).write_text(after, encoding="utf-8")
        sys.stdout.flush()
        safe_arguments = [argument for argument in arguments if _SAFE.fullmatch(argument)]
        try:
            result = subprocess.run([program, *safe_arguments, live, merged], check=False)
        except OSError as error:
            raise errors.HostError(
                f"cannot run KUBECTL_EXTERNAL_DIFF={command}: {error.strerror}", hint="correct or unset the variable"
            ) from error
    if result.returncode > 1:
        raise errors.HostError(f"{program} exited with code {result.returncode}", hint="see its output above")
