"""`kwokfleet kwok`: the controller that plays the Stages, looked after."""

import json
import time
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kwokfleet import errors, settings
from kwokfleet.cli import cluster as cluster_commands
from kwokfleet.cli import connection, files, output, render

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kwokfleet.api.kwok_controller import KwokControllerSpec
    from kwokfleet.kube.requests import RequestSender
    from kwokfleet.kwok import lease_health, shard, supervisor
    from kwokfleet.source import loader

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The kwok controller that animates the nodes, looked after."
)

RESTART_S = 60.0
IMPATIENT_S = 2.0
"""How long a question about kwok may go unanswered: its process must be looked at meanwhile."""
LOOK_S = 1.0
"""How often the files are looked at for another way to run kwok."""
OBSERVE_S = 2.0
"""How often it is looked at who drives the nodes, where kwok is somebody else's."""
FEW = 5
EXTERNAL = "the KwokController document says `mode: external`: somebody else runs kwok"
ShardNumber = Annotated[int | None, typer.Option("--shard", min=0, help="Only this shard.", show_default="all")]


def _folder(host: str) -> Path:
    """Return the folder with the files of one cluster's kwok."""
    from kwokfleet import app as composition

    return composition.kwok_folder(output.read_settings().data_dir, host)


class _DeclaredController:
    """The last valid fleet files: they declare how kwok runs."""

    def __init__(self, path: Path) -> None:
        from kwokfleet.source import loader

        self._path = path
        self._loader = loader.Loader(render.live_nodes(None))
        self._errors: tuple[str, ...] = ()
        self.loaded: loader.Loaded = self._loader.load(path)
        files.require_valid(self.loaded)

    def reload(self) -> "loader.Loaded":
        """Load the files again; keep the last valid ones if there are errors, and print these once."""
        file_errors, loaded = self._load()
        if file_errors and file_errors != self._errors:
            for line in file_errors:
                output.print_line(line)
            output.print_line("kwok continues with the last valid files")
        if self._errors and not file_errors:
            output.print_line("the files are valid again")
        self._errors = file_errors
        self.loaded = loaded
        return loaded

    def _load(self) -> "tuple[tuple[str, ...], loader.Loaded]":
        """Return the errors, and the files, or the last valid ones if there are errors."""
        try:
            loaded = self._loader.load(self._path)
        except errors.KwokfleetError as error:  # the path is missing, perhaps only for a moment
            return (f"error: {error}",), self.loaded
        if not loaded.usable:
            return tuple(files.problem_line(problem) for problem in loaded.problems), self.loaded
        return ((f"error: {loaded.frozen}",), self.loaded) if loaded.frozen else ((), loaded)


