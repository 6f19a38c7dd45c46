"""Builds the root file system of the image: `python3 rootfs.py ROOT`, in an image with everything installed.

It copies only Python, git, ssh, our packages and their libraries: no shell, no package manager. The Debian packages
of the files are listed in var/lib/dpkg/status.d, where scanners read them, with their licences in usr/share/doc.
"""

import compileall
import fnmatch
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGES = Path("/opt/kwokfleet")
"""Environment of the locked packages."""
USER = 65532
PROGRAMS = ("/usr/bin/python3", "/usr/bin/git", "/usr/lib/git-core/git-remote-https", "/usr/bin/ssh")
FILES = ("/etc/os-release", "/etc/ssl/certs/ca-certificates.crt")
MADE_BY = ("ca-certificates",)
"""Packages whose files are generated at installation: `dpkg --search` does not find them."""
LOADED_LATE = ("libgcc_s.so.1",)
"""Libraries that ldd does not list: glibc opens them when a thread ends."""
FOLDERS = (
    ("tmp", 0o1777),
    ("var/lib/kwokfleet", 0o750),
    ("fleets", 0o755),  # mount points, here and below run
    ("run", 0o755),
    ("usr/share/git-core/templates", 0o755),  # git warns if it is missing
)
MERGED = ("bin", "lib", "lib64")
"""Links at the top of a Debian system, into usr."""

UNUSED = (
    "*/__pycache__",  # compiled below
    "*/python3.*/config-3.*",
    "*/python3.*/ensurepip",
    "*/python3.*/idlelib",
    "*/python3.*/lib-dynload/*readline.*",  # interactive use; these four need large libraries
    "*/python3.*/lib-dynload/_curses*",
    "*/python3.*/lib-dynload/_dbm.*",
    "*/python3.*/lib-dynload/_sqlite3.*",
    "*/python3.*/lib2to3",
    "*/python3.*/pydoc_data",
    "*/python3.*/sitecustomize.py",  # a link into etc
    "*/python3.*/test",
    "*/python3.*/tkinter",
    "*/python3.*/turtle*",
    "*/site-packages/*/tests",
    # Only the client's configuration and connections are used; these modules are imported on demand.
    "*/site-packages/kubernetes/aio",
    "*/site-packages/kubernetes/client/api/*_api.py",
    "*/site-packages/kubernetes/client/models/[a-z]*.py",
    *(
        f"*/site-packages/{name}{ending}"  # needed only by kubernetes.aio
        for name in ("aiohttp", "aiohappyeyeballs", "aiosignal", "frozenlist", "multidict", "propcache", "yarl")
        for ending in ("", "-*.dist-info")
    ),
)
_LIBRARY = re.compile(r"(/\S+) \(0x")


class Root:
    """The new root and the copied files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.copied: set[Path] = set()

    def place(self, path: Path) -> Path:
        """Return the path of a file in the new root."""
        return self.folder / path.relative_to("/")

    def add(self, path: Path) -> None:
        """Copy a file to the same path; for a link, also its target."""
        path = path.parent.resolve() / path.name
        if path in self.copied:
            return
        self.copied.add(path)
        target = self.place(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target, follow_symlinks=False)
        if path.is_symlink() and path.is_file():
            self.add(path.parent / path.readlink())

    def libraries(self) -> set[Path]:
        """Return the libraries of the copied programs."""
        programs = [str(path) for path in self.copied if not path.is_symlink() and _is_program(path)]
        # ldd fails for static programs.
        said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout  # noqa: S607
        return {Path(found) for found in _LIBRARY.findall(said)}


def _is_program(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, except unused ones."""
    for entry in sorted(os.scandir(folder), key=lambda each: each.name):
        if any(fnmatch.fnmatchcase(entry.path, pattern) for pattern in UNUSED):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from files(Path(entry.path))
        else:
            yield Path(entry.path)


def fill(root: Root) -> None:
    """Copy programs, packages and libraries."""
    for name in MERGED:
        link = Path("/", name)
        if link.is_symlink():
            root.folder.joinpath(name).symlink_to(link.readlink())
    for name in (*PROGRAMS, *FILES):
        root.add(Path(name))
    for folder in (Path(sysconfig.get_path("stdlib")), PACKAGES):
        for path in files(folder):
            root.add(path)
    system = Path("/usr/lib", sysconfig.get_config_var("MULTIARCH"))
    for path in (*(system / name for name in LOADED_LATE), *root.libraries()):
        root.add(path)


def credit(root: Root) -> None:
    """Write the Debian packages of the files and their licences."""
    status = root.folder / "var/lib/dpkg/status.d"
    status.mkdir(parents=True)
    found = _owners(path for path in root.copied if not path.is_relative_to(PACKAGES))
    for package in sorted({*found, *MADE_BY}):
        name = package.partition(":")[0]
        status.joinpath(name).write_text(_dpkg("--status", package))
        licence = Path("/usr/share/doc", name, "copyright")
        root.place(licence).parent.mkdir(parents=True)
        shutil.copyfile(licence, root.place(licence))


def _owners(paths: Iterable[Path]) -> set[str]:
    lines = _dpkg("--search", *map(str, paths)).splitlines()
    owners = (line.rpartition(": ")[0] for line in lines if not line.startswith("diversion "))
    return {package for each in owners for package in each.split(", ")}


def _dpkg(*arguments: str) -> str:
    # It fails for files without a package: those generated at installation.
    return subprocess.run(["dpkg-query", *arguments], capture_output=True, text=True, check=False).stdout  # noqa: S607


def compile_all(root: Path) -> None:
    """Compile every module, without checks of the source: the root is read-only at run time."""
    for folder in (sysconfig.get_path("stdlib"), str(PACKAGES)):
        compileall.compile_dir(
            str(root) + folder,
            quiet=2,
            stripdir=str(root),
            prependdir="/",
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            workers=0,
        )


def make_folders(root: Path) -> None:
    """Create the empty folders."""
    for name, mode in FOLDERS:
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(mode)
    os.chown(root / "var/lib/kwokfleet", USER, USER)
    (root / "var/run").symlink_to("../run")


def main(target: str) -> None:
    """Build the root."""
    root = Root(Path(target))
    root.folder.mkdir(parents=True)
    fill(root)
    credit(root)
    make_folders(root.folder)
    compile_all(root.folder)


if __name__ == "__main__":
    main(sys.argv[1])
