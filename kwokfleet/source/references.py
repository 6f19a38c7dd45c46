"""What the Fleets of one tree refer to, followed and held together: the second half of loading.

Stages by name or file, templates, traces, kwok's own objects; then what shows only in the whole. The
documents come from `source.py`, which also remembers what was read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from kwokfleet.api import fleet as fleet_api
from kwokfleet.api import kwok_controller
from kwokfleet.documents import problems
from kwokfleet.documents.parser import Document
from kwokfleet.documents.problems import FieldPath, Finding, Problem
from kwokfleet.kube.objects import Manifest
from kwokfleet.render import desired, node_templates, stage_sets, usage, workloads
from kwokfleet.source import files, library, traces
from kwokfleet.validate import fleet_checks, kwok_resources, tree_checks, wave_checks


class ReferenceReader(Protocol):
    """Who reads what Fleets refer to."""

    def library_set(self, name: str) -> tuple[Manifest, ...]:
        """Return the documents of one of the library's sets."""

    def file_documents(self, file: files.File) -> tuple[list[Document], list[Problem]]:
        """Return the documents of a file that another one refers to."""

    def live_nodes(self, context: str | None) -> list[Manifest] | None:
        """Return the live nodes of a cluster, None if there is no way to ask."""


@dataclass(slots=True)
class DocumentIndex:
    """What is being put together."""

    fleets: dict[str, tuple[fleet_api.Fleet, Document]] = field(default_factory=dict)
    controllers: list[tuple[kwok_controller.KwokController, Document]] = field(default_factory=list)
    stages: dict[str, Document] = field(default_factory=dict)
    foreign: list[Document] = field(default_factory=list)
    used: dict[str, set[str]] = field(default_factory=dict)
    """For each file, those that it refers to."""
    references: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    controller_paths: set[str] = field(default_factory=set)
    """The files with a KwokController document, right or wrong."""

    def add(self, document: Document, found: Iterator[Finding] | list[Finding]) -> None:
        """Note findings in a document."""
        self.problems += [document.problem(finding) for finding in found]


class _Library(Mapping[str, tuple[Manifest, ...]]):
    """The library's sets by name; a set is read when somebody asks for it."""

    def __init__(self, reader: ReferenceReader) -> None:
        self._reader = reader

    def __getitem__(self, name: str) -> tuple[Manifest, ...]:
        if name not in library.stage_sets():
            raise KeyError(name)
        return self._reader.library_set(name)

    def __iter__(self) -> Iterator[str]:
        return iter(library.stage_sets())

    def __len__(self) -> int:
        return len(library.stage_sets())


