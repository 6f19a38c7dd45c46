"""`kwokfleet uninstall`: a cluster as it was before `kwokfleet install`; the fleet goes along, or stays, by choice."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kwokfleet import errors
from kwokfleet.cli import connection, install, output, sync

if TYPE_CHECKING:
    from kwokfleet.kube import throttled_client

_GO_ON = "what was removed is gone: another uninstall goes on from there"

KeepFleet = Annotated[
    bool | None,
    typer.Option(
        "--keep-fleet/--delete-fleet",
        help="Whether fake nodes, Stages, workloads and namespaces that kwokfleet made stay.",
        show_default=False,
    ),
]


def uninstall(
    keep_fleet: KeepFleet = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", "-n", help="Where it was installed.  [default: wherever it is]", show_default=False
        ),
    ] = None,
    timeout: sync.Timeout = sync.WAIT_TIMEOUT,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Take away what `kwokfleet install` put into a cluster, and nothing else.

    The daemon stops first. A kwok that had been scaled down for it runs again. What was there before (a
    namespace, kwok's definitions) stays. Pods on fake nodes are removed with them, whatever their
    PodDisruptionBudgets say: nothing runs behind them.
    """
    from kwokfleet.install import uninstaller

    output.start_logging(quiet=True)
    timeout_s = sync.seconds(timeout)
    with install.connect_throttled(context, kubeconfig) as sender:
        where = _found(sender, namespace)
        if where is None:
            output.print_line("nothing of an installation is here; what kubectl or Helm put in place, they take away")
            return
        keep = _choice() if keep_fleet is None else keep_fleet
        left: list[str] = []
        work = uninstaller.Uninstaller(sender, where, typer.echo, left.append, timeout_s)
        try:
            whole = work.run(keep_fleet=keep)
        except BaseException as error:
            if not isinstance(error, errors.KwokfleetError):
                output.print_line(_GO_ON)
            raise
        for line in left:
            output.print_line(f"left: {line}")
        output.print_line("uninstalled" if whole else "uninstalled, but for what is left")
        if not whole:
            raise typer.Exit(errors.ExitCode.NOT_OURS)


def _found(sender: "throttled_client.ThrottledClient", namespace: str | None) -> str | None:
    """Return the namespace of the installation, None if there is none."""
    from kwokfleet.install import installer, ownership
    from kwokfleet.kube import objects

    found = sorted(
        {objects.labels(each)[ownership.INSTALL_LABEL] for _, each in installer.list_installed(sender, namespace or "")}
    )
    if len(found) > 1:
        raise errors.InputError(f"there are several: in {', '.join(found)}", hint="name one with --namespace")
    return found[0] if found else None


def _choice() -> bool:
    """Ask whether the fleet stays; refuse where nobody can be asked."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise errors.InputError(
            "what becomes of the fake nodes and all else that kwokfleet made?",
            hint="say --delete-fleet or --keep-fleet",
        )
    return not typer.confirm("remove the fake nodes and all else that kwokfleet made, too?", err=True)
