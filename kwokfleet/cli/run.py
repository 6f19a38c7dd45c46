"""`kwokfleet run` and `kwokfleet up`: keep a cluster equal to files, for as long as it runs."""

import signal
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kwokfleet import errors, settings
from kwokfleet.cli import cluster as cluster_commands
from kwokfleet.cli import connection, files, output, progress, signals, sync

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kwokfleet import app
    from kwokfleet.daemon import daemon

GIT_INTERVAL = output.duration_text(settings.GIT_INTERVAL)
RESYNC_INTERVAL = output.duration_text(settings.RESYNC_INTERVAL)
_LAST_PORT = 65535

GitUrl = Annotated[
    str | None,
    typer.Option("--git-url", help="Take the files from this git repository instead.", show_default=False),
]
GitRef = Annotated[str, typer.Option("--git-ref", help="The branch, tag or commit.")]
GitPath = Annotated[str, typer.Option("--git-path", help="The folder in it that holds the files.")]
GitInterval = Annotated[str, typer.Option("--git-interval", metavar="DURATION", help="How often to look for commits.")]
Interval = Annotated[
    str, typer.Option(metavar="DURATION", help="How often to look at everything anew, though nothing has happened.")
]
Listen = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Where status, metrics and the API are served; empty: nowhere.")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="A file with the token that requests which change something must carry. [env: KWOKFLEET_TOKEN]",
        show_default=False,
    ),
]
HookSecretFile = Annotated[
    Path | None,
    typer.Option(
        help="A file with the secret that the git host signs POST /hooks/git with. [env: KWOKFLEET_HOOK_SECRET]",
        show_default=False,
    ),
]
Kwok = Annotated[bool, typer.Option("--kwok/--no-kwok", help="Run kwok as well, as the KwokController document says.")]
LeaderElect = Annotated[
    bool, typer.Option("--leader-elect/--no-leader-elect", help="Let only one of several daemons write, by a Lease.")
]
LeaseNamespace = Annotated[
    str | None,
    typer.Option(help="Where that Lease is. [env: POD_NAMESPACE, else kube-system]", show_default=False),
]
Poll = Annotated[
    bool, typer.Option("--poll", help="Look at the files instead of waiting for events: for network folders.")
]
ResultsDir = Annotated[
    Path | None,
    typer.Option(
        help="Where what was measured of Runs is kept.  [default: results in the data folder]", show_default=False
    ),
]


def register(app: typer.Typer) -> None:
    """Add these commands to the program."""
    app.command()(run)
    app.command()(up)


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
    """Keep the cluster equal to the files until stopped: at once when something moves, and on a schedule.

    Several may run for one cluster: one leads, the others stand by. SIGHUP reads the files again.
    """
    from kwokfleet.kube import throttled_client

    output.start_logging()
    if git_url is not None and path is not None:
        raise errors.InputError(
            f"files come from {path} or from --git-url, not from both",
            hint="a folder in the repository: --git-path",
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
    """Start the embedded cluster, and keep it equal to the files until Ctrl-C. The cluster stays.

    The same as `cluster up` and then `run`. `kwokfleet cluster down` removes the cluster.
    """
    from kwokfleet.embedded import cluster, state

    output.start_logging()
    where, address = require_exists(path or files.default_path()), _address(listen)
    with progress.show(output.console(stderr=True)) as report:
        made = cluster.up(cluster_commands.settings_with(bin_dir), name, state.Spec(), report)
    cluster_commands.print_usage(made)
    _run_until_stopped(replace(default_config(where, address, bin_dir), kubeconfig=made.kubeconfig))


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
        progress_display=progress.on_stderr,
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
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise errors.InputError(f"{file} cannot be read: {why}", hint="name a file that holds one line") from error
    if not text:
        raise errors.InputError(f"{file} is empty", hint="write a long random text into it: openssl rand -hex 32")
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
    """Read HOST:PORT, None for nowhere; a port alone is not taken for every address of this machine."""
    if not listen:
        return None
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > _LAST_PORT:
        raise errors.InputError(
            f"--listen {listen!r} is no HOST:PORT with a port up to {_LAST_PORT}",
            hint=f"such as {settings.LISTEN_ADDRESS}; :8265 for every address of this machine",
        )
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104  # as asked


def _wait_for_signal(started: "daemon.Daemon") -> None:
    """Wait for SIGINT or SIGTERM; SIGHUP loads the files again."""
    from kwokfleet.daemon.trigger import PassReason

    signal.signal(signal.SIGHUP, lambda _number, _frame: started.request(PassReason.FILES))
    signals.wait_for(signal.SIGINT, signal.SIGTERM)
