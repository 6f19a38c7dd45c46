"""`kwokfleet run` and `kwokfleet up`: run the daemon, which keeps a cluster in sync with fleet files."""

import signal
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kwokfleet import errors, settings
from kwokfleet.cli import cluster as cluster_commands
from kwokfleet.cli import connection, files, output, signals, sync

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kwokfleet import app
    from kwokfleet.daemon import daemon

GIT_INTERVAL = output.duration_text(settings.GIT_INTERVAL)
RESYNC_INTERVAL = output.duration_text(settings.RESYNC_INTERVAL)
_LAST_PORT = 65535

GitUrl = Annotated[str | None, typer.Option("--git-url", help="Read the fleet files from this git repository.")]
GitRef = Annotated[str, typer.Option("--git-ref", help="Branch, tag or commit.")]
GitPath = Annotated[str, typer.Option("--git-path", help="Folder of the files in the repository.")]
GitInterval = Annotated[str, typer.Option("--git-interval", metavar="DURATION", help="Interval between fetches.")]
Interval = Annotated[str, typer.Option(metavar="DURATION", help="Interval of a full sync without changes.")]
Listen = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Address of the HTTP server (status, metrics, API); empty: no server.")
]
TokenFile = Annotated[
    Path | None, typer.Option(help="File with the token that writing requests to the API need. [env: KWOKFLEET_TOKEN]")
]
HookSecretFile = Annotated[
    Path | None,
    typer.Option(help="File with the secret that signs webhooks to POST /hooks/git. [env: KWOKFLEET_HOOK_SECRET]"),
]
Kwok = Annotated[bool, typer.Option("--kwok/--no-kwok", help="Also run kwok, as the KwokController document declares.")]
LeaderElect = Annotated[
    bool, typer.Option("--leader-elect/--no-leader-elect", help="Elect one leader among several daemons, with a Lease.")
]
LeaseNamespace = Annotated[
    str | None, typer.Option(help=f"Namespace of the Lease. [env: POD_NAMESPACE, else {settings.LEASE_NAMESPACE}]")
]
Poll = Annotated[
    bool, typer.Option("--poll", help="Poll the files instead of waiting for file events: for network folders.")
]
ResultsDir = Annotated[
    Path | None, typer.Option(help="Folder of measured results. [default: results in the data folder]")
]


