"""What the environment says: read once, at the edge, into one frozen value.

A flag beats its variable, a variable beats its default. Nothing else in kwokfleet reads
`os.environ`, except to hand it on to a child process.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from kwokfleet import errors

Choice = TypeVar("Choice", bound=StrEnum)


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a log line looks; `auto` is console on a terminal and JSON otherwise."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Releases:
    """Where official releases are downloaded from; set these to use a proxy of one's own."""

    kubernetes: str = "https://dl.k8s.io/release"
    etcd: str = "https://github.com/etcd-io/etcd/releases/download"
    kwok: str = "https://github.com/kubernetes-sigs/kwok/releases/download"
    kwok_digests: str = "https://api.github.com/repos/kubernetes-sigs/kwok/releases/tags"


@dataclass(frozen=True, slots=True)
class Settings:
    """All that a command may need to know from outside its own arguments."""

    data_dir: Path
    """State that must survive: embedded clusters."""
    cache_dir: Path
    """What can be had again: the control plane's binaries."""
    bin_dir: Path | None
    """A folder whose binaries are used before any other."""
    log_level: LogLevel
    log_format: LogFormat
    color: bool
    """Whether colours may be used where there is a terminal."""
    releases: Releases


def from_environment(environ: Mapping[str, str]) -> Settings:
    """Read the settings from *environ*, normally `os.environ`."""
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    bin_dir = environ.get("KWOKFLEET_BIN_DIR")
    return Settings(
        data_dir=_folder(environ, "KWOKFLEET_DATA_DIR", "XDG_DATA_HOME", home / ".local/share"),
        cache_dir=_folder(environ, "KWOKFLEET_CACHE_DIR", "XDG_CACHE_HOME", home / ".cache"),
        bin_dir=Path(bin_dir).expanduser().absolute() if bin_dir else None,
        log_level=_choice(environ, "KWOKFLEET_LOG_LEVEL", LogLevel, LogLevel.INFO),
        log_format=_choice(environ, "KWOKFLEET_LOG_FORMAT", LogFormat, LogFormat.AUTO),
        color=not environ.get("NO_COLOR"),
        releases=_releases(environ),
    )


def _folder(environ: Mapping[str, str], own: str, xdg: str, default: Path) -> Path:
    # XDG on every system: kubectl, helm and kind users look there, and macOS' own folder has
    # a space in its name that not every component's flag parser survives.
    if chosen := environ.get(own):
        return Path(chosen).expanduser().absolute()
    base = environ.get(xdg, "")
    return (Path(base) if base.startswith("/") else default) / "kwokfleet"


def _choice(environ: Mapping[str, str], name: str, kind: type[Choice], default: Choice) -> Choice:
    text = environ.get(name) or default.value
    try:
        return kind(text.lower())
    except ValueError:
        known = ", ".join(choice.value for choice in kind)
        raise errors.InputError(f"{name}={text} is not known", hint=f"use one of: {known}") from None


def _releases(environ: Mapping[str, str]) -> Releases:
    default = Releases()
    return Releases(
        kubernetes=environ.get("KWOKFLEET_KUBERNETES_RELEASES") or default.kubernetes,
        etcd=environ.get("KWOKFLEET_ETCD_RELEASES") or default.etcd,
        kwok=environ.get("KWOKFLEET_KWOK_RELEASES") or default.kwok,
        kwok_digests=environ.get("KWOKFLEET_KWOK_DIGESTS") or default.kwok_digests,
    )
