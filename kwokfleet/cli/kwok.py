"""`kwokfleet kwok`: run and inspect the kwok controller."""

import json
import time
from contextlib import contextmanager
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
    from kwokfleet.daemon.kwok_manager import DrivenNodes
    from kwokfleet.kube.requests import RequestSender
    from kwokfleet.kwok import lease_health, shard, supervisor
    from kwokfleet.source import loader

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Run and inspect the kwok controller, which simulates the nodes."
)

RESTART_S = 60.0
RELOAD_S = 1.0
"""Interval at which the files are loaded."""
OBSERVE_S = 2.0
"""Interval at which an external kwok is checked."""
MAX_LISTED = 5
EXTERNAL = "the KwokController has `mode: external`: kwokfleet does not run kwok"
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
            output.print_lines(file_errors)
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
    """Run kwok as the KwokController document declares, and restart it when it ends, until Ctrl-C.

    If another kwok controller runs in the cluster, the command fails; with `takeover: {policy: scaleDown}` it scales
    that controller to 0 and restores it at the end. With `mode: external` it starts no kwok, and reports which
    controller drives the nodes.
    """
    output.start_logging()
    declared = _DeclaredController(path or files.default_path())
    while True:  # a signal ends it
        if declared.loaded.tree.controller.mode == "external":
            _observe(declared, context, kubeconfig)
        else:
            _supervise(declared, bin_dir, context, kubeconfig)


def _supervise(
    declared: _DeclaredController, bin_dir: Path | None, context: str | None, kubeconfig: Path | None
) -> None:
    """Run kwok while the files declare `mode: managed`."""
    from kwokfleet.daemon import kwok_manager
    from kwokfleet.kwok import backend_selection

    with _running_supervisor(declared, bin_dir, context, kubeconfig) as (running, nodes):
        output.print_line(f"kwok runs; status: {output.program()} kwok status; Ctrl-C stops it")
        while declared.reload().tree.controller.mode == "managed":
            nodes.manage = declared.loaded.tree.controller.manage
            if backend_selection.must_move(declared.loaded.tree.controller, _home(), running):
                running.end()
                return
            desired_kwok = kwok_manager.desired_kwok(declared.loaded, running.desired)
            if desired_kwok != running.desired:
                running.change(desired_kwok)
            running.finish_change()
            time.sleep(RELOAD_S)


def _observe(declared: _DeclaredController, context: str | None, kubeconfig: Path | None) -> None:
    """Report which controller drives the nodes while the files declare `mode: external`."""
    from kwokfleet import app as composition
    from kwokfleet.kwok import external

    with connection.connect_throttled(context, kubeconfig, composition.KWOK_PATIENCE_S) as sender:
        output.print_line(f"{EXTERNAL}; changes of the controllers that drive the nodes are logged; Ctrl-C to stop")
        spec = declared.loaded.tree.controller
        observer = external.ExternalObserver(sender, spec)
        while declared.reload().tree.controller.mode == "external":
            if declared.loaded.tree.controller != spec:
                spec = declared.loaded.tree.controller
                observer = external.ExternalObserver(sender, spec)
            observer.poll()
            time.sleep(OBSERVE_S)


@contextmanager
def _running_supervisor(
    declared: _DeclaredController, bin_dir: Path | None, context: str | None, kubeconfig: Path | None
) -> "Iterator[tuple[supervisor.Supervisor, DrivenNodes]]":
    """Run and supervise kwok until the block ends."""
    import threading

    from kwokfleet import app as composition
    from kwokfleet.daemon import kwok_manager
    from kwokfleet.embedded import binaries
    from kwokfleet.kube import client, requests, throttled_client
    from kwokfleet.kwok import backend, backend_selection, supervisor, takeover
    from kwokfleet.reconcile import applier
    from kwokfleet.render import desired

    loaded = declared.loaded
    spec = loaded.tree.controller
    with output.show_progress() as report:
        program = binaries.ensure(cluster_commands.settings_with(bin_dir), report, "kwok").path("kwok")
    api = connection.connect(context, kubeconfig)
    stop = threading.Event()
    limits = throttled_client.ClientLimits(retry_timeout_s=composition.KWOK_PATIENCE_S)
    sender = throttled_client.ThrottledClient(api, limits, stop)
    folder = _folder(api.host)
    with connection.run_informer(api, (requests.NODE,)) as managed:
        connection.wait_until_listed(managed)
        nodes = kwok_manager.DrivenNodes(managed)
        nodes.manage = spec.manage
        own_holders = backend_selection.own_holders(spec, _home(), folder)
        scaled_down = takeover.take_over(sender, spec, own_holders, nodes, stop, _home())
        if not desired.cluster_kinds(loaded.tree) <= _kinds(sender):
            definitions = composition.kwok_definitions(output.read_settings(), output.show_progress)
            for name in applier.ensure_definitions(sender, definitions, composition.ESTABLISHED_S):
                output.print_line(f"installed {name}")
        desired_kwok = kwok_manager.desired_kwok(
            loaded, backend.DesiredKwok(program, spec, client.write_kubeconfig(context, kubeconfig, folder))
        )
        kwok_backend = backend_selection.select_backend(spec, _home(), folder, sender, api)
        try:
            with supervisor.Supervisor(sender, desired_kwok, folder, nodes, api, kwok_backend) as running:
                yield running, nodes
        finally:
            if scaled_down:
                takeover.restore(sender)


def _home() -> str:
    """Return the namespace of a StatefulSet that is named without one."""
    return settings.pod_namespace(settings.INSTALL_NAMESPACE)


