"""`kwokfleet cluster`: a real control plane on this machine."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kwokfleet import errors, settings
from kwokfleet.cli import output
from kwokfleet.embedded import versions

if TYPE_CHECKING:
    from rich.table import Table

    from kwokfleet.embedded import cluster as embedded
    from kwokfleet.embedded import state

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="A real Kubernetes control plane on this machine, loopback only."
)


def _known_names() -> list[str]:
    from kwokfleet.embedded import state

    return list(state.cluster_names(output.read_settings().data_dir))


Name = Annotated[str, typer.Option(help="Which cluster; several live side by side.", autocompletion=_known_names)]
BinDir = Annotated[
    Path | None,
    typer.Option(
        help="Use the binaries in this folder first; what it lacks comes from the cache, a release or a build."
        " [env: KWOKFLEET_BIN_DIR]",
        show_default=False,
    ),
]
SchedulerConfig = Annotated[
    Path | None, typer.Option(help="A KubeSchedulerConfiguration for the scheduler.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@app.command()
def up(
    name: Name = "default",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The API server's port; 0: any free one.")] = 0,
    bin_dir: BinDir = None,
    kube_scheduler_config: SchedulerConfig = None,
    extra_args: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COMPONENT=FLAG=VALUE",
            help="A flag for a component, as kwokctl takes it: kube-scheduler=v=4. May be repeated.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Start the cluster, making it if need be.

    Repeat it as you like: a running cluster is left alone, a component that died is started again.
    """
    from kwokfleet.cli import progress
    from kwokfleet.embedded import cluster, state

    output.start_logging()
    spec = state.Spec(
        port=port,
        scheduler_config=str(kube_scheduler_config or ""),
        extra_args=tuple(_extra_arg(text) for text in extra_args or ()),
    )
    with progress.shown(output.console(stderr=True)) as report:
        made = cluster.up(settings_with(bin_dir), name, spec, report)
    print_how_to_use(made)


@app.command()
def restart(
    components: Annotated[
        list[str],
        typer.Argument(
            metavar="COMPONENT...",
            help=f"Which: {', '.join(versions.COMPONENTS)}.",
            autocompletion=lambda: list(versions.COMPONENTS),
        ),
    ],
    name: Name = "default",
) -> None:
    """Restart components, for example one you have just rebuilt.

    They get the same flags, and run whatever their binaries are now.
    """
    from kwokfleet.cli import progress
    from kwokfleet.embedded import cluster

    output.start_logging()
    for component in components:
        _require_component(component)
    _made(name)
    with progress.shown(output.console(stderr=True)) as report:
        cluster.restart(output.read_settings(), name, components, report)


@app.command()
def down(name: Name = "default") -> None:
    """Stop the cluster and remove all its files."""
    from kwokfleet.cli import progress
    from kwokfleet.embedded import cluster

    with progress.shown(output.console(stderr=True)) as report:
        found = cluster.down(output.read_settings(), name, report)
    output.print_line(f"cluster {name} is gone" if found else f"there is no cluster {name}")


@app.command()
def status(
    name: Annotated[str | None, typer.Option(help="Which cluster.", show_default="all")] = None,
    as_json: Json = False,
) -> None:
    """Show clusters and their components.

    Exit code 1 unless all of them are running.
    """
    from kwokfleet.embedded import cluster, state

    config = output.read_settings()
    names = state.cluster_names(config.data_dir) if name is None else (name,)
    found = [cluster.status(config, each) for each in names]
    if as_json:
        typer.echo(json.dumps([_as_json(each) for each in found], indent=2))
    else:
        _print_statuses(found)
    if not found or any(each.condition is not cluster.ClusterCondition.RUNNING for each in found):
        raise typer.Exit(errors.ExitCode.NO)


@app.command()
def kubeconfig(
    name: Name = "default",
    path: Annotated[bool, typer.Option("--path", help="Print where it is instead of what is in it.")] = False,
) -> None:
    """Print the cluster's kubeconfig.

    For other clients: export KUBECONFIG=$(kwokfleet cluster kubeconfig --path)
    """
    file = _made(name).kubeconfig
    typer.echo(str(file) if path else file.read_text(), nl=path)


@app.command()
def logs(
    components: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMPONENT]...",
            help=f"Which logs; all by default: {', '.join(versions.COMPONENTS)}.",
            autocompletion=lambda: list(versions.COMPONENTS),
            show_default=False,
        ),
    ] = None,
    name: Name = "default",
    tail: Annotated[int, typer.Option(min=0, help="How many lines of the past to show of each.")] = 20,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="Of the life before the last restart.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")] = False,
) -> None:
    """Show the components' logs."""
    from kwokfleet.embedded import logs as tails

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `logs | head` is no failure
    wanted = list(dict.fromkeys(components or versions.COMPONENTS))
    for component in wanted:
        _require_component(component)
    where = _made(name, half_made_too=True)
    files = {(where.previous_log if previous else where.log)(each): each for each in wanted}
    width = max(map(len, wanted))
    for file, line in tails.lines(list(files), tail=tail, follow=follow):
        typer.echo(f"{files[file]:<{width}} | {line}" if len(wanted) > 1 else line)


# Only what stands before kubectl's first word is ours: `kubectl expose --name` is kubectl's.
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


