"""`kwokfleet install`: the daemon as a Deployment in a cluster, in one command; again, it is an upgrade."""

import functools
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kwokfleet import errors, settings
from kwokfleet.cli import connection, files, output, render, sync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kwokfleet.install import installer
    from kwokfleet.install.fleet_configmap import FleetConfigMap
    from kwokfleet.install.manifests import GitSource, InstallOptions
    from kwokfleet.kube import throttled_client
    from kwokfleet.kube.objects import Manifest, ObjectKey
    from kwokfleet.source import loader

_GO_ON = "what was done stays: another install goes on from there, uninstall takes it away"

From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="PATH",
        help="The fleet files: a folder, or one file. They go into a ConfigMap.",
        show_default=False,
    ),
]
GitUrl = Annotated[str | None, typer.Option(help="Take the fleet files from this git repository.", show_default=False)]
GitRef = Annotated[str, typer.Option(help="The branch, tag or commit.")]
GitPath = Annotated[str, typer.Option(help="The folder in it that holds the files.")]
GitSync = Annotated[
    bool, typer.Option("--git-sync", help="Let a git-sync sidecar fetch it: for ssh, submodules, proxies.")
]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Where to install; made if it is not there.")]
Image = Annotated[
    str | None,
    typer.Option(help="The image, from a registry of your own.  [default: ours, of this version]", show_default=False),
]
Replicas = Annotated[int, typer.Option(min=1, max=9, help="How many daemons; one leads, the others stand by.")]
Shards = Annotated[
    int, typer.Option(min=0, max=100, help="Run so many kwoks, as pods of their own; 0: one, beside the daemon.")
]
Monitoring = Annotated[
    bool,
    typer.Option("--monitoring", help="Also a ServiceMonitor, alerts and a dashboard, for the Prometheus Operator."),
]
Viewer = Annotated[bool, typer.Option("--viewer", help="Also a ClusterRole for people who may look only.")]
Admission = Annotated[
    bool,
    typer.Option(
        "--admission-policy/--no-admission-policy", help="Let the API server refuse writes to real nodes, too."
    ),
]
Network = Annotated[bool, typer.Option("--network-policy/--no-network-policy", help="Limit whom the pods talk to.")]
KwokKinds = Annotated[
    bool,
    typer.Option("--kwok-crds/--no-kwok-crds", help="Also the definitions of kwok's kinds, where they are missing."),
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the daemon runs and its Fleets are Ready.")]
Force = Annotated[
    bool, typer.Option("--force", help="Take over fields that others have set, and what kubectl or Helm put there.")
]


def install(  # noqa: PLR0913, PLR0917  # one for each option
    from_path: From = None,
    git_url: GitUrl = None,
    git_ref: GitRef = "HEAD",
    git_path: GitPath = ".",
    git_sync: GitSync = False,
    namespace: Namespace = settings.INSTALL_NAMESPACE,
    image: Image = None,
    replicas: Replicas = 1,
    shards: Shards = 0,
    monitoring: Monitoring = False,
    viewer: Viewer = False,
    admission_policy: Admission = True,
    network_policy: Network = True,
    kwok_crds: KwokKinds = True,
    dry_run: Annotated[
        sync.DryRun, typer.Option(help="client: print the manifests; server: let the API server check them, keep none.")
    ] = sync.DryRun.NONE,
    form: Annotated[
        render.ManifestFormat | None,
        typer.Option("--output", "-o", help="How --dry-run=client prints them.  [default: yaml]", show_default=False),
    ] = None,
    wait: Wait = True,
    timeout: sync.Timeout = sync.WAIT_TIMEOUT,
    force: Force = False,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Install kwokfleet into a cluster, or upgrade it, and wait until the fleet is there.

    With the same options it changes nothing; what an older version had and this one lacks is removed. The
    manifests are those of deploy/, for kubectl: --dry-run=client prints them.
    """
    from kwokfleet.install.manifests import GitSource, InstallOptions

    output.start_logging(quiet=True)
    timeout_s = sync.seconds(timeout)
    _refuse_contradictions(from_path, git_url, form, dry_run, git_sync=git_sync)
    git = GitSource(git_url, git_ref, git_path, git_sync) if git_url else None
    if shards and from_path is None:
        output.print_line(f"note: kwok's pods come when the fleet files have {_document(shards)}")
    options = InstallOptions(
        namespace=namespace,
        image=image or "",
        replicas=replicas,
        source=git,
        kwok_pods=bool(shards),
        monitoring=monitoring,
        viewer=viewer,
        admission=admission_policy,
        network_policy=network_policy,
    )
    asked = _Asked(options, from_path, shards, kwok_crds)
    if dry_run is sync.DryRun.CLIENT:
        made, _ = asked.manifests(None)
        render.print_manifests((("", each) for each in made), form or render.ManifestFormat.YAML)
        return
    with ExitStack() as stack:
        connected = functools.cache(lambda: stack.enter_context(connect_throttled(context, kubeconfig)))
        made, goal = asked.manifests(connected)  # what is wrong with the files is said before a cluster is asked
        sender = connected()
        try:
            _carry_out(sender, options, made, goal if wait else None, dry_run=dry_run, timeout_s=timeout_s, force=force)
        except BaseException as error:
            if not isinstance(error, errors.KwokfleetError | typer.Exit) and dry_run is sync.DryRun.NONE:
                output.print_line(_GO_ON)
            raise


def _document(shards: int) -> str:
    return f"a KwokController with shards: {shards}, statefulSet: kwokfleet-kwok"


def _refuse_contradictions(
    from_path: Path | None,
    git_url: str | None,
    form: render.ManifestFormat | None,
    dry_run: sync.DryRun,
    *,
    git_sync: bool,
) -> None:
    if from_path is not None and git_url is not None:
        raise errors.InputError("files come from --from or from --git-url, not from both", hint="leave one out")
    if git_sync and git_url is None:
        raise errors.InputError("--git-sync fetches what?", hint="name the repository: --git-url URL")
    if form is not None and dry_run is not sync.DryRun.CLIENT:
        raise errors.InputError("--output is for --dry-run=client", hint="add it: nothing is installed then")


@contextmanager
def connect_throttled(context: str | None, kubeconfig: Path | None) -> "Iterator[throttled_client.ThrottledClient]":
    """Connect, until the block ends."""
    import threading

    from kwokfleet.kube import throttled_client

    api = connection.connect(context, kubeconfig)
    stop = threading.Event()
    try:
        yield throttled_client.ThrottledClient(api, throttled_client.ClientLimits(), stop)
    finally:
        stop.set()
        api.close()


class _Asked:
    """What somebody asked for, on the way to manifests."""

    def __init__(self, options: "InstallOptions", path: Path | None, shards: int, kwok_kinds: bool) -> None:  # noqa: FBT001  # handed on
        self._options, self._path, self._shards, self._kwok_kinds = options, path, shards, kwok_kinds

    def manifests(
        self, connected: "Callable[[], throttled_client.ThrottledClient] | None"
    ) -> "tuple[list[Manifest], installer.ReadinessGoal]":
        """Return the manifests, and what to wait for; a cluster is asked only if the files are about live nodes."""
        from dataclasses import replace

        from kwokfleet import app
        from kwokfleet.cli import progress
        from kwokfleet.install import bundle, installer, manifests, ownership

        files: FleetConfigMap | GitSource | None = self._options.source
        goal = installer.ReadinessGoal(self._options.namespace, None if files else frozenset())
        if self._path is not None:
            files, goal = self._packed(self._path, connected)
        made = manifests.build(bundle.manifests(), replace(self._options, source=files))
        made += app.kwok_definitions(output.read_settings(), progress.on_stderr) if self._kwok_kinds else []
        return sorted(made, key=ownership.rank), goal

    def _packed(
        self, path: Path, connected: "Callable[[], throttled_client.ThrottledClient] | None"
    ) -> "tuple[FleetConfigMap, installer.ReadinessGoal]":
        from kwokfleet.install import bundle, installer
        from kwokfleet.source import loader

        def live(context: str | None) -> "list[Manifest]":
            return render.live_nodes(None, connected() if connected else None)(context)

        loaded = files.load(loader.Loader(live), path)
        files.require_valid(loaded)
        made = bundle.pack_files(path, loaded, self._said_of_kwok(loaded))
        names = sorted(each.name for each in loaded.tree.fleets)
        counted = f"{files.count(len(made.data), 'file')} with {files.count(len(names), 'fleet')}"
        output.print_line(f"{counted}: {', '.join(names) or '-'}")
        awake = frozenset(each.name for each in loaded.tree.fleets if not each.spec.suspend)
        return made, installer.ReadinessGoal(self._options.namespace, awake, bundle.digest(made))

    def _said_of_kwok(self, loaded: "loader.Loaded") -> dict[str, str]:
        """Return the file that puts kwok into pods of its own, unless the fleet files do."""
        from kwokfleet.install import bundle, manifests

        if not self._shards:
            return {}
        if not bundle.declares_kwok(loaded):
            return {manifests.KWOK_FILE: manifests.kwok_document(self._shards)}
        spec = loaded.tree.controller
        if spec.stateful_set is None or spec.shards != self._shards:
            raise errors.InputError(
                f"--shards {self._shards}, but the KwokController document of these files says otherwise",
                hint=f"write there: shards: {self._shards}, statefulSet: {manifests.KWOK}",
            )
        return {}


def _carry_out(  # noqa: PLR0913  # all that was asked for
    sender: "throttled_client.ThrottledClient",
    options: "InstallOptions",
    made: "list[Manifest]",
    goal: "installer.ReadinessGoal | None",
    *,
    dry_run: sync.DryRun,
    timeout_s: float,
    force: bool,
) -> None:
    from kwokfleet import app
    from kwokfleet.install import installer

    work = installer.Installer(sender, force=force)
    survey = work.inspect(made, options.namespace)
    _refuse_lost_files(survey, options)
    if dry_run is sync.DryRun.SERVER:
        work.dry_run(survey, lambda key, what: _tell(key, what, " (server dry run)"))
        return
    work.dry_run(survey)
    work.apply(survey, _tell, app.ESTABLISHED_S)
    if goal is not None:
        installer.wait_until_ready(sender, goal, timeout_s, lambda text: output.print_line(f"waiting: {text}"))
    _tell_how_to_look(options, goal)


def _refuse_lost_files(survey: "installer.InstallState", options: "InstallOptions") -> None:
    """Refuse to take away where a running daemon has its files from, only because nobody has named it again."""
    from kwokfleet.install import manifests

    if options.source is not None or any(each["metadata"]["name"] == manifests.FILES for each in survey.wanted):
        return
    packed = any(each["metadata"]["name"] == manifests.FILES for _, each in survey.surplus)
    if packed or manifests.reads_git(survey.live.values()):
        raise errors.InputError(
            "the daemon that is installed has fleet files, and these options name none",
            hint="an installation says all it wants: name them again, with --from PATH or --git-url URL",
        )


def _tell(key: "ObjectKey", what: "installer.ApplyResult", more: str = "") -> None:
    from kwokfleet.install import installer

    typer.echo(f"{installer.display_name(key)} {what}{more}")


def _tell_how_to_look(options: "InstallOptions", goal: "installer.ReadinessGoal | None") -> None:
    where = f"--namespace {options.namespace}"
    if goal is None:
        output.print_line(f"installed; see how it comes along: kubectl {where} get pods")
    elif options.source is None and not goal.digest:
        output.print_line(
            "kwokfleet runs, and has nothing to do; give it files: install again with --from or --git-url"
        )
    else:
        output.print_line("kwokfleet runs, and every fleet is Ready")
    output.print_line(f"next: kubectl get fleets; kubectl {where} logs deployment/kwokfleet --follow")
