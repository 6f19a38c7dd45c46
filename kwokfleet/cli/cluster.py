"""`kwokfleet cluster`: the embedded control plane."""

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
    no_args_is_help=True, rich_markup_mode=None, help="Run a Kubernetes control plane on this machine (loopback only)."
)


def _cluster_names() -> list[str]:
    from kwokfleet.embedded import state

    return list(state.cluster_names(output.read_settings().data_dir))


Name = Annotated[
    str, typer.Option(help="Name of the cluster. Several can run at the same time.", autocompletion=_cluster_names)
]
BinDir = Annotated[
    Path | None,
    typer.Option(help="Prefer the binaries in this folder to the cache, releases and builds. [env: KWOKFLEET_BIN_DIR]"),
]
SchedulerConfig = Annotated[Path | None, typer.Option(help="File with a KubeSchedulerConfiguration.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def up(
    name: Name = "default",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the API server; 0: any free port.")] = 0,
    bin_dir: BinDir = None,
    kube_scheduler_config: SchedulerConfig = None,
    extra_args: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COMPONENT=FLAG=VALUE",
            help="Flag of a component, as for kwokctl: kube-scheduler=v=4. May be repeated.",
        ),
    ] = None,
) -> None:
    """Start the cluster; create it if it does not exist.

    The command can be repeated: it changes nothing in a running cluster, and restarts components that have ended.
    """
    from kwokfleet.embedded import cluster, state

    output.start_logging()
    spec = state.Spec(
        port=port,
        scheduler_config=str(kube_scheduler_config or ""),
        extra_args=tuple(_extra_arg(text) for text in extra_args or ()),
    )
    with output.show_progress() as report:
        status = cluster.up(settings_with(bin_dir), name, spec, report)
    print_usage(status)


@app.command()
def restart(
    components: Annotated[
        list[str],
        typer.Argument(
            metavar="COMPONENT...",
            help=f"One or more of: {', '.join(versions.COMPONENTS)}.",
            autocompletion=lambda: list(versions.COMPONENTS),
        ),
    ],
    name: Name = "default",
) -> None:
    """Restart components, for example after a rebuild.

    They get the same flags, and run their current binaries.
    """
    from kwokfleet.embedded import cluster

    output.start_logging()
    _require_components(components)
    _require_folder(name)
    with output.show_progress() as report:
        cluster.restart(output.read_settings(), name, components, report)


@app.command()
def down(name: Name = "default") -> None:
    """Stop the cluster and delete its files."""
    from kwokfleet.embedded import cluster

    with output.show_progress() as report:
        existed = cluster.down(output.read_settings(), name, report)
    output.print_line(f"cluster {name} deleted" if existed else f"cluster {name} not found")


@app.command()
def status(
    name: Annotated[str | None, typer.Option(help="Name of the cluster.", show_default="all")] = None,
    as_json: Json = False,
) -> None:
    """Show clusters and their components.

    Exits with 1 unless all of them run and are healthy.
    """
    from kwokfleet.embedded import cluster, state

    config = output.read_settings()
    names = state.cluster_names(config.data_dir) if name is None else (name,)
    statuses = [cluster.status(config, name) for name in names]
    if as_json:
        typer.echo(json.dumps([_as_json(status) for status in statuses], indent=2))
    else:
        _print_statuses(statuses)
    if not statuses or any(status.condition is not cluster.ClusterCondition.RUNNING for status in statuses):
        raise typer.Exit(errors.ExitCode.NO)


@app.command()
def kubeconfig(
    name: Name = "default",
    path: Annotated[bool, typer.Option("--path", help="Print the path of the file instead of its contents.")] = False,
) -> None:
    """Print the kubeconfig of the cluster.

    For other clients: export KUBECONFIG=$(kwokfleet cluster kubeconfig --path)
    """
    file = _require_folder(name).kubeconfig
    typer.echo(str(file) if path else file.read_text(), nl=path)


@app.command()
def logs(
    components: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMPONENT]...",
            help=f"Components to show; default: all of {', '.join(versions.COMPONENTS)}.",
            autocompletion=lambda: list(versions.COMPONENTS),
        ),
    ] = None,
    name: Name = "default",
    tail: Annotated[int, typer.Option(min=0, help="Number of last lines per log.")] = 20,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="Show the logs before the last restart.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show new lines until Ctrl-C.")] = False,
) -> None:
    """Show the logs of components."""
    from kwokfleet.embedded import logs as log_files

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `logs | head` is not an error
    names = list(dict.fromkeys(components or versions.COMPONENTS))
    _require_components(names)
    where = _require_folder(name, allow_incomplete=True)
    files = {(where.previous_log if previous else where.log)(component): component for component in names}
    width = max(map(len, names))
    for file, line in log_files.lines(list(files), tail=tail, follow=follow):
        typer.echo(f"{files[file]:<{width}} | {line}" if len(names) > 1 else line)


# Options after the first argument belong to kubectl: `kubectl expose --name`.
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