class ReferenceResolver:
    """Follows what the Fleets of one tree refer to, and holds all of it together."""

    def __init__(self, reader: ReferenceReader, found: DocumentIndex, boundary: Path) -> None:
        self.reader, self.found, self.boundary = reader, found, boundary
        self.sets: dict[str, tuple[stage_sets.NamedStageSet, ...]] = {}
        self.templates: dict[desired.PartName, tuple[Manifest, ...]] = {}
        self.traces: dict[desired.PartName, workloads.RecordedArrivals] = {}
        self.kwok_objects: dict[str, list[tuple[Manifest, Document]]] = {}
        self.own_stages: dict[tuple[str, int], Document] = {}
        """The Stages of an author's own that some Fleet names, by file and document."""

    def tree(self) -> desired.Tree:
        """Return the tree, with only what can be used."""
        fleets = [fleet for fleet, _ in self.found.fleets.values()]
        for fleet, document in self.found.fleets.values():
            self.found.add(document, fleet_checks.check(fleet))
            self._stage_uses(fleet, document)
            self._kwok_files(fleet, document)
            self._pool_templates(fleet, document)
            self._waves(fleet, document)
        spec = self._controller()
        self._held_together(fleets)
        bad = fleets_with_errors(self.found) | self.found.broken
        tree = desired.Tree(
            tuple(fleet for fleet in sorted(fleets, key=lambda each: each.name) if fleet.name not in bad),
            spec,
            _Library(self.reader),
            {name: uses for name, uses in sorted(self.sets.items()) if name not in bad},
            self.templates,
            self.traces,
            {name: tuple(each for each, _ in found) for name, found in sorted(self.kwok_objects.items())},
        )
        self._played(tree)
        bad = fleets_with_errors(self.found)
        return replace(tree, fleets=tuple(fleet for fleet in tree.fleets if fleet.name not in bad))

    def _controller(self) -> kwok_controller.KwokControllerSpec:
        for _, document in self.found.controllers[1:]:
            first = self.found.controllers[0][1]
            what = f"there is another KwokController, in {first.path}"
            self.found.add(document, [Finding(("metadata", "name"), what, "keep one of them", rule="duplicate-name")])
        return self._spec()

    def _spec(self) -> kwok_controller.KwokControllerSpec:
        return self.found.controllers[0][0].spec if self.found.controllers else kwok_controller.KwokControllerSpec()

    # what Fleets refer to

    def _stage_uses(self, fleet: fleet_api.Fleet, document: Document) -> None:
        uses: list[stage_sets.NamedStageSet] = []
        for index, use in enumerate(fleet.spec.stages):
            where: FieldPath = ("spec", "stages", index)
            made = (
                self._named(use.name, document, where) if use.name else self._stages_of(use.file or "", document, where)
            )
            if made is not None:
                uses.append(made)
        self.sets[fleet.name] = tuple(uses)

    def _named(self, name: str, document: Document, where: FieldPath) -> stage_sets.NamedStageSet | None:
        if name in self.found.stages:
            own = self.found.stages[name]
            stage: Any = own.value
            self.own_stages[own.path, own.index] = own
            self.found.used.setdefault(document.path, set()).add(own.path)
            return stage_sets.NamedStageSet(name, (stage,))
        known = library.stage_sets()
        if name in known:
            return stage_sets.NamedStageSet(name, from_library=True)
        what = f"there is no set of Stages and no Stage {name!r}"
        hint = problems.suggestion(name, [*known, *self.found.stages])
        self.found.add(document, [Finding(where, what, hint, rule="unknown-reference")])
        return None

    def _stages_of(self, name: str, document: Document, where: FieldPath) -> stage_sets.NamedStageSet | None:
        file = self._referenced(name, document, (*where, "file"))
        if file is None:
            return None
        parsed, wrong = self.reader.file_documents(file)
        self.found.problems += wrong
        stages: list[Manifest] = []
        for each in parsed:
            if not isinstance(each.value, dict) or each.value.get("kind") != "Stage":
                continue
            if file.path not in {one.path for one in self.found.stages.values()} and not self._from_library(each.value):
                self.found.add(each, lint_stage(each.value))
            if tree_checks.has_name(each.value):
                stages.append(each.value)
                self.own_stages[each.path, each.index] = each
        if not stages and not wrong:
            what = f"{file.path} holds no Stage"
            self.found.add(document, [Finding((*where, "file"), what, "name a file with some", rule="no-stage")])
        return stage_sets.NamedStageSet(name, tuple(stages))

    def _from_library(self, stage: Manifest) -> bool:
        """Return whether a Stage is one of the library's, as it is there."""
        name = stage_sets.library_set_name(stage)
        return name in library.stage_sets() and stage in self.reader.library_set(name)

    def _kwok_files(self, fleet: fleet_api.Fleet, document: Document) -> None:
        """Read the files of kwok's own objects that a Fleet names."""
        for index, use in enumerate(fleet.spec.kwok_resources):
            file = self._referenced(use.file, document, ("spec", "kwokResources", index, "file"))
            if file is None:
                continue
            parsed, wrong = self.reader.file_documents(file)
            self.found.problems += wrong
            for each in parsed:
                trouble = kwok_resources.check(each.value)
                self.found.add(each, trouble)
                if not trouble and isinstance(each.value, dict):
                    made = kwok_resources.owned_manifest(each.value, fleet.name)
                    self.kwok_objects.setdefault(fleet.name, []).append((made, each))

    def _pool_templates(self, fleet: fleet_api.Fleet, document: Document) -> None:
        for index, pool in enumerate(fleet.spec.node_pools):
            source = pool.template_from
            where: FieldPath = ("spec", "nodePools", index, "templateFrom")
            if source is None:
                continue
            made = self._live(source, document, where) if source.nodes else self._from_file(source, document, where)
            self.templates[fleet.name, pool.name] = tuple(made)
            if not any(fleet_checks.check_node_template(pool.template, ())):
                self.found.add(
                    document, fleet_checks.check_pod_cidr_size(pool, made, ("spec", "nodePools", index, "podCIDR"))
                )

    def _from_file(self, source: fleet_api.TemplateFrom, document: Document, where: FieldPath) -> list[Manifest]:
        file = self._referenced(source.file or "", document, (*where, "file"))
        if file is None:
            return []
        parsed, wrong = self.reader.file_documents(file)
        self.found.problems += wrong
        given, trouble = tree_checks.node_templates([each.value for each in parsed])
        chosen = [
            node_templates.sanitized_template(node, saved=True)
            for node in node_templates.matching_nodes(given, source.match_labels)
        ]
        if trouble or not chosen:
            what = trouble or f"no node in {file.path} has these labels"
            place = (*where, "matchLabels") if given and source.match_labels else (*where, "file")
            hint = (
                "see the labels in that file"
                if given
                else "name a file with Nodes, a List of them or the autoscaler's ConfigMap"
            )
            self.found.add(document, [Finding(place, what, hint, rule="no-template")])
        return chosen

    def _live(self, source: fleet_api.TemplateFrom, document: Document, where: FieldPath) -> list[Manifest]:
        live = self.reader.live_nodes(source.context)
        selector = source.nodes
        if live is None or selector is None:
            return []
        real = [node for node in live if not node_templates.is_fake(node)]
        chosen = node_templates.matching_nodes(real, selector.match_labels, selector.names)
        if not chosen:
            what = f"none of the cluster's {len(real)} real nodes matches"
            self.found.add(
                document, [Finding((*where, "nodes"), what, "see kubectl get nodes --show-labels", rule="no-template")]
            )
        return [node_templates.sanitized_template(node) for node in chosen]

    def _waves(self, fleet: fleet_api.Fleet, document: Document) -> None:
        for index, wave in enumerate(fleet.spec.waves):
            where: FieldPath = ("spec", "waves", index)
            trace = None
            if wave.arrivals is not None and wave.arrivals.trace is not None:
                place: FieldPath = (*where, "arrivals", "trace", "file")
                file = self._referenced(wave.arrivals.trace.file, document, place)
                if file is not None:
                    trace, wrong = traces.read(file.path, file.text, wave.arrivals.trace.format)
                    self.found.problems += wrong
                if trace is not None:
                    self.traces[fleet.name, wave.name] = trace
            self.found.add(document, wave_checks.check(fleet, wave, where, trace))

    def _referenced(self, name: str, document: Document, where: FieldPath) -> files.File | None:
        file = files.read_reference(self.boundary, document.path, name)
        if isinstance(file, str):
            self.found.add(document, [Finding(where, file, "name a file beside the fleet files", rule="unreadable")])
            if (missing := files.reference_path(self.boundary, document.path, name)) is not None:
                self.found.references[missing] = ""
            return None
        self.found.references[file.path] = file.digest
        self.found.used.setdefault(document.path, set()).add(file.path)
        return file

    # what shows only in the whole

    def _held_together(self, fleets: list[fleet_api.Fleet]) -> None:
        for name, finding in fleet_checks.overlapping_pod_cidrs(sorted(fleets, key=lambda fleet: fleet.name)):
            self.found.add(self.found.fleets[name][1], [finding])
        for name, finding in tree_checks.check_conflicts(fleets, self.sets):
            self.found.add(self.found.fleets[name][1], [finding])
        raw = [each for _, found in sorted(self.kwok_objects.items()) for each in found]
        for document, finding in kwok_resources.check_conflicts(raw, uses=usage.is_declared(fleets)):
            self.found.add(document, [finding])
        if self.found.controllers:  # without one, it may be in a file that is not looked at
            for name, found in self.kwok_objects.items():
                own = [each for each, _ in found]
                self.found.add(self.found.fleets[name][1], kwok_resources.check_reachable(own, self._spec()))
        if len(self.own_stages) > 1:
            self._stages_together(list(self.own_stages.values()))

    def _stages_together(self, own: list[Document]) -> None:
        from kwokfleet.stagelint import rules  # noqa: PLC0415  # slow to import

        stages = [((index,), document.value) for index, document in enumerate(own) if isinstance(document.value, dict)]
        for finding in rules.check_set(stages):
            document = own[int(finding.field_path[0])]
            problem = document.problem(replace(finding, field_path=finding.field_path[1:]))
            if not any((each.path, each.line) == (problem.path, problem.line) for each in self.found.problems):
                self.found.problems.append(problem)

    def _played(self, tree: desired.Tree) -> None:
        """Hold the Stages that would be played against the workload and the nodes they would play it on."""
        for name, finding in tree_checks.check_stage_coverage(tree):
            self.found.add(self.found.fleets[name][1], [finding])


def lint_stage(stage: Mapping[str, Any]) -> list[Finding]:
    """Return what kwok would stumble over. Most trees have no Stage of their own, and need no linter."""
    from kwokfleet.stagelint import rules  # noqa: PLC0415  # slow to import

    return rules.check(stage)


def fleets_with_errors(found: DocumentIndex) -> set[str]:
    """Return the Fleets in whose files, or in files they refer to, something is wrong: all or nothing."""
    bad = {problem.path for problem in problems.errors(found.problems)}
    return {
        name
        for name, (_, document) in found.fleets.items()
        if bad & {document.path, *found.used.get(document.path, ())}
    }
