"""`kwokfleet render`: the objects that fleet files declare."""

import gc
import itertools
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

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
"""Time range in which `--waves` searches the next Run of a Wave."""
KINDS = ("ConfigMap", "Deployment", "Job", "Namespace", "Node", "Pod", "Stage")
"""Shell completions of --kind; other kinds are valid, too."""
CHUNK_SIZE = 1 << 20
"""Characters per write."""

ManifestFormat = Literal["yaml", "json", "name"]


def _instant(text: str) -> datetime:
    from kwokfleet.api import units

    try:
        return units.instant(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def fleet_names() -> list[str]:
    """Return the names of the Fleets in the default folder, for shell completion."""
    from kwokfleet.source import loader

    return [fleet.name for fleet in loader.Loader().load(files.default_path()).tree.fleets]


def render(  # noqa: PLR0913, PLR0917  # one for each option
    path: files.OnePath = None,
    now: Annotated[
        datetime | None,
        typer.Option(parser=_instant, metavar="TIME", help="Render for this time, for example 2026-03-01T08:00:00Z."),
    ] = None,
    waves: Annotated[
        bool, typer.Option("--waves", help="Also print the objects of the next run of each wave.")
    ] = False,
    fleet: Annotated[str | None, typer.Option(help="Only objects of this Fleet.", autocompletion=fleet_names)] = None,
    kind: Annotated[
        str | None,
        typer.Option(help="Only objects of this kind, for example Node.", autocompletion=lambda: list(KINDS)),
    ] = None,
    live: Annotated[
        Path | None,
        typer.Option(help="Read live nodes from this file (kubectl get nodes -o json) instead of a cluster."),
    ] = None,
    form: Annotated[
        ManifestFormat, typer.Option("--output", "-o", help="Output format; json: one object per line.")
    ] = "yaml",
) -> None:
    """Print the objects that fleet files declare: Stages, nodes, namespaces; with --waves also workloads.

    The same files, seed and time give the same output on every machine. If a file has errors, no object is printed.
    """
    gc.disable()  # a short process that keeps nearly all its objects
    from kwokfleet.render import desired
    from kwokfleet.source import loader

    loaded = files.load(loader.Loader(live_nodes(live)), path or files.default_path())
    files.require_valid(loaded)
    _require_known_fleet(fleet, loaded)
    render_time = now or datetime.now(UTC)
    renderer = desired.Renderer()
    desired_state = renderer.desired(loaded.tree, render_time)
    _require_unique_objects(renderer)
    manifests: Iterator[tuple[str, Manifest]] = (
        ("", manifest) for manifest in desired.objects_to_create(loaded.tree, desired_state, render_time)
    )
    if waves:
        manifests = itertools.chain(manifests, _workload(loaded.tree, render_time))
    print_manifests(_select(manifests, fleet, kind), form)
    if form == "yaml" and not waves and kind is None:
        for line in _wave_comments(loaded.tree, render_time, fleet):
            typer.echo(line)


def _require_known_fleet(fleet: str | None, loaded: "loader.Loaded") -> None:
    from kwokfleet.documents import problems

    names = [declared.name for declared in loaded.tree.fleets]
    if fleet is not None and fleet not in names:
        raise errors.InputError(f"Fleet {fleet!r} not found in these files", hint=problems.suggestion(fleet, names))


def live_nodes(path: Path | None, api: "RequestSender | None" = None) -> "Callable[[str | None], list[Manifest]]":
    """Return a function that lists live nodes, from a file or from a cluster; *api* is the current cluster."""

    def read(context: str | None) -> "list[Manifest]":
        if path is not None:
            return _saved_nodes(path)
        from kwokfleet.kube import client

        return client.list_nodes(context, api)

    return read


def _saved_nodes(path: Path) -> "list[Manifest]":
    from kwokfleet.validate import tree_checks

    hint = "create it with: kubectl get nodes -o json"
    nodes = [manifest for manifest in files.read_objects(path, hint) if manifest.get("kind") == "Node"]
    templates, error = tree_checks.node_templates([{"apiVersion": "v1", "kind": "List", "items": nodes}])
    if error:
        raise errors.InputError(f"{path} {error}", hint=hint)
    return templates


def _require_unique_objects(renderer: "desired.Renderer") -> None:
    if renderer.conflicts:
        clash = renderer.conflicts[0]
        raise errors.InputError(
            f"the files declare {clash.key.kind} {clash.key.name!r} twice, with different contents"
            f" (the second is in {'/'.join(part for part in clash.by if part) or 'the Stages'})",
            hint="rename one of them: nodeName of a pool, or the name of a Stage",
        )


def _next_runs(tree: "desired.Tree", now: datetime) -> "Iterator[tuple[workloads.RunContext, schedule.ScheduledRun]]":
    """Yield the next Run of each Wave, as a daemon that starts now would."""
    from kwokfleet.render import desired, schedule

    for fleet in tree.fleets:
        for wave in fleet.spec.waves:
            run = next(schedule.runs_between(wave.start, now, now - timedelta(microseconds=1), now + LOOK_AHEAD), None)
            if run is not None:
                yield desired.run_context(tree, fleet, wave, run.name), run


def _wave_comments(tree: "desired.Tree", now: datetime, fleet: str | None) -> "Iterator[str]":
    """Yield a comment for each Wave: number and times of its objects."""
    from kwokfleet.render import workloads

    for context, run in _next_runs(tree, now):
        if fleet in {None, context.fleet.name}:
            count, last = 0, run.start
            for instant in workloads.due_objects(context, run.start):
                count, last = count + 1, instant.at
            objects = files.count(count, context.wave.template["kind"])
            summary = f"{objects}, {_format_time(run.start)} to {_format_time(last)}"
            yield f"# wave {context.fleet.name}/{context.wave.name}, run {run.name}: {summary} (--waves prints them)"


def _format_time(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _workload(tree: "desired.Tree", now: datetime) -> "Iterator[tuple[str, Manifest]]":
    """Yield the objects of the next Run of each Wave, with their times; templated namespaces come first."""
    from kwokfleet.render import desired, workload_template, workloads

    namespaces: set[str] = set()
    for context, run in _next_runs(tree, now):
        make = workloads.object_factory(context)
        varies = bool(workload_template.template_variables(context.wave.namespace or ""))
        for instant in workloads.due_objects(context, run.start):
            manifest = make(instant.index)
            namespace = manifest["metadata"].get("namespace", "")
            if varies and namespace not in namespaces:
                namespaces.add(namespace)
                yield "", desired.namespace_manifest(namespace)
            yield f"# due {_format_time(instant.at)}, wave {context.wave.name}, run {run.name}", manifest


def _select(
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
    """Print objects in large chunks: one write per object would take longer than rendering it."""
    texts = {"name": _names, "json": _json_lines, "yaml": _yaml_documents}[form]
    chunk: list[str] = []
    size = 0
    for text in texts(manifests):
        chunk.append(text)
        size += len(text)
        if size > CHUNK_SIZE:
            sys.stdout.write("".join(chunk))
            chunk, size = [], 0
    sys.stdout.write("".join(chunk))


def _names(manifests: "Iterator[tuple[str, Manifest]]") -> "Iterator[str]":
    for _, manifest in manifests:
        metadata = manifest["metadata"]
        prefix = f"{metadata['namespace']}/" if "namespace" in metadata else ""
        yield f"{manifest['kind'].lower()}/{prefix}{metadata['name']}\n"


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
