"""`kwokfleet install`: installs or upgrades the daemon as a Deployment in a cluster."""

import functools
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kwokfleet import errors, settings
from kwokfleet.cli import connection, files, output, render, sync

if TYPE_CHECKING:
    from collections.abc import Callable

    from kwokfleet.install import installer
    from kwokfleet.install.fleet_configmap import FleetConfigMap
    from kwokfleet.install.manifests import InstallGitSource, InstallOptions
    from kwokfleet.kube import throttled_client
    from kwokfleet.kube.objects import Manifest, ObjectKey
    from kwokfleet.source import loader

    _Connected = Callable[[], throttled_client.ThrottledClient]

_NEXT_RUN = "applied objects stay; the next install continues, uninstall removes them"

From = Annotated[
    Path | None,
    typer.Option("--from", metavar="PATH", help="Fleet files: a folder or a file. They are stored in a ConfigMap."),
]
GitUrl = Annotated[str | None, typer.Option(help="Read the fleet files from this git repository.")]
GitRef = Annotated[str, typer.Option(help="Branch, tag or commit.")]
GitPath = Annotated[str, typer.Option(help="Folder of the files in the repository.")]
GitSync = Annotated[
    bool, typer.Option("--git-sync", help="Fetch with a git-sync sidecar: for ssh, submodules, proxies.")
]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Target namespace; created if it does not exist.")]
Image = Annotated[str | None, typer.Option(help="Container image. [default: the published image of this version]")]
Replicas = Annotated[int, typer.Option(min=1, max=9, help="Number of daemons; one is the leader.")]
Shards = Annotated[
    int, typer.Option(min=0, max=100, help="Number of kwok pods; 0: one kwok process beside the daemon.")
]
Monitoring = Annotated[
    bool,
    typer.Option("--monitoring", help="Also install a ServiceMonitor, alerts and a dashboard (Prometheus Operator)."),
]
Viewer = Annotated[bool, typer.Option("--viewer", help="Also install a ClusterRole for read-only users.")]
Admission = Annotated[
    bool,
    typer.Option(
        "--admission-policy/--no-admission-policy", help="Also let the API server reject writes to real nodes."
    ),
]
Network = Annotated[
    bool, typer.Option("--network-policy/--no-network-policy", help="Restrict the network traffic of the pods.")
]
KwokKinds = Annotated[bool, typer.Option("--kwok-crds/--no-kwok-crds", help="Also install missing CRDs of kwok.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the daemon runs and its Fleets are Ready.")]
Force = Annotated[
    bool, typer.Option("--force", help="Take over fields of other managers, and objects installed by kubectl or Helm.")
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
        sync.DryRun, typer.Option(help="client: print the manifests; server: the API server validates them.")
    ] = "none",
    form: Annotated[
        render.ManifestFormat | None,
        typer.Option("--output", "-o", help="Output format of --dry-run=client. [default: yaml]"),
    ] = None,
    wait: Wait = True,
    timeout: sync.Timeout = sync.WAIT_TIMEOUT,
    force: Force = False,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Install or upgrade kwokfleet in a cluster, and wait until its fleets are Ready.

    With the same options nothing changes. Objects of an older version that this version does not have are deleted.
    The manifests are those of deploy/; --dry-run=client prints them for kubectl.
    """
    from kwokfleet.install.manifests import InstallGitSource, InstallOptions

    output.start_logging(quiet=True)
    timeout_s = sync.seconds(timeout)
    _check_options(from_path, git_url, form, dry_run, git_sync=git_sync)
    git = InstallGitSource(git_url, git_ref, git_path, git_sync) if git_url else None
    if shards and from_path is None:
        document = f"a KwokController with shards: {shards}, statefulSet: kwokfleet-kwok"
        output.print_line(f"note: kwok pods start when the fleet files contain {document}")
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
    if dry_run == "client":
        objects, _ = _manifests(options, from_path, shards, None, kwok_crds=kwok_crds)
        render.print_manifests((("", manifest) for manifest in objects), form or "yaml")
        return
    with ExitStack() as stack:
        connected = functools.cache(lambda: stack.enter_context(connection.connect_throttled(context, kubeconfig)))
        # Errors in files are reported before the cluster is used.
        objects, goal = _manifests(options, from_path, shards, connected, kwok_crds=kwok_crds)
        sender = connected()
        try:
            _apply(sender, options, objects, goal if wait else None, dry_run=dry_run, timeout_s=timeout_s, force=force)
        except BaseException as error:
            if not isinstance(error, errors.KwokfleetError | typer.Exit) and dry_run == "none":
                output.print_line(_NEXT_RUN)
            raise


def _check_options(
    from_path: Path | None,
    git_url: str | None,
    form: render.ManifestFormat | None,
    dry_run: sync.DryRun,
    *,
    git_sync: bool,
) -> None:
    if from_path is not None and git_url is not None:
        raise errors.InputError("--from and --git-url exclude each other", hint="use one of them")
    if git_sync and git_url is None:
        raise errors.InputError("--git-sync needs --git-url", hint="name the repository: --git-url URL")
    if form is not None and dry_run != "client":
        raise errors.InputError("--output needs --dry-run=client", hint="add --dry-run=client to print the manifests")


def _manifests(
    options: "InstallOptions", path: Path | None, shards: int, connected: "_Connected | None", *, kwok_crds: bool
) -> "tuple[list[Manifest], installer.ReadinessGoal]":
    """Return the manifests and the goal to wait for; the cluster is used only if files refer to live nodes."""
    from dataclasses import replace

    from kwokfleet import app
    from kwokfleet.install import bundle, installer, manifests, ownership

    source: FleetConfigMap | InstallGitSource | None = options.source
    goal = installer.ReadinessGoal(options.namespace, None if source else frozenset())
    if path is not None:
        loaded = _load(path, connected)
        source = bundle.pack_files(path, loaded, _kwok_file(loaded, shards))
        names = sorted(fleet.name for fleet in loaded.tree.fleets)
        summary = f"{files.count(len(source.data), 'file')} with {files.count(len(names), 'fleet')}"
        output.print_line(f"{summary}: {', '.join(names) or '-'}")
        active = frozenset(fleet.name for fleet in loaded.tree.fleets if not fleet.spec.suspend)
        goal = installer.ReadinessGoal(options.namespace, active, bundle.digest(source))
    objects = manifests.build(bundle.manifests(), replace(options, source=source))
    objects += app.kwok_definitions(output.read_settings(), output.show_progress) if kwok_crds else []
    return sorted(objects, key=ownership.rank), goal


def _load(path: Path, connected: "_Connected | None") -> "loader.Loaded":
    from kwokfleet.source import loader

    def live_nodes(context: str | None) -> "list[Manifest]":
        return render.live_nodes(None, connected() if connected else None)(context)

    loaded = files.load(loader.Loader(live_nodes), path)
    files.require_valid(loaded)
    return loaded


def _kwok_file(loaded: "loader.Loaded", shards: int) -> dict[str, str]:
    """Return the KwokController file for --shards, unless the fleet files have one."""
    from kwokfleet.install import bundle, manifests

    if not shards:
        return {}
    if not bundle.declares_kwok(loaded):
        return {manifests.KWOK_FILE: manifests.kwok_document(shards)}
    spec = loaded.tree.controller
    if spec.stateful_set is None or spec.shards != shards:
        raise errors.InputError(
            f"--shards {shards} contradicts the KwokController document of these files",
            hint=f"set in that document: shards: {shards}, statefulSet: {manifests.KWOK}",
        )
    return {}


def _apply(  # noqa: PLR0913  # the options of the command
    sender: "throttled_client.ThrottledClient",
    options: "InstallOptions",
    objects: "list[Manifest]",
    goal: "installer.ReadinessGoal | None",
    *,
    dry_run: sync.DryRun,
    timeout_s: float,
    force: bool,
) -> None:
    from kwokfleet import app
    from kwokfleet.install import installer

    work = installer.Installer(sender, force=force)
    survey = work.inspect(objects, options.namespace)
    _require_files(survey, options)
    if dry_run == "server":
        work.dry_run(survey, lambda key, what: _print_result(key, what, " (server dry run)"))
        return
    work.dry_run(survey)
    work.apply(survey, _print_result, app.ESTABLISHED_S)
    if goal is not None:
        installer.wait_until_ready(sender, goal, timeout_s, lambda text: output.print_line(f"waiting: {text}"))
    _print_next_steps(options, goal)


def _require_files(survey: "installer.InstallState", options: "InstallOptions") -> None:
    """Raise if an upgrade would remove the file source of a running daemon."""
    from kwokfleet.install import manifests

    if options.source is not None or any(desired["metadata"]["name"] == manifests.FILES for desired in survey.desired):
        return
    packed = any(surplus["metadata"]["name"] == manifests.FILES for _, surplus in survey.surplus)
    if packed or manifests.reads_git(survey.live.values()):
        raise errors.InputError(
            "the installed daemon has fleet files, and these options name none",
            hint="name them again: --from PATH or --git-url URL",
        )


def _print_result(key: "ObjectKey", what: "installer.ApplyResult", more: str = "") -> None:
    from kwokfleet.install import installer

    typer.echo(f"{installer.display_name(key)} {what}{more}")


def _print_next_steps(options: "InstallOptions", goal: "installer.ReadinessGoal | None") -> None:
    where = f"--namespace {options.namespace}"
    if goal is None:
        output.print_line(f"installed; watch its pods: kubectl {where} get pods")
    elif options.source is None and not goal.digest:
        output.print_line("kwokfleet runs without fleet files; add them: install again with --from or --git-url")
    else:
        output.print_line("kwokfleet runs, and all fleets are Ready")
    output.print_line(f"next: kubectl get fleets; kubectl {where} logs deployment/kwokfleet --follow")