@app.command()
def run(
    path: files.OnePath = None,
    bin_dir: cluster_commands.BinDir = None,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Run kwok as the KwokController document says, and keep it running, until Ctrl-C.

    Another kwok controller in the cluster is refused by name, or with `takeover: {policy: scaleDown}` put to
    rest and given back its replicas in the end. With `mode: external` nothing is started: it is said who drives
    the nodes, and when that changes, lags or ends.
    """
    output.start_logging()
    declared = _DeclaredController(path or files.default_path())
    while True:  # a signal ends it
        if declared.loaded.tree.controller.mode == "external":
            _observe(declared, context, kubeconfig)
        else:
            _keep(declared, bin_dir, context, kubeconfig)


def _keep(declared: _DeclaredController, bin_dir: Path | None, context: str | None, kubeconfig: Path | None) -> None:
    """Keep kwok going for as long as the files say that it is ours."""
    from kwokfleet.daemon import kwok_manager

    with _kept(declared, bin_dir, context, kubeconfig) as kept:
        output.print_line(f"kwok runs: {output.program()} kwok status; Ctrl-C ends it")
        while declared.reload().tree.controller.mode == "managed":
            if kwok_manager.must_move(declared.loaded.tree.controller, _home(), kept):
                kept.end()
                return
            wanted = kwok_manager.desired_kwok(declared.loaded, kept.wanted)
            if wanted != kept.wanted:
                kept.change(wanted)
            kept.retire()
            time.sleep(LOOK_S)


def _observe(declared: _DeclaredController, context: str | None, kubeconfig: Path | None) -> None:
    """Say who drives the nodes for as long as the files say that kwok is somebody else's."""
    import threading

    from kwokfleet.kube import throttled_client
    from kwokfleet.kwok import external

    with closing(connection.connect(context, kubeconfig)) as api:
        sender = throttled_client.ThrottledClient(
            api, throttled_client.ClientLimits(patience_s=IMPATIENT_S), threading.Event()
        )
        output.print_line(f"{EXTERNAL}; who drives the nodes is said here; Ctrl-C ends it")
        spec = declared.loaded.tree.controller
        watching = external.ExternalObserver(sender, spec)
        while declared.reload().tree.controller.mode == "external":
            if declared.loaded.tree.controller != spec:
                spec = declared.loaded.tree.controller
                watching = external.ExternalObserver(sender, spec)
            watching.look()
            time.sleep(OBSERVE_S)


@contextmanager
def _kept(
    declared: _DeclaredController, bin_dir: Path | None, context: str | None, kubeconfig: Path | None
) -> "Iterator[supervisor.Supervisor]":
    """Keep kwok going from here to the end of the block."""
    import threading

    from kwokfleet import app as composition
    from kwokfleet.cli import progress
    from kwokfleet.daemon import kwok_manager
    from kwokfleet.embedded import binaries
    from kwokfleet.kube import client, objects, requests, throttled_client
    from kwokfleet.kwok import backend, supervisor, takeover
    from kwokfleet.reconcile import applier
    from kwokfleet.render import desired

    loaded = declared.loaded
    spec = loaded.tree.controller
    with progress.show(output.console(stderr=True)) as report:
        program = binaries.ensure(cluster_commands.settings_with(bin_dir), report, "kwok").path("kwok")
    api = connection.connect(context, kubeconfig)
    stop = threading.Event()
    sender = throttled_client.ThrottledClient(api, throttled_client.ClientLimits(patience_s=IMPATIENT_S), stop)
    folder = _folder(api.host)
    with connection.run_informer(api, (requests.NODE,)) as follower:
        connection.wait_until_listed(follower)

        def nodes() -> list[tuple[str, str]]:
            manage = declared.loaded.tree.controller.manage
            found = ((each.key.name, objects.labels(each.manifest)) for each in follower.view().objects.values())
            return sorted((name, labels.get(objects.SHARD, "")) for name, labels in found if manage.matches(labels))

        known = kwok_manager.own_holders(spec, _home(), folder)
        rested = takeover.take_over(sender, spec, known, nodes, stop, _home())
        if not desired.cluster_kinds(loaded.tree) <= _kinds(sender):
            definitions = composition.kwok_definitions(output.read_settings(), progress.on_stderr)
            for name in applier.ensure_definitions(sender, definitions, composition.ESTABLISHED_S):
                output.print_line(f"installed {name}")
        wanted = kwok_manager.desired_kwok(
            loaded, backend.DesiredKwok(program, spec, client.write_kubeconfig(context, kubeconfig, folder))
        )
        where = kwok_manager.select_backend(spec, _home(), folder, sender, api)
        try:
            with supervisor.Supervisor(sender, wanted, folder, nodes, api, where) as kept:
                yield kept
        finally:
            if rested:
                takeover.restore(sender)


def _home() -> str:
    """Return the namespace in which a StatefulSet is looked for that was named without one."""
    return settings.pod_namespace(settings.INSTALL_NAMESPACE)


def _kinds(api: "RequestSender") -> set[str]:
    """Return which of kwok's kinds the cluster knows."""
    from kwokfleet.kube import objects, requests

    found = api.send(requests.Request("GET", f"/apis/{objects.STAGE_API_VERSION}")).json().get("resources") or ()
    return {each["kind"] for each in found}


@app.command()
def status(
    path: files.OnePath = None,
    form: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Show the kwok processes of this machine, or kwok's pods if the files say so, and who drives the nodes.

    Exit code 1 unless every process or pod is ready; if the files say `mode: external`, unless every node is driven.
    """
    from kwokfleet.kwok import external, pod_backend, statefulset, supervisor
    from kwokfleet.kwok.shard import ShardState

    spec = _declared(path)
    api = connection.connect(context, kubeconfig)
    statuses = supervisor.read_status(_folder(api.host)) or []
    now = external.driver_health(api, spec)
    if not statuses and (name := statefulset.from_spec(spec, _home())):
        statuses = pod_backend.statuses(api, name, now, spec.lease_duration.total_seconds() / 4)
    if form:
        typer.echo(json.dumps(_as_json(spec.mode, statuses, now), indent=2))
    else:
        _print_status(spec.mode, statuses, now)
    well = bool(statuses) and all(each.state is ShardState.READY for each in statuses)
    if not (now.is_complete if spec.mode == "external" else well):
        raise typer.Exit(errors.ExitCode.NO)


def _declared(path: Path | None) -> "KwokControllerSpec":
    """Return how kwok runs by the files, if there are any: with a path they must be readable, without it they may."""
    from kwokfleet.api.kwok_controller import KwokControllerSpec
    from kwokfleet.source import loader

    where = path or Path("fleets")
    return loader.Loader().load(where).tree.controller if path or where.is_dir() else KwokControllerSpec()


def _as_json(mode: str, statuses: "list[shard.ShardStatus]", now: "lease_health.DriverHealth") -> dict[str, object]:
    return {
        "mode": mode,
        "processes": [asdict(each) for each in statuses],
        "nodes": {"count": now.nodes, "undriven": list(now.undriven), "lagSeconds": now.lag_s},
        "holders": _holders(now),
    }


def _holders(now: "lease_health.DriverHealth") -> list[dict[str, object]]:
    return [
        {
            "holder": each.holder,
            "nodes": each.nodes,
            "fresh": each.fresh,
            "oldestRenewalSeconds": each.oldest_s,
            "lagSeconds": each.lag_s,
        }
        for each in now.drivers
    ]


def _print_status(mode: str, statuses: "list[shard.ShardStatus]", now: "lease_health.DriverHealth") -> None:
    if mode == "external":
        output.print_line(EXTERNAL)
    elif not statuses:
        output.print_line("kwokfleet looks after no kwok of this cluster here; start one: kwokfleet kwok run")
    if statuses:
        typer.echo(output.table([_row(each) for each in statuses]) + "\n")
    if now.drivers:
        typer.echo(output.table(_holders(now)) + "\n")
    driven = now.nodes - len(now.undriven)
    first = f"; not driven: {', '.join(now.undriven[:FEW])}{' …' * (len(now.undriven) > FEW)}" if now.undriven else ""
    typer.echo(f"{driven} of {files.count(now.nodes, 'node')} driven{first}")


def _row(each: "shard.ShardStatus") -> dict[str, object]:
    return {
        "shard": each.shard,
        "state": each.state.value,
        "pod" if each.pod else "pid": each.pod or each.pid or "-",
        "port": each.port or "-",
        "memory": f"{each.memory >> 20} MB",
        "restarts": each.restarts,
        "lag": f"{each.lag_s:g} s",
        "ended": each.why or "-",
    }


@app.command()
def logs(
    shard: ShardNumber = None,
    tail: Annotated[int, typer.Option(min=0, help="How many lines of the past to show of each.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")] = False,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Show what kwok said."""
    import signal

    from kwokfleet.embedded import logs as tails

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `logs | head` is no failure
    folder = _folder(connection.connect(context, kubeconfig).host)
    log_files = sorted(folder.glob("shard-*/kwok.log" if shard is None else f"shard-{shard}/kwok.log"))
    if not log_files:
        raise errors.InputError(
            "there is no log of a kwok here",
            hint="kwokfleet kwok run starts one; of pods: kubectl logs --selector app.kubernetes.io/component=kwok",
        )
    for file, line in tails.lines(log_files, tail=tail, follow=follow):
        typer.echo(f"{file.parent.name} | {line}" if len(log_files) > 1 else line)


@app.command()
def restart(
    shard: ShardNumber = None,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Start kwok anew, and wait until it drives its nodes again."""
    from kwokfleet.kwok import supervisor
    from kwokfleet.kwok.shard import ShardState

    folder = _folder(connection.connect(context, kubeconfig).host)
    before = supervisor.read_status(folder)
    if not before:
        raise errors.ClusterError(
            "kwokfleet looks after no kwok here",
            hint="start one: kwokfleet kwok run; pods start anew by kubectl rollout restart statefulset",
        )
    lives = {(each.pid, each.identity) for each in before if shard is None or each.shard == shard}
    (folder / supervisor.RESTART_FILE).write_text("" if shard is None else str(shard))
    deadline = time.monotonic() + RESTART_S
    while time.monotonic() < deadline:
        now = supervisor.read_status(folder) or []
        chosen = [each for each in now if shard in (None, each.shard)]
        if chosen and all(each.state is ShardState.READY and (each.pid, each.identity) not in lives for each in chosen):
            output.print_line("kwok drives its nodes again")
            return
        time.sleep(0.1)
    raise errors.DeadlineError(f"kwok was not ready within {RESTART_S:g} s", hint="kwokfleet kwok logs says why")


@app.command()
def restore(context: connection.Context = None, kubeconfig: connection.Kubeconfig = None) -> None:
    """Give kwok controllers that were scaled down for ours the replicas they had."""
    import threading

    from kwokfleet.kube import throttled_client
    from kwokfleet.kwok import takeover

    output.start_logging()
    api = connection.connect(context, kubeconfig)
    restored = takeover.restore(
        throttled_client.ThrottledClient(api, throttled_client.ClientLimits(), threading.Event())
    )
    for one in restored:
        typer.echo(f"restored Deployment {one.namespace}/{one.name}: {one.remembered} replicas")
    if not restored:
        output.print_line("there is nothing to restore")
