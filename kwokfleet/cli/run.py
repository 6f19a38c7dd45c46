"""`kwokfleet run` and `kwokfleet up`: keep a cluster equal to files, for as long as it runs."""

import os
import signal
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kwokfleet import errors
from kwokfleet.cli import cluster as cluster_commands
from kwokfleet.cli import connection, files, output, render, signals, sync
from kwokfleet.kube import leader_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Set as AbstractSet

    from kwokfleet.daemon import daemon, facade, kwok_manager, metrics
    from kwokfleet.kube import client, leader, throttled_client
    from kwokfleet.kube.observed import Inventory
    from kwokfleet.reconcile import sync as syncing
    from kwokfleet.source import sources

DEFAULT_LISTEN = "127.0.0.1:8265"
LEASE = "kwokfleet"
IMPATIENT_S = 2.0
"""How long a question about kwok may go unanswered: its process must be looked at meanwhile."""
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


@dataclass(frozen=True, slots=True)
class Options:
    """How to run."""

    path: Path
    git_url: str | None
    git_ref: str
    git_path: str
    git_interval_s: float
    interval: timedelta
    listen: tuple[str, int] | None
    token: str
    hook_secret: str
    kwok: bool
    elect: bool
    lease_namespace: str
    poll: bool
    qps: float
    max_inflight: int
    bin_dir: Path | None
    results_dir: Path


def register(app: typer.Typer) -> None:
    """Add these commands to the program."""
    app.command()(run)
    app.command()(up)