def run(  # noqa: PLR0913, PLR0917  # one for each option
    path: files.OnePath = None,
    git_url: GitUrl = None,
    git_ref: GitRef = "HEAD",
    git_path: GitPath = ".",
    git_interval: GitInterval = GIT_INTERVAL,
    interval: Interval = RESYNC_INTERVAL,
    listen: Listen = settings.LISTEN_ADDRESS,
    token_file: TokenFile = None,
    hook_secret_file: HookSecretFile = None,
    kwok: Kwok = True,
    leader_elect: LeaderElect = True,
    lease_namespace: LeaseNamespace = None,
    poll: Poll = False,
    qps: sync.Qps = 0,
    max_inflight: sync.MaxInflight = settings.MAX_INFLIGHT,
    results_dir: ResultsDir = None,
    bin_dir: cluster_commands.BinDir = None,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Run the daemon: keep the cluster in sync with the fleet files until Ctrl-C.

    It syncs after every change, and at an interval. Several daemons can run for one cluster: one is the leader.
    SIGHUP reloads the files.
    """
    from kwokfleet.kube import throttled_client

    output.start_logging()
    if git_url is not None and path is not None:
        raise errors.InputError(
            f"{path} and --git-url exclude each other", hint="for a folder in the repository: --git-path"
        )
    config = replace(
        default_config(path or files.default_path(), _address(listen), bin_dir),
        results_dir=results_dir or default_results_dir(),
        git=_git_config(git_url, git_ref, git_path, git_interval, hook_secret_file),
        poll=poll,
        interval=timedelta(seconds=sync.seconds(interval, "--interval")),
        limits=throttled_client.ClientLimits(max_inflight, qps),
        token=_secret(token_file) or settings.api_token(),
        kwok=kwok,
        leader_elect=leader_elect,
        lease_namespace=lease_namespace or settings.pod_namespace(settings.LEASE_NAMESPACE),
        context=context,
        kubeconfig=kubeconfig,
    )
    _run_until_stopped(config)


def up(
    path: files.OnePath = None,
    name: cluster_commands.Name = "default",
    listen: Listen = settings.LISTEN_ADDRESS,
    bin_dir: cluster_commands.BinDir = None,
) -> None:
    """Start the embedded cluster, and run the daemon until Ctrl-C. The cluster keeps running.

    The same as `cluster up`, then `run`. `kwokfleet cluster down` deletes the cluster.
    """
    from kwokfleet.embedded import cluster, state

    output.start_logging()
    where, address = require_exists(path or files.default_path()), _address(listen)
    with output.show_progress() as report:
        status = cluster.up(cluster_commands.settings_with(bin_dir), name, state.Spec(), report)
    cluster_commands.print_usage(status)
    _run_until_stopped(replace(default_config(where, address, bin_dir), kubeconfig=status.kubeconfig))


def default_config(path: Path, listen: tuple[str, int] | None, bin_dir: Path | None) -> "app.DaemonConfig":
    """Return the configuration of a daemon without flags."""
    from kwokfleet import app

    return app.DaemonConfig(
        settings=cluster_commands.settings_with(bin_dir),
        path=require_exists(path),
        results_dir=default_results_dir(),
        listen=listen,
        token=settings.api_token(),
        pod_namespace=settings.pod_namespace(settings.INSTALL_NAMESPACE),
        progress_display=output.show_progress,
    )


def default_results_dir() -> Path:
    """Return the default folder of Results."""
    return output.read_settings().data_dir / "results"


def require_exists(path: Path) -> Path:
    """Raise if a path does not exist: at the start it is a typing error; later the daemon only freezes."""
    if not path.exists():
        raise errors.InputError(
            f"{path}: no such file or directory", hint="name a folder with *.yaml files, or create one: kwokfleet init"
        )
    return path


def _secret(file: Path | None) -> str:
    """Return the text of a file; empty without a file."""
    if file is None:
        return ""
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise errors.InputError(f"cannot read {file}: {reason}", hint="name a text file with one line") from error
    if not text:
        raise errors.InputError(f"{file} is empty", hint="write a random token to it: openssl rand -hex 32")
    return text


def _git_config(
    url: str | None, ref: str, path: str, interval: str, secret_file: Path | None
) -> "app.GitConfig | None":
    from kwokfleet import app

    interval_s, secret = sync.seconds(interval, "--git-interval"), _secret(secret_file) or settings.hook_secret()
    return app.GitConfig(url, ref, path, interval_s, secret) if url is not None else None


def _run_until_stopped(config: "app.DaemonConfig") -> None:
    """Run a daemon until a signal arrives."""
    import structlog

    import kwokfleet
    from kwokfleet.source import git_command

    log = structlog.get_logger()
    source = config.git.url if config.git else str(config.path)
    log.info("starting", version=kwokfleet.__version__, files=git_command.redact(source))
    with running(config) as started:
        _wait_for_signal(started)
        log.info("stopping")
    log.info("stopped")


def running(config: "app.DaemonConfig") -> "AbstractContextManager[daemon.Daemon]":
    """Connect, build a daemon, and run it until the block ends."""
    from kwokfleet import app

    return app.running_daemon(connection.connect(config.context, config.kubeconfig), config)


def _address(listen: str) -> tuple[str, int] | None:
    """Parse HOST:PORT; return None for an empty text."""
    if not listen:
        return None
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > _LAST_PORT:
        raise errors.InputError(
            f"--listen {listen!r} is invalid: it must be HOST:PORT with a port up to {_LAST_PORT}",
            hint=f"for example {settings.LISTEN_ADDRESS}; for all addresses of this machine :8265",
        )
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104  # as asked


def _wait_for_signal(started: "daemon.Daemon") -> None:
    """Wait for SIGINT or SIGTERM; SIGHUP loads the files again."""
    from kwokfleet.daemon.trigger import PassReason

    signal.signal(signal.SIGHUP, lambda _number, _frame: started.trigger.request(PassReason.FILES))
    signals.wait_for(signal.SIGINT, signal.SIGTERM)
