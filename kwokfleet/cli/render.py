"""`kwokfleet render`: the objects that fleet files stand for."""

import gc
import sys
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kwokfleet import errors
from kwokfleet.cli import files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kwokfleet.kube.objects import Manifest
    from kwokfleet.kube.requests import RequestSender
    from kwokfleet.render import desired, schedule, workloads
    from kwokfleet.source import loader

LOOK_AHEAD = timedelta(days=366)
"""How far from now `--waves` looks for the next Run of a Wave."""
KINDS = ("ConfigMap", "Deployment", "Job", "Namespace", "Node", "Pod", "Stage")
"""What the shell completes; any other kind will do."""
PIECE = 1 << 20
"""Characters that are written at once."""


class ManifestFormat(StrEnum):
    """How objects are printed."""

    YAML = "yaml"
    JSON = "json"
    NAME = "name"


def _instant(text: str) -> datetime:
    from kwokfleet.api import units

    try:
        return units.instant(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def fleet_names() -> list[str]:
    """Return the Fleets here, for the shell to complete."""
    from kwokfleet.source import loader

    return [fleet.name for fleet in loader.Loader().load(files.default_path()).tree.fleets]


def render(  # noqa: PLR0913, PLR0917  # one for each option
    path: files.OnePath = None,
    now: Annotated[
        datetime | None,
        typer.Option(
            parser=_instant,
            metavar="TIME",
            help="Render as of this time, as in 2026-03-01T08:00:00Z.",
            show_default=False,
        ),
    ] = None,
    waves: Annotated[bool, typer.Option("--waves", help="Also the objects of each wave's next run.")] = False,
    fleet: Annotated[
        str | None,
        typer.Option(help="Only this Fleet's objects.", show_default=False, autocompletion=fleet_names),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="Only objects of this kind, as in Node.", show_default=False, autocompletion=lambda: list(KINDS)
        ),
    ] = None,
    live: Annotated[
        Path | None,
        typer.Option(
            help="Read live nodes from this file (kubectl get nodes -o json) instead of a client.", show_default=False
        ),
    ] = None,
    form: Annotated[
        ManifestFormat, typer.Option("--output", "-o", help="How to print them; json: an object a line.")
    ] = ManifestFormat.YAML,
) -> None:
    """Print the objects that fleet files stand for: Stages, nodes, namespaces, and with --waves the workload.

    The same files, seed and time give the same bytes on every machine. Prints nothing if a file is wrong.
    """
    gc.disable()  # this process makes many small things, drops none, and ends
    from kwokfleet.render import desired
    from kwokfleet.source import loader

    loaded = files.load(loader.Loader(live_nodes(live)), path or files.default_path())
    files.require_valid(loaded)
    _refuse_unknown(fleet, loaded)
    at = now or datetime.now(UTC)
    renderer = desired.Renderer()
    desired_state = renderer.desired(loaded.tree, at)
    _refuse_clashes(renderer)
    manifests: Iterator[tuple[str, Manifest]] = (
        ("", each) for each in desired.objects_to_create(loaded.tree, desired_state, at)
    )
    if waves:
        manifests = _both(manifests, _workload(loaded.tree, at))
    print_manifests(_chosen(manifests, fleet, kind), form)
    if form is ManifestFormat.YAML and not waves and kind is None:
        for line in _wave_notes(loaded.tree, at, fleet):
            typer.echo(line)


def _refuse_unknown(fleet: str | None, loaded: "loader.Loaded") -> None:
    from kwokfleet.documents import problems

    names = [each.name for each in loaded.tree.fleets]
    if fleet is not None and fleet not in names:
        raise errors.InputError(f"there is no Fleet {fleet!r} in these files", hint=problems.suggestion(fleet, names))


def live_nodes(path: Path | None, api: "RequestSender | None" = None) -> "Callable[[str | None], list[Manifest]]":
    """Return what knows live nodes: a file, or a cluster once somebody asks; *api* is the current one."""

    def read(context: str | None) -> "list[Manifest]":
        if path is not None:
            return _saved_nodes(path)
        from kwokfleet.kube import client

        return client.list_nodes(context, api)

    return read


def _saved_nodes(path: Path) -> "list[Manifest]":
    from kwokfleet.validate import tree_checks

    hint = "make it with: kubectl get nodes -o json"
    saved = [each for each in files.read_objects(path, hint) if each.get("kind") == "Node"]
    found, trouble = tree_checks.node_templates([{"apiVersion": "v1", "kind": "List", "items": saved}])
    if trouble:
        raise errors.InputError(f"{path} {trouble}", hint=hint)
    return found


