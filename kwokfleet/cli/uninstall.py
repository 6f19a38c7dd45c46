"""`kwokfleet uninstall`: removes an installation from a cluster, with or without its fleets."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kwokfleet import errors
from kwokfleet.cli import connection, output, sync

if TYPE_CHECKING:
    from kwokfleet.kube import throttled_client

_NEXT_RUN = "removed objects stay removed; the next uninstall continues"

KeepFleet = Annotated[
    bool | None,
    typer.Option(
        "--keep-fleet/--delete-fleet",
        help="Keep or delete the fake nodes, Stages, workloads and namespaces of kwokfleet.",
    ),
]


def uninstall(
    keep_fleet: KeepFleet = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace of the installation. [default: detected]")
    ] = None,
    timeout: sync.Timeout = sync.WAIT_TIMEOUT,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Remove the objects that `kwokfleet install` created, and no others.

    The daemon stops first. A kwok controller that kwokfleet had scaled down gets its replicas back. Objects that
    existed before (a namespace, the CRDs of kwok) stay. Pods on fake nodes are deleted with the nodes, without
    regard to PodDisruptionBudgets: they run no processes.
    """
    from kwokfleet.install import uninstaller

    output.start_logging(quiet=True)
    timeout_s = sync.seconds(timeout)
    with connection.connect_throttled(context, kubeconfig) as sender:
        installed_in = _find_namespace(sender, namespace)
        if installed_in is None:
            output.print_line("no installation found; remove one made by kubectl or Helm with the same tool")
            return
        keep = _ask_keep_fleet() if keep_fleet is None else keep_fleet
        left: list[str] = []
        work = uninstaller.Uninstaller(sender, installed_in, typer.echo, left.append, timeout_s)
        try:
            is_complete = work.run(keep_fleet=keep)
        except BaseException as error:
            if not isinstance(error, errors.KwokfleetError):
                output.print_line(_NEXT_RUN)
            raise
        for line in left:
            output.print_line(f"left: {line}")
        output.print_line("uninstalled" if is_complete else "uninstalled, except for the objects above")
        if not is_complete:
            raise typer.Exit(errors.ExitCode.NOT_OURS)


def _find_namespace(sender: "throttled_client.ThrottledClient", namespace: str | None) -> str | None:
    """Return the namespace of the installation; None without one."""
    from kwokfleet.install import installer, ownership
    from kwokfleet.kube import objects

    installed = installer.list_installed(sender, namespace or "")
    namespaces = sorted({objects.labels(manifest)[ownership.INSTALL_LABEL] for _, manifest in installed})
    if len(namespaces) > 1:
        raise errors.InputError(
            f"several installations found, in: {', '.join(namespaces)}", hint="choose one with --namespace"
        )
    return namespaces[0] if namespaces else None


def _ask_keep_fleet() -> bool:
    """Ask whether the fleets stay; raise without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise errors.InputError(
            "--delete-fleet or --keep-fleet is required without a terminal",
            hint="--delete-fleet deletes fake nodes, Stages, workloads and namespaces of kwokfleet",
        )
    return not typer.confirm("also delete the fake nodes, Stages, workloads and namespaces of kwokfleet?", err=True)
