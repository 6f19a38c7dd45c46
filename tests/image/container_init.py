"""Starts a process of an image as a kubelet would: `python container_init.py JSON`, in new namespaces.

The root is mounted read-only; only named folders are writable. The process has pid 1, the image's user, no
capabilities and no_new_privs. It uses the host's network.
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

LAST_CAPABILITY = 40
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_DEVICES = ("null", "random", "urandom", "zero")


def mount(*arguments: str | Path) -> None:
    """Run mount."""
    subprocess.run(["/usr/bin/mount", *map(str, arguments)], check=True)


def mount_root(root: Path, spec: dict[str, Any]) -> None:
    """Mount the file system of the process in this mount namespace."""
    mount("--make-rprivate", "/")
    mount("--bind", root, root)
    for target in ("proc", "dev", *(folder.lstrip("/") for folder in (*spec["empty"], *spec["folders"]))):
        (root / target).mkdir(parents=True, exist_ok=True)
    mount("--types", "proc", "proc", root / "proc")
    mount("--types", "tmpfs", "--options", "mode=755", "tmpfs", root / "dev")
    for name in _DEVICES:
        (root / "dev" / name).touch()
        mount("--bind", f"/dev/{name}", root / "dev" / name)
    for target in spec["empty"]:  # as an emptyDir with an fsGroup is
        mount("--types", "tmpfs", "--options", f"mode=2770,gid={spec['user']}", "tmpfs", root / target.lstrip("/"))
    for target, source in spec["folders"].items():
        mount("--bind", source, root / target.lstrip("/"))
        mount("--options", "remount,bind,ro", root / target.lstrip("/"))
    mount("--options", "remount,bind,ro", root)


def drop_privileges(user: int) -> None:
    """Drop all capabilities and switch to the user."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for number in range(LAST_CAPABILITY + 1):
        prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    os.setgroups([user])
    os.setgid(user)
    os.setuid(user)
    prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def main(spec: dict[str, Any]) -> None:
    """Execute the process."""
    mount_root(Path(spec["root"]), spec)
    os.chroot(spec["root"])
    os.chdir(spec["folder"])
    drop_privileges(spec["user"])
    os.execve(spec["command"][0], spec["command"], spec["environment"])  # noqa: S606  # the image has no shell


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