def run(  # noqa: PLR0913, PLR0917  # one for each option
    path: files.OnePath = None,
    git_url: GitUrl = None,
    git_ref: GitRef = "HEAD",
    git_path: GitPath = ".",
    git_interval: GitInterval = "1m",
    interval: Interval = "10m",
    listen: Listen = DEFAULT_LISTEN,
    token_file: TokenFile = None,
    hook_secret_file: HookSecretFile = None,
    kwok: Kwok = True,
    leader_elect: LeaderElect = True,
    lease_namespace: LeaseNamespace = None,
    poll: Poll = False,
    qps: sync.Qps = 0,
    max_inflight: sync.MaxInflight = 128,
    results_dir: ResultsDir = None,
    bin_dir: cluster_commands.BinDir = None,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Keep the cluster equal to the files until stopped: at once when something moves, and on a schedule.

    Several may run for one cluster: one leads, the others stand by. SIGHUP reads the files again.
    """
    output.start_logging()
    if git_url is not None and path is not None:
        raise errors.InputError(
            f"files come from {path} or from --git-url, not from both",
            hint="a folder in the repository: --git-path",
        )
    options = Options(
        there(path or files.default_path()),
        git_url,
        git_ref,
        git_path,
        sync.seconds(git_interval, "--git-interval"),
        timedelta(seconds=sync.seconds(interval, "--interval")),
        _address(listen),
        _secret(token_file, "KWOKFLEET_TOKEN"),
        _secret(hook_secret_file, "KWOKFLEET_HOOK_SECRET"),
        kwok,
        leader_elect,
        lease_namespace or os.environ.get("POD_NAMESPACE") or "kube-system",
        poll,
        qps,
        max_inflight,
        bin_dir,
        results_dir or results(),
    )
    _run(options, context, kubeconfig)


def up(
    path: files.OnePath = None,
    name: cluster_commands.Name = "default",
    listen: Listen = DEFAULT_LISTEN,
    bin_dir: cluster_commands.BinDir = None,
) -> None:
    """Start the embedded cluster, and keep it equal to the files until Ctrl-C. The cluster stays.

    The same as `cluster up` and then `run`. `kwokfleet cluster down` removes the cluster.
    """
    from kwokfleet.cli import progress
    from kwokfleet.embedded import cluster, state

    output.start_logging()
    where, address = there(path or files.default_path()), _address(listen)
    with progress.shown(output.console(stderr=True)) as report:
        made = cluster.up(cluster_commands.settings_with(bin_dir), name, state.Spec(), report)
    cluster_commands.print_how_to_use(made)
    _run(usual(where, address, bin_dir), None, made.kubeconfig)


def usual(path: Path, listen: tuple[str, int] | None, bin_dir: Path | None) -> Options:
    """Return how to run where nobody said how."""
    return Options(path, None, "", "", 0.0, timedelta(minutes=10), listen, _secret(None, "KWOKFLEET_TOKEN"), "",
                   kwok=True, elect=True, lease_namespace="kube-system", poll=False, qps=0.0, max_inflight=128,
                   bin_dir=bin_dir, results_dir=results())  # fmt: skip


def results() -> Path:
    """Return where Results are kept unless somebody says otherwise."""
    return output.read_settings().data_dir / "results"


def there(path: Path) -> Path:
    """Refuse a path that is not there: one that vanishes later only freezes, but now somebody has mistyped it."""
    if not path.exists():
        raise errors.InputError(
            f"there is no file or folder {path}", hint="name a folder with *.yaml files, or begin with kwokfleet init"
        )
    return path


def _secret(file: Path | None, variable: str) -> str:
    if file is None:
        return os.environ.get(variable, "")
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise errors.InputError(f"{file} cannot be read: {why}", hint="name a file that holds one line") from error
    if not text:
        raise errors.InputError(f"{file} is empty", hint="write a long random text into it: openssl rand -hex 32")
    return text


def _run(options: Options, context: str | None, kubeconfig: Path | None) -> None:
    """Let a daemon run until a signal comes."""
    import structlog

    import kwokfleet
    from kwokfleet.source import git_command

    log = structlog.get_logger()
    log.info("starting", version=kwokfleet.__version__, files=git_command.public(options.git_url or str(options.path)))
    with opened(options, context, kubeconfig) as made:
        _until_stopped(made)
        log.info("stopping")
    log.info("stopped")


@contextmanager
def opened(options: Options, context: str | None, kubeconfig: Path | None) -> "Iterator[daemon.Daemon]":
    """Put a daemon together, let it run until the block ends, and take it apart again, in reverse order."""
    from kwokfleet.daemon import daemon, facade, metrics
    from kwokfleet.kube import leader, requests
    from kwokfleet.kube.informer import informer

    with ExitStack() as stack:
        api = connection.connected(context, kubeconfig)
        stack.callback(api.close)
        counted = metrics.Metrics(lambda: shown.picture())  # noqa: PLW0108  # made below
        elected = _elected(api, options, lambda leads: made.leading(leads)) if options.elect else None  # noqa: PLW0108  # made below
        guarded = leader.Guarded(api, elected, counted.api_request)
        follower = stack.enter_context(informer.Mirror(guarded, requests.MANAGED))
        told = stack.enter_context(informer.Mirror(guarded, (requests.FLEET,)))
        follower.tell_restarts(counted.watch_restarted)
        how = daemon.How(
            leader_identity.name(), options.interval, _limits(options), prepare=_prepare, results=options.results_dir
        )
        made = daemon.Daemon(guarded, _feed(options, guarded), follower, told, how, counted)
        shown = facade.Face(made)
        if options.kwok:
            made.caretaker = _caretaker(options, api, guarded, made, (context, kubeconfig))
        _served(stack, options, shown, counted)
        stack.enter_context(made)
        if elected is not None:
            elected.start()
        yield made


def _elected(api: "client.Cluster", options: Options, changed: "Callable[[bool], None]") -> "leader.Leader":
    from kwokfleet.kube import election, leader

    seat = election.Seat(options.lease_namespace, LEASE, leader_identity.name())
    return leader.Leader(api, seat, election.Timing(), changed, leader_identity.is_dead)


def _limits(options: Options) -> "throttled_client.Limits":
    from kwokfleet.kube import throttled_client

    return throttled_client.Limits(options.max_inflight, options.qps)


def _feed(options: Options, api: "leader.Guarded") -> "sources.Feed":
    import hashlib

    from kwokfleet.source import git_repository, sources
    from kwokfleet.source import loader as source

    loader = source.Loader(render.live_nodes(None, api))
    if options.git_url is None:
        return sources.Folder(options.path, loader, events=not options.poll)
    name = hashlib.sha256(f"{options.git_url}\n{options.git_ref}".encode()).hexdigest()[:12]
    folder = output.read_settings().data_dir / "git" / name
    repository = git_repository.Repository(options.git_url, options.git_ref, options.git_path, folder)
    return sources.Git(
        repository, loader, interval_s=options.git_interval_s, ref=options.git_ref, secret=options.hook_secret
    )


def _caretaker(
    options: Options,
    api: "client.Cluster",
    guarded: "leader.Guarded",
    made: "daemon.Daemon",
    chosen: tuple[str | None, Path | None],
) -> "kwok_manager.Caretaker":
    from kwokfleet.api.kwok_controller import Manage
    from kwokfleet.cli import kwok as kwok_commands
    from kwokfleet.cli import progress
    from kwokfleet.daemon import kwok_manager
    from kwokfleet.daemon.trigger import Why
    from kwokfleet.embedded import binaries
    from kwokfleet.kube import client, objects, throttled_client

    with progress.shown(output.console(stderr=True)) as report:
        program = binaries.ensure(cluster_commands.settings_with(options.bin_dir), report, "kwok").path("kwok")
    folder = kwok_commands.folder_of(api.host)
    sender = throttled_client.Sender(guarded, throttled_client.Limits(patience_s=IMPATIENT_S), threading.Event())

    known: list[tuple[Inventory, Manage, list[tuple[str, str]]]] = []

    def nodes() -> list[tuple[str, str]]:
        """Return all nodes that kwok drives, with their shards: asked for again and again, while nothing changes."""
        manage = made.loaded.tree.controller.manage if made.loaded else Manage()
        there = made.mirror.view().objects
        if not known or known[0][0] is not there or known[0][1] != manage:
            nodes = (each for each in there.values() if each.key.kind == "Node")
            found = ((each.key.name, objects.labels(each.manifest)) for each in nodes)
            named = sorted((name, labels.get(objects.SHARD, "")) for name, labels in found if manage.matches(labels))
            known[:] = [(there, manage, named)]
        return known[0][2]

    written = client.write_kubeconfig(*chosen, folder)
    home = os.environ.get("POD_NAMESPACE") or kwok_manager.HOME
    return kwok_manager.Caretaker(sender, program, written, folder, nodes, lambda: made.ask(Why.KWOK), api, home)


def _prepare(session: "syncing.Sync", kinds: "AbstractSet[str]") -> None:
    """Put the definitions of the kinds that are needed, and of our own, in place."""
    import structlog

    from kwokfleet.reconcile import applier

    missing = kinds & session.mirror.view().missing
    wanted = sync.own_definition() + (sync.kwok_definitions() if missing else [])
    for name in applier.install(session.sender, wanted, sync.ESTABLISHED_S):
        structlog.get_logger().info("installed", definition=name)
    session.mirror.follow(kinds)
    session.mirror.wait(lambda now: not kinds & now.missing, sync.ESTABLISHED_S)


def _served(stack: ExitStack, options: Options, shown: "facade.Face", counted: "metrics.Metrics") -> None:
    from kwokfleet.server import http_server

    if options.listen is None:
        return
    host, port = options.listen
    asked = http_server.Options(host=host, port=port, token=options.token)
    service = http_server.Service(shown, counted.page, counted.served, asked)
    service.start()
    stack.callback(service.stop)


def _address(listen: str) -> tuple[str, int] | None:
    """Read HOST:PORT, None for nowhere; a port alone is not taken for every address of this machine."""
    if not listen:
        return None
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > _LAST_PORT:
        raise errors.InputError(
            f"--listen {listen!r} is no HOST:PORT with a port up to {_LAST_PORT}",
            hint=f"such as {DEFAULT_LISTEN}; :8265 for every address of this machine",
        )
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104  # as asked


def _until_stopped(made: "daemon.Daemon") -> None:
    """Wait for a signal; SIGHUP asks for another look at the files."""
    from kwokfleet.daemon.trigger import Why

    signal.signal(signal.SIGHUP, lambda _number, _frame: made.ask(Why.FILES))
    signals.wait_for(signal.SIGINT, signal.SIGTERM)
