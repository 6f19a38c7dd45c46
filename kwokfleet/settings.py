"""Environment variables and default values, each in one place.

A flag overrides its variable, a variable overrides its default. No other module reads `os.environ`; child
processes get `child_environment`. Defaults of fields in fleet files are on the models in `kwokfleet.api`.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from kwokfleet import errors

Choice = TypeVar("Choice", bound=StrEnum)

RESYNC_INTERVAL = timedelta(minutes=10)
"""Time between passes of a daemon that nothing else requests."""
GIT_INTERVAL = timedelta(minutes=1)
"""Time between two fetches of a git repository."""
LISTEN_ADDRESS = "127.0.0.1:8265"
"""Address of the daemon's HTTP server."""
MAX_INFLIGHT = 128
"""Concurrent requests to the API server."""
WAIT_TIMEOUT = timedelta(minutes=5)
"""Time limit of `sync --wait`, `install` and `uninstall`."""
TEST_TIMEOUT = timedelta(minutes=30)
"""Time limit of `kwokfleet test`."""
LEASE_NAMESPACE = "kube-system"
"""Namespace of the leader Lease outside a pod."""
INSTALL_NAMESPACE = "kwokfleet"
"""Namespace of the usual installation."""
KUBECONFIG = "~/.kube/config"


class LogLevel(StrEnum):
    """Lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """Format of a log line; `auto` is console on a terminal and JSON otherwise."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Releases:
    """Addresses of official releases; a mirror can replace each."""

    kubernetes: str = "https://dl.k8s.io/release"
    etcd: str = "https://github.com/etcd-io/etcd/releases/download"
    kwok: str = "https://github.com/kubernetes-sigs/kwok/releases/download"
    kwok_digests: str = "https://api.github.com/repos/kubernetes-sigs/kwok/releases/tags"


@dataclass(frozen=True, slots=True)
class Settings:
    """Folders, logging and downloads, which every command may need."""

    data_dir: Path
    """State that must survive: embedded clusters, Results."""
    cache_dir: Path
    """Files that can be downloaded or built again: the control plane's binaries."""
    bin_dir: Path | None
    """Folder of binaries that override all others."""
    log_level: LogLevel | None
    """None: not set."""
    log_format: LogFormat
    color: bool
    """False: no colors, even on a terminal."""
    releases: Releases


def from_environment(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from *environ*, by default this process's environment."""
    environ = os.environ if environ is None else environ
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    bin_dir = environ.get("KWOKFLEET_BIN_DIR")
    return Settings(
        data_dir=_folder(environ, "KWOKFLEET_DATA_DIR", "XDG_DATA_HOME", home / ".local/share"),
        cache_dir=_folder(environ, "KWOKFLEET_CACHE_DIR", "XDG_CACHE_HOME", home / ".cache"),
        bin_dir=Path(bin_dir).expanduser().absolute() if bin_dir else None,
        log_level=_choice(environ, "KWOKFLEET_LOG_LEVEL", LogLevel),
        log_format=_choice(environ, "KWOKFLEET_LOG_FORMAT", LogFormat) or LogFormat.AUTO,
        color=is_color_allowed(environ),
        releases=_releases(environ),
    )


def is_color_allowed(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether NO_COLOR is unset; for errors in other variables, too."""
    return not (os.environ if environ is None else environ).get("NO_COLOR")


def api_token() -> str:
    """Return the token of the daemon's HTTP API; empty if unset."""
    return os.environ.get("KWOKFLEET_TOKEN", "")


def hook_secret() -> str:
    """Return the secret with which a git host signs webhooks; empty if unset."""
    return os.environ.get("KWOKFLEET_HOOK_SECRET", "")


def pod_name() -> str:
    """Return the name of the pod that this process runs in; empty outside one."""
    return os.environ.get("POD_NAME", "")


def pod_namespace(default: str) -> str:
    """Return the namespace of the pod that this process runs in, *default* outside one."""
    return os.environ.get("POD_NAMESPACE") or default


def is_in_pod() -> bool:
    """Return whether Kubernetes has set the API server's address."""
    return "KUBERNETES_SERVICE_HOST" in os.environ


def kubeconfig() -> str:
    """Return the path of the kubeconfig, or several, as KUBECONFIG lists them."""
    return os.environ.get("KUBECONFIG") or KUBECONFIG


def external_diff() -> str:
    """Return the user's diff command, as for `kubectl diff`; empty if unset."""
    return os.environ.get("KUBECTL_EXTERNAL_DIFF", "")


def child_environment(keep: Callable[[str], bool] = lambda _name: True) -> dict[str, str]:
    """Return the environment of a child process: this process's variables whose names *keep* accepts."""
    return {name: value for name, value in os.environ.items() if keep(name)}


def disable_pydantic_plugins() -> None:
    """Save 0.05 s at import: kwokfleet has no pydantic plugins, and the search reads all installed packages."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


def _folder(environ: Mapping[str, str], variable: str, xdg_variable: str, default: Path) -> Path:
    # XDG on every system: users of kubectl, helm and kind look there. The folder of macOS has a space in its
    # name, which some components' flag parsers do not accept.
    if folder := environ.get(variable):
        return Path(folder).expanduser().absolute()
    base = environ.get(xdg_variable, "")
    return (Path(base) if base.startswith("/") else default) / "kwokfleet"


def _choice(environ: Mapping[str, str], variable: str, choices: type[Choice]) -> Choice | None:
    text = environ.get(variable)
    if not text:
        return None
    try:
        return choices(text.lower())
    except ValueError:
        names = ", ".join(choice.value for choice in choices)
        raise errors.InputError(f"{variable}={text} is invalid", hint=f"use one of: {names}") from None


def _releases(environ: Mapping[str, str]) -> Releases:
    default = Releases()
    return Releases(
        kubernetes=environ.get("KWOKFLEET_KUBERNETES_RELEASES") or default.kubernetes,
        etcd=environ.get("KWOKFLEET_ETCD_RELEASES") or default.etcd,
        kwok=environ.get("KWOKFLEET_KWOK_RELEASES") or default.kwok,
        kwok_digests=environ.get("KWOKFLEET_KWOK_DIGESTS") or default.kwok_digests,
    )
