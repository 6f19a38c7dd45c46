"""Contents of the image."""

import json
import stat
from pathlib import Path

import kwokfleet
from kwokfleet.embedded import versions
from tests.image import containers

MOST_BYTES = 200_000_000
SHELLS = {"ash", "bash", "busybox", "dash", "sh", "zsh"}
PYTHON = "/opt/kwokfleet/bin/python3"
IMPORT_ALL = """
import importlib, pkgutil, kwokfleet
names = [module.name for module in pkgutil.walk_packages(kwokfleet.__path__, "kwokfleet.")]
for name in names:
    importlib.import_module(name)
print(len(names))
"""


def files(image: containers.Image) -> list[Path]:
    """Return all files of the image, without links."""
    return [path for path in image.root.rglob("*") if path.is_file() and not path.is_symlink()]


def test_the_image_has_labels_user_and_health_check(image: containers.Image) -> None:
    """The user is numeric, because runAsNonRoot cannot check a name."""
    config = image.config
    assert config["Labels"]["org.opencontainers.image.version"] == kwokfleet.__version__
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == ["/usr/local/bin/kwokfleet"]
    assert config["Cmd"] == ["run", "/fleets", "--listen=0.0.0.0:8265"]
    assert config["Healthcheck"]["Test"][0] == "CMD"


def test_there_is_no_shell_and_no_package_manager(image: containers.Image) -> None:
    """They would help an attacker."""
    names = {path.name for path in image.root.rglob("*") if path.is_symlink() or path.is_file()}
    assert not names & (SHELLS | {"apt", "apt-get", "dpkg", "pip", "pip3", "perl", "curl", "wget"})


def test_there_are_no_setuid_and_no_writable_files(image: containers.Image) -> None:
    """Except the files of the user."""
    modes = {path: path.stat().st_mode for path in files(image)}
    assert [path for path, mode in modes.items() if mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH)] == []
    owned = {path.relative_to(image.root) for path in image.root.rglob("*") if path.lstat().st_uid != 0}
    assert owned == {Path("var/lib/kwokfleet")}


def test_the_image_is_small(image: containers.Image) -> None:
    """docs/image.md lists the parts."""
    assert sum(path.stat().st_size for path in files(image)) < MOST_BYTES


def test_every_module_can_be_imported_and_is_compiled(image: containers.Image) -> None:
    """No imported module is missing, and byte code exists because the root is read-only."""
    done = image.run(PYTHON, "-I", "-c", IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100
    sources = [path for path in files(image) if path.suffix == ".py" and "libexec" not in path.parts]
    compiled = {path.parent.parent / f"{path.name.split('.')[0]}.py" for path in files(image) if path.suffix == ".pyc"}
    assert [path for path in sources if path not in compiled] == []


def test_kwok_and_its_crds_have_the_pinned_version(image: containers.Image) -> None:
    """Nothing is downloaded at run time."""
    assert versions.KWOK.removeprefix("v") in image.run("/usr/local/bin/kwok", "--version").stdout
    kinds = image.root / "usr/local/share/kwokfleet/crds" / f"kwok-{versions.KWOK}"
    assert "kwok.x-k8s.io_stages.yaml" in {path.name for path in kinds.iterdir()}


def test_git_reaches_servers_over_https_and_ssh(image: containers.Image) -> None:
    """The user has a name, which ssh requires, and ssh reads the key from the Secret's mount path."""
    assert "usage: git remote-curl" in image.run("/usr/bin/git", "remote-https").stderr
    done = image.run("/usr/bin/ssh", "-G", "git@git.example.org")
    assert "identityfile /etc/git-secret/ssh-privatekey" in done.stdout, done.stderr


def test_scanners_find_the_debian_packages(image: containers.Image) -> None:
    """They are listed with version and licence, without a package manager."""
    named = {path.name for path in (image.root / "var/lib/dpkg/status.d").iterdir()}
    assert {"ca-certificates", "git", "libc6", "openssh-client"} <= named
    assert all((image.root / "usr/share/doc" / name / "copyright").exists() for name in named)
    done = image.run(
        PYTHON, "-I", "-c", "import importlib.metadata as m, json; print(json.dumps(m.version('kubernetes')))"
    )
    assert json.loads(done.stdout)


def test_a_failed_health_check_reports_the_reason(image: containers.Image) -> None:
    """It does not hang."""
    done = image.run(*image.config["Healthcheck"]["Test"][1:-1], "http://127.0.0.1:9/healthz")
    assert done.returncode == 1
    assert "refused" in done.stdout