@app.command(context_settings=_PASS_ON)
def kubectl(context: typer.Context, name: Name = "default", bin_dir: BinDir = None) -> None:
    """Run kubectl against the cluster.

    What follows goes to the kubectl of the control plane's own version: kwokfleet cluster kubectl get nodes
    """
    from kwokfleet.cli import progress
    from kwokfleet.embedded import cluster

    output.start_logging()
    where = _made(name)
    with progress.shown(output.console(stderr=True)) as report:
        program = cluster.cluster_binaries(settings_with(bin_dir), where, report).path("kubectl")
    own = {"KUBECONFIG": str(where.kubeconfig), "KUBECACHEDIR": str(where.root / "kubectl-cache")}
    sys.stdout.flush()
    os.execve(program, [str(program), *context.args], settings.child_environment() | own)  # noqa: S606 - no shell wanted


@app.command("binaries")
def get_binaries(bin_dir: BinDir = None) -> None:
    """Get the control plane's binaries now.

    Prints each one's source and path; `up` does the same when it needs to.
    """
    from kwokfleet.cli import progress
    from kwokfleet.embedded import binaries

    output.start_logging()
    with progress.shown(output.console(stderr=True)) as report:
        found = binaries.ensure(settings_with(bin_dir), report).by_name
    width = max(map(len, found))
    for name, each in found.items():
        typer.echo(f"{name:<{width}}  {each.source:<6}  {each.path}")


def settings_with(bin_dir: Path | None) -> settings.Settings:
    """Return the settings, with another folder of binaries if one was named."""
    from dataclasses import replace

    read = output.read_settings()
    return replace(read, bin_dir=bin_dir.expanduser().absolute()) if bin_dir else read


def _made(name: str, *, half_made_too: bool = False) -> "state.ClusterFolder":
    """Return the folder of a cluster that was made; its components need not be running."""
    from kwokfleet.embedded import state

    where = state.cluster_folder(output.read_settings().data_dir, name)
    standing, detail = state.folder_state(where)
    if standing is state.FolderState.ABSENT:
        raise errors.ClusterError(f"there is no cluster {name}", hint=f"make it: kwokfleet cluster up --name {name}")
    if standing is state.FolderState.INCOMPLETE and half_made_too:
        return where
    if standing is not state.FolderState.COMPLETE:
        raise errors.NotOursError(
            f"{where.root} is {standing}{': ' if detail else ''}{detail}",
            hint=f"kwokfleet cluster up --name {name} says more",
        )
    return where


def _extra_arg(text: str) -> tuple[str, str, str]:
    match text.split("=", 2):
        case [component, flag, value] if component and flag.lstrip("-"):
            _require_component(component)
            return component, flag.lstrip("-"), value
    raise errors.InputError(
        f"--extra-args {text} is not COMPONENT=FLAG=VALUE",
        hint="for example: --extra-args kube-scheduler=v=4",
    )


def _require_component(name: str) -> None:
    if name not in versions.COMPONENTS:
        raise errors.InputError(f"there is no component {name}", hint=f"use one of: {', '.join(versions.COMPONENTS)}")


def print_how_to_use(made: "embedded.ClusterStatus") -> None:
    """Say how other programs reach the cluster."""
    name = "" if made.name == "default" else f" --name {made.name}"
    program = output.program()
    apiserver = next(each.port for each in made.components if each.name == "kube-apiserver")
    output.print_line(
        f"\nCluster {made.name} is {made.condition}: Kubernetes {made.version} at https://127.0.0.1:{apiserver}\n\n"
        f"  export KUBECONFIG={made.kubeconfig}\n"
        f"  {program} cluster kubectl{name} get namespaces\n"
        f"  {program} cluster status\n"
        f"  {program} cluster down{name}\n"
    )


def _print_statuses(found: "list[embedded.ClusterStatus]") -> None:
    if not found:
        output.print_line("there is no cluster; make one: kwokfleet cluster up")
    from rich.markup import escape

    console = output.console()
    for each in found:
        what = each.detail or (each.version and f"Kubernetes {each.version}")
        console.print(f"[bold]{each.name}[/]: {each.condition}{': ' if what else ''}{escape(what)}")
        if each.components:
            console.print(_components_table(each), "")


def _components_table(status: "embedded.ClusterStatus") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("COMPONENT", "HEALTH", "PID", "PORT", "MEMORY", "UP FOR"):
        words = title in ("COMPONENT", "HEALTH")
        widest = max(map(len, versions.COMPONENTS)) if title == "COMPONENT" else None
        table.add_column(title, justify="left" if words else "right", no_wrap=True, min_width=widest)
    for each in status.components:
        health = "[green]ok[/]" if each.healthy else "[red]not answering[/]" if each.running else "[red]not running[/]"
        memory = f"{each.running.memory >> 20} MB" if each.running else "-"
        since = output.age_of(time.time() - each.running.started) if each.running else "-"
        table.add_row(each.name, health, str(each.running.pid) if each.running else "-", str(each.port), memory, since)
    return table


def _as_json(status: "embedded.ClusterStatus") -> dict[str, object]:
    return {
        "name": status.name,
        "condition": status.condition.value,
        "detail": status.detail,
        "version": status.version or None,
        "kubeconfig": str(status.kubeconfig) if status.kubeconfig else None,
        "components": [
            {
                "name": each.name,
                "port": each.port,
                "pid": each.running.pid if each.running else None,
                "memoryBytes": each.running.memory if each.running else None,
                "healthy": each.healthy,
            }
            for each in status.components
        ],
    }
