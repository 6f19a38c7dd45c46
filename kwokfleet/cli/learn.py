"""`kwokfleet learn`: a Lifecycle from real pods, watched or recorded."""

import codecs
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import kwokfleet
from kwokfleet import errors
from kwokfleet.cli import connection, files, output

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from kwokfleet.learn.learner import LearnedLifecycle, LifecycleLearner
    from kwokfleet.learn.lifecycle_writer import Provenance
    from kwokfleet.learn.watch_events import PodEvent, UnreadableEvent

STANDARD_INPUT = "-"
MAX_REPORTED = 10
"""Invalid records that are printed; the others are counted."""
_RECORD = "kubectl get pods --watch --output-watch-events -o json > FILE"

LifecycleFormat = Literal["yaml", "json"]


def _duration(text: str) -> float:
    from kwokfleet.api import units

    try:
        return units.duration(text).total_seconds()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def learn(  # noqa: PLR0913, PLR0917  # one for each option
    recorded: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Recording of kubectl, - for standard input. Default: watch pods."),
    ] = None,
    selector: Annotated[
        str | None, typer.Option("--selector", "-l", help="Watch pods with these labels, for example app=web.")
    ] = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Watch pods in this namespace.")] = "default",
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Watch pods in every namespace.")
    ] = False,
    lasting: Annotated[
        float, typer.Option("--for", parser=_duration, metavar="DURATION", help="Maximum duration of the watch.")
    ] = "10m",  # type: ignore[assignment]  # parsed like the option
    pods: Annotated[
        int | None,
        typer.Option(min=1, help="Stop when this many pods have finished or, if they never finish, are Ready."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the lifecycle. Default: from the selector.")] = None,
    fleet: Annotated[
        str | None, typer.Option(help="Write a complete Fleet with this name: nodes, the lifecycle, a wave.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="Write to this file, which must not exist.")
    ] = None,
    form: Annotated[
        LifecycleFormat, typer.Option("--output", "-o", help="Output format; json: with all details of the fit.")
    ] = "yaml",
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Learn a lifecycle from real pods: durations of start, run, end and deletion, and failures.

    Watches pods (read access is enough), or reads a recording of kubectl. Prints a lifecycle for a fleet file, and
    the quality of the fit on standard error. Ctrl-C ends the watch; the data up to then is used.

    \b
    kwokfleet learn --selector app=web --namespace shop --for 10m
    kwokfleet learn --selector job-name --pods 200 --fleet batch --to fleets/batch.yaml
    kubectl get pods --watch --output-watch-events -o json > pods.json; kwokfleet learn pods.json
    """  # noqa: D301  # the backspace keeps typer from filling the lines after it
    from kwokfleet.learn import lifecycle_writer

    _check_options(recorded, selector, name, fleet, to)
    if recorded is not None:
        study, source = _read(recorded), f"{'standard input' if str(recorded) == STANDARD_INPUT else recorded}"
    else:
        from kwokfleet.cli import learn_watch

        where = learn_watch.PodSelection(selector or "", "" if all_namespaces else namespace, context, kubeconfig)
        study, source = learn_watch.watch_pods(where, lasting, pods), str(where)
    called = name or lifecycle_writer.lifecycle_name(_default_name(recorded, selector))
    about = lifecycle_writer.Provenance(called, source, kwokfleet.__version__)
    lesson = _learn(study, source)
    _write(_render(lesson, about, fleet, form), to)
    _show(lesson, source)


def _check_options(
    recorded: Path | None, selector: str | None, name: str | None, fleet: str | None, to: Path | None
) -> None:
    if (recorded is None) == (selector is None):
        both = (
            "a recording and --selector exclude each other"
            if selector is not None
            else "--selector or a recording is required"
        )
        raise errors.InputError(
            both,
            hint=f"watch: {output.program()} learn --selector app=web; or record: {_RECORD}, "
            f"then {output.program()} learn FILE",
        )
    from kwokfleet.learn import lifecycle_writer

    for option, given in (("--name", name), ("--fleet", fleet)):
        if given is not None and given != lifecycle_writer.lifecycle_name(given):
            raise errors.InputError(
                f"{option} {given!r}: must be up to {lifecycle_writer.MAX_NAME_LENGTH} lower-case letters, digits, '-'",
                hint=f"for example {lifecycle_writer.lifecycle_name(given)}",
            )
    if to is not None and to.exists():
        raise errors.NotOursError(f"{to} already exists", hint="use another file name, or move the file")


def _default_name(recorded: Path | None, selector: str | None) -> str:
    """Return the default name of a Lifecycle: the value of the selector, or the name of the file."""
    if recorded is not None:
        return recorded.stem
    return (selector or "").split(",")[0].replace("==", "=").rpartition("=")[2]


def _read(path: Path) -> "LifecycleLearner":
    """Read a recording; print and skip invalid records."""
    from kwokfleet.learn import learner, watch_events

    study, invalid = learner.LifecycleLearner(), 0
    try:
        with sys.stdin.buffer if str(path) == STANDARD_INPUT else path.open("rb") as stream:
            for event in watch_events.read(_lines(stream)):
                error = _observe(study, event)
                invalid += bool(error)
                if error and invalid <= MAX_REPORTED:
                    output.print_line(f"{path}:{error}")
    except OSError as error:
        raise errors.InputError(
            f"cannot read {path}: {error.strerror or error}", hint=f"record with: {_RECORD}"
        ) from error
    if invalid:
        output.print_line(f"{files.count(invalid, 'invalid record')} skipped")
    return study


def _observe(study: "LifecycleLearner", event: "PodEvent | UnreadableEvent") -> str:
    """Record an event; return its error, empty if it is valid."""
    from kwokfleet.learn.watch_events import UnreadableEvent

    if isinstance(event, UnreadableEvent):
        return str(event)
    try:
        study.observe(event.what, event.pod)
    except ValueError as error:
        return f"{event.line}:1: {error}"
    return ""


def _lines(stream: "IO[bytes]") -> "Iterator[str]":
    """Yield lines of text, in UTF-8 or UTF-16 (PowerShell)."""
    first = stream.readline()
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        yield from (first + stream.read()).decode("utf-16", errors="replace").splitlines(keepends=True)
        return
    yield first.decode("utf-8-sig", errors="replace")
    for line in stream:
        yield line.decode(errors="replace")


def _learn(study: "LifecycleLearner", source: str) -> "LearnedLifecycle":
    from kwokfleet.learn import learner

    if not study.pods:
        raise errors.InputError(
            f"no pods in {source}",
            hint=f"check kubectl get pods with the same selector and namespace, or record with: {_RECORD}",
        )
    lesson = study.result()
    if not lesson.steps:
        raise errors.InputError(
            f"cannot learn from {learner.pod_count_text(lesson.pods)} of {source}: no pod completed a step",
            hint="watch while pods start: use a longer --for, or restart a Deployment during the watch",
        )
    return lesson


def _render(lesson: "LearnedLifecycle", about: "Provenance", fleet: str | None, form: LifecycleFormat) -> str:
    from kwokfleet.learn import lifecycle_writer

    if form == "json":
        return json.dumps(lifecycle_writer.result_value(lesson, about), indent=2) + "\n"
    return (
        lifecycle_writer.fleet_text(lesson, about, fleet) if fleet else lifecycle_writer.lifecycle_text(lesson, about)
    )


def _write(text: str, to: Path | None) -> None:
    if to is None:
        typer.echo(text, nl=False)
        return
    from kwokfleet.source import files

    files.write(to, text)
    output.print_line(f"wrote {to}; next: {output.program()} validate {to}")


def _show(lesson: "LearnedLifecycle", source: str) -> None:
    """Print the observed and the fitted distributions to standard error."""
    from kwokfleet.cli import learn_view
    from kwokfleet.learn import learner

    output.print_line(f"\n{learner.pod_count_text(lesson.pods)} of {source}\n")
    output.print_line(learn_view.table(lesson))
    output.print_lines(learn_view.remarks(lesson))