def _kinds(api: "RequestSender") -> set[str]:
    """Return the kinds of kwok whose CRDs are installed."""
    from kwokfleet.kube import objects, requests

    resources = api.send(requests.Request("GET", f"/apis/{objects.STAGE_API_VERSION}")).json().get("resources") or ()
    return {resource["kind"] for resource in resources}


@app.command()
def status(
    path: files.OnePath = None,
    form: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Show the kwok processes of this machine, or the pods of kwok, and the controllers that drive the nodes.

    Exits with 1 unless every process or pod is ready; with `mode: external`, unless every node is driven.
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
    is_ready = bool(statuses) and all(status.state is ShardState.READY for status in statuses)
    if not (now.is_complete if spec.mode == "external" else is_ready):
        raise typer.Exit(errors.ExitCode.NO)


def _declared(path: Path | None) -> "KwokControllerSpec":
    """Return the KwokController of the files; the default one without a path and without fleets/."""
    from kwokfleet.api.kwok_controller import KwokControllerSpec
    from kwokfleet.source import loader

    where = path or Path("fleets")
    return loader.Loader().load(where).tree.controller if path or where.is_dir() else KwokControllerSpec()


def _as_json(mode: str, statuses: "list[shard.ShardStatus]", now: "lease_health.DriverHealth") -> dict[str, object]:
    return {
        "mode": mode,
        "processes": [asdict(status) for status in statuses],
        "nodes": {"count": now.nodes, "undriven": list(now.undriven), "lagSeconds": now.lag_s},
        "holders": _holders(now),
    }


def _holders(now: "lease_health.DriverHealth") -> list[dict[str, object]]:
    return [
        {
            "holder": driver.holder,
            "nodes": driver.nodes,
            "fresh": driver.fresh,
            "oldestRenewalSeconds": driver.oldest_s,
            "lagSeconds": driver.lag_s,
        }
        for driver in now.drivers
    ]


def _print_status(mode: str, statuses: "list[shard.ShardStatus]", now: "lease_health.DriverHealth") -> None:
    if mode == "external":
        output.print_line(EXTERNAL)
    elif not statuses:
        output.print_line("no kwok of this cluster runs here; start it: kwokfleet kwok run")
    if statuses:
        typer.echo(output.table([_row(status) for status in statuses]) + "\n")
    if now.drivers:
        typer.echo(output.table(_holders(now)) + "\n")
    driven = now.nodes - len(now.undriven)
    names = ", ".join(now.undriven[:MAX_LISTED]) + " …" * (len(now.undriven) > MAX_LISTED)
    undriven = f"; not driven: {names}" if now.undriven else ""
    typer.echo(f"{driven} of {files.count(now.nodes, 'node')} driven{undriven}")


def _row(status: "shard.ShardStatus") -> dict[str, object]:
    return {
        "shard": status.shard,
        "state": status.state.value,
        "pod" if status.pod else "pid": status.pod or status.pid or "-",
        "port": status.port or "-",
        "memory": f"{status.memory >> 20} MB",
        "restarts": status.restarts,
        "lag": f"{status.lag_s:g} s",
        "ended": status.why or "-",
    }


@app.command()
def logs(
    shard: ShardNumber = None,
    tail: Annotated[int, typer.Option(min=0, help="Number of last lines per log.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show new lines until Ctrl-C.")] = False,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Show the logs of kwok."""
    import signal

    from kwokfleet.embedded import logs as embedded_logs

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `logs | head` is not an error
    folder = _folder(connection.connect(context, kubeconfig).host)
    log_files = sorted(folder.glob("shard-*/kwok.log" if shard is None else f"shard-{shard}/kwok.log"))
    if not log_files:
        raise errors.InputError(
            "no kwok log on this machine",
            hint="start it: kwokfleet kwok run; for pods: kubectl logs --selector app.kubernetes.io/component=kwok",
        )
    for file, line in embedded_logs.lines(log_files, tail=tail, follow=follow):
        typer.echo(f"{file.parent.name} | {line}" if len(log_files) > 1 else line)


@app.command()
def restart(
    shard: ShardNumber = None, context: connection.Context = None, kubeconfig: connection.Kubeconfig = None
) -> None:
    """Restart kwok, and wait until it drives its nodes."""
    from kwokfleet.kwok import supervisor
    from kwokfleet.kwok.shard import ShardState

    folder = _folder(connection.connect(context, kubeconfig).host)
    before = supervisor.read_status(folder)
    if not before:
        raise errors.ClusterError(
            "no kwok runs here", hint="start it: kwokfleet kwok run; restart pods: kubectl rollout restart statefulset"
        )
    old_processes = {(status.pid, status.identity) for status in before if shard in (None, status.shard)}
    (folder / supervisor.RESTART_FILE).write_text("" if shard is None else str(shard))
    deadline = time.monotonic() + RESTART_S
    while time.monotonic() < deadline:
        now = supervisor.read_status(folder) or []
        selected = [status for status in now if shard in (None, status.shard)]
        if selected and all(
            status.state is ShardState.READY and (status.pid, status.identity) not in old_processes
            for status in selected
        ):
            output.print_line("kwok was restarted")
            return
        time.sleep(0.1)
    raise errors.DeadlineError(f"kwok was not ready within {RESTART_S:g} s", hint="see kwokfleet kwok logs")


@app.command()
def restore(context: connection.Context = None, kubeconfig: connection.Kubeconfig = None) -> None:
    """Restore the replicas of kwok controllers that kwokfleet has scaled down."""
    from kwokfleet.kwok import takeover

    output.start_logging()
    with connection.connect_throttled(context, kubeconfig) as sender:
        restored = takeover.restore(sender)
    for controller in restored:
        typer.echo(f"restored Deployment {controller.namespace}/{controller.name}: {controller.remembered} replicas")
    if not restored:
        output.print_line("nothing to restore")