def _refuse_clashes(renderer: "desired.Renderer") -> None:
    if renderer.clashes:
        clash = renderer.clashes[0]
        raise errors.InputError(
            f"two parts of the files ask for {clash.key.kind} {clash.key.name!r}, each in its own way"
            f" (the second is in {'/'.join(part for part in clash.by if part) or 'the Stages'})",
            hint="change the name of one: nodeName of a pool, the name of a Stage",
        )


def _next_runs(tree: "desired.Tree", now: datetime) -> "Iterator[tuple[workloads.RunContext, schedule.ScheduledRun]]":
    """Yield the next Run of each Wave, as if the daemon saw them first now."""
    from kwokfleet.render import desired, schedule

    for fleet in tree.fleets:
        for wave in fleet.spec.waves:
            run = next(schedule.runs_between(wave.start, now, now - timedelta(microseconds=1), now + LOOK_AHEAD), None)
            if run is not None:
                yield desired.run_context(tree, fleet, wave, run.name), run


def _wave_notes(tree: "desired.Tree", now: datetime, fleet: str | None) -> "Iterator[str]":
    """Yield a comment for each Wave: what would happen when."""
    from kwokfleet.render import workloads

    for context, run in _next_runs(tree, now):
        if fleet in {None, context.fleet.name}:
            count, last = 0, run.start
            for instant in workloads.due_objects(context, run.start):
                count, last = count + 1, instant.at
            what = f"{files.count(count, context.wave.template['kind'])}, {_shown(run.start)} to {_shown(last)}"
            yield f"# wave {context.fleet.name}/{context.wave.name}, run {run.name}: {what} (--waves prints them)"


def _shown(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _workload(tree: "desired.Tree", now: datetime) -> "Iterator[tuple[str, Manifest]]":
    """Yield each object of each Wave's next Run, with when it is due, and the namespaces that vary before them."""
    from kwokfleet.render import desired, workloads

    made: set[str] = set()
    for context, run in _next_runs(tree, now):
        make = workloads.object_factory(context)
        varies = bool(workloads.template_variables(context.wave.namespace or ""))
        for instant in workloads.due_objects(context, run.start):
            manifest = make(instant.index)
            namespace = manifest["metadata"].get("namespace", "")
            if varies and namespace not in made:
                made.add(namespace)
                yield "", desired.namespace_manifest(namespace)
            yield f"# due {_shown(instant.at)}, wave {context.wave.name}, run {run.name}", manifest


def _both(
    first: "Iterator[tuple[str, Manifest]]", second: "Iterator[tuple[str, Manifest]]"
) -> "Iterator[tuple[str, Manifest]]":
    yield from first
    yield from second


def _chosen(
    manifests: "Iterator[tuple[str, Manifest]]", fleet: str | None, kind: str | None
) -> "Iterator[tuple[str, Manifest]]":
    from kwokfleet.kube import objects

    for note, manifest in manifests:
        if kind is not None and manifest["kind"].lower() != kind.lower():
            continue
        if fleet is not None and (manifest["metadata"].get("labels") or {}).get(objects.FLEET) != fleet:
            continue
        yield note, manifest


def print_manifests(manifests: "Iterator[tuple[str, Manifest]]", form: ManifestFormat) -> None:
    """Print objects, a good piece at a time: a write for each would cost more than making it."""
    texts = {ManifestFormat.NAME: _names, ManifestFormat.JSON: _json_lines, ManifestFormat.YAML: _yaml_documents}[form]
    pieces: list[str] = []
    size = 0
    for text in texts(manifests):
        pieces.append(text)
        size += len(text)
        if size > PIECE:
            sys.stdout.write("".join(pieces))
            pieces, size = [], 0
    sys.stdout.write("".join(pieces))


def _names(manifests: "Iterator[tuple[str, Manifest]]") -> "Iterator[str]":
    for _, manifest in manifests:
        metadata = manifest["metadata"]
        inside = f"{metadata['namespace']}/" if "namespace" in metadata else ""
        yield f"{manifest['kind'].lower()}/{inside}{metadata['name']}\n"


def _json_lines(manifests: "Iterator[tuple[str, Manifest]]") -> "Iterator[str]":
    import orjson

    for _, manifest in manifests:
        yield orjson.dumps(manifest, option=orjson.OPT_APPEND_NEWLINE).decode()


def _yaml_documents(manifests: "Iterator[tuple[str, Manifest]]") -> "Iterator[str]":
    from kwokfleet.documents import writer

    yaml_writer = writer.YamlWriter()
    for note, manifest in manifests:
        yield f"---\n{note}\n" if note else "---\n"
        yield yaml_writer.document(manifest)