@app.command(context_settings=_PASS_ON)
def kubectl(context: typer.Context, name: Name = "default", bin_dir: BinDir = None) -> None:
    """Run kubectl with the kubeconfig of the cluster.

    The arguments go to a kubectl of the same version: kwokfleet cluster kubectl get nodes
    """
    from kwokfleet.embedded import cluster

    output.start_logging()
    where = _require_folder(name)
    with output.show_progress() as report:
        program = cluster.cluster_binaries(settings_with(bin_dir), where, report).path("kubectl")
    variables = {"KUBECONFIG": str(where.kubeconfig), "KUBECACHEDIR": str(where.root / "kubectl-cache")}
    sys.stdout.flush()
    os.execve(program, [str(program), *context.args], settings.child_environment() | variables)  # noqa: S606 - no shell needed


@app.command("binaries")
def get_binaries(bin_dir: BinDir = None) -> None:
    """Download or build the binaries of the control plane, and print their paths.

    `cluster up` does the same when binaries are missing.
    """
    from kwokfleet.embedded import binaries

    output.start_logging()
    with output.show_progress() as report:
        by_name = binaries.ensure(settings_with(bin_dir), report).by_name
    width = max(map(len, by_name))
    for name, binary in by_name.items():
        typer.echo(f"{name:<{width}}  {binary.source:<6}  {binary.path}")


def settings_with(bin_dir: Path | None) -> settings.Settings:
    """Return the settings; *bin_dir* overrides the folder of binaries."""
    from dataclasses import replace

    read = output.read_settings()
    return replace(read, bin_dir=bin_dir.expanduser().absolute()) if bin_dir else read


def _require_folder(name: str, *, allow_incomplete: bool = False) -> "state.ClusterFolder":
    """Return the folder of an existing cluster; its components need not run."""
    from kwokfleet.embedded import state

    where = state.cluster_folder(output.read_settings().data_dir, name)
    folder_state, detail = state.folder_state(where)
    if folder_state is state.FolderState.ABSENT:
        raise errors.ClusterError(f"cluster {name} not found", hint=f"create it: kwokfleet cluster up --name {name}")
    usable = (state.FolderState.COMPLETE, *([state.FolderState.INCOMPLETE] if allow_incomplete else []))
    if folder_state not in usable:
        raise errors.NotOursError(
            f"{where.root} is {folder_state}{': ' if detail else ''}{detail}",
            hint=f"for details: kwokfleet cluster up --name {name}",
        )
    return where


def _extra_arg(text: str) -> tuple[str, str, str]:
    match text.split("=", 2):
        case [component, flag, value] if component and flag.lstrip("-"):
            _require_components([component])
            return component, flag.lstrip("-"), value
    raise errors.InputError(
        f"--extra-args {text} is invalid: it must be COMPONENT=FLAG=VALUE",
        hint="for example: --extra-args kube-scheduler=v=4",
    )


def _require_components(names: list[str]) -> None:
    for name in names:
        if name not in versions.COMPONENTS:
            raise errors.InputError(f"unknown component {name}", hint=f"use one of: {', '.join(versions.COMPONENTS)}")


def print_usage(status: "embedded.ClusterStatus") -> None:
    """Print how to use the cluster."""
    name = "" if status.name == "default" else f" --name {status.name}"
    program = output.program()
    apiserver = next(component.port for component in status.components if component.name == "kube-apiserver")
    output.print_line(
        f"\nCluster {status.name} is {status.condition}: Kubernetes {status.version} at https://127.0.0.1:{apiserver}\n\n"
        f"  export KUBECONFIG={status.kubeconfig}\n"
        f"  {program} cluster kubectl{name} get namespaces\n"
        f"  {program} cluster status\n"
        f"  {program} cluster down{name}\n"
    )


def _print_statuses(statuses: "list[embedded.ClusterStatus]") -> None:
    if not statuses:
        output.print_line("no cluster exists; create one: kwokfleet cluster up")
    from rich.markup import escape

    console = output.console()
    for status in statuses:
        detail = status.detail or (status.version and f"Kubernetes {status.version}")
        console.print(f"[bold]{status.name}[/]: {status.condition}{': ' if detail else ''}{escape(detail)}")
        if status.components:
            console.print(_components_table(status), "")


def _components_table(status: "embedded.ClusterStatus") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("COMPONENT", "HEALTH", "PID", "PORT", "MEMORY", "UP FOR"):
        is_text = title in ("COMPONENT", "HEALTH")
        min_width = max(map(len, versions.COMPONENTS)) if title == "COMPONENT" else None
        table.add_column(title, justify="left" if is_text else "right", no_wrap=True, min_width=min_width)
    for component in status.components:
        process = component.running
        health = "[green]ok[/]" if component.healthy else f"[red]not {'answering' if process else 'running'}[/]"
        pid = str(process.pid) if process else "-"
        memory = f"{process.memory >> 20} MB" if process else "-"
        since = output.age_of(time.time() - process.started) if process else "-"
        table.add_row(component.name, health, pid, str(component.port), memory, since)
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
                "name": component.name,
                "port": component.port,
                "pid": component.running.pid if component.running else None,
                "memoryBytes": component.running.memory if component.running else None,
                "healthy": component.healthy,
            }
            for component in status.components
        ],
    }
