"""The files, Stages and live nodes that Fleets refer to.

Stages by name or file, node templates, traces and kwok's own objects.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from kwokfleet.api import fleet as fleet_api
from kwokfleet.api.node_pool import TemplateFrom
from kwokfleet.documents import parser, problems
from kwokfleet.documents.parser import Document
from kwokfleet.documents.problems import FieldPath, Finding, Problem
from kwokfleet.kube.objects import Manifest
from kwokfleet.render import desired, node_templates, workloads
from kwokfleet.render.stage_sets import NamedStageSet, library_set_name
from kwokfleet.source import files, traces
from kwokfleet.source.document_index import DocumentIndex, lint_stage
from kwokfleet.source.stage_library import StageLibrary
from kwokfleet.validate import kwok_resources, tree_checks

LiveNodes = Callable[[str | None], list[Manifest]]
"""Returns the nodes of the cluster of a kubeconfig context."""


@dataclass(frozen=True, slots=True)
class References:
    """The referenced objects of all Fleets."""

    stage_sets: dict[str, tuple[NamedStageSet, ...]] = field(default_factory=dict)
    """By Fleet."""
    templates: dict[desired.PartName, tuple[Manifest, ...]] = field(default_factory=dict)
    """Node templates by pool."""
    traces: dict[desired.PartName, workloads.RecordedArrivals] = field(default_factory=dict)
    """By Wave."""
    kwok_objects: dict[str, list[tuple[Manifest, Document]]] = field(default_factory=dict)
    """By Fleet."""
    stage_documents: dict[tuple[str, int], Document] = field(default_factory=dict)
    """Stages of the tree that a Fleet uses, by file and document number."""


def resolve(index: DocumentIndex, boundary: Path, live_nodes: LiveNodes | None) -> References:
    """Read all references of the Fleets. Findings, and the files used, go to *index*.

    References out of the folder *boundary* are rejected. Without *live_nodes*, live templates stay empty.
    """
    resolver = _Resolver(index, boundary, live_nodes)
    for fleet, document in index.fleets.values():
        resolver.resolve_stages(fleet, document)
        resolver.resolve_kwok_objects(fleet, document)
        resolver.resolve_templates(fleet, document)
        resolver.resolve_traces(fleet, document)
    return resolver.references


class _Resolver:
    def __init__(self, index: DocumentIndex, boundary: Path, live_nodes: LiveNodes | None) -> None:
        self._index, self._boundary, self._live_nodes = index, boundary, live_nodes
        self.references = References()

    def resolve_stages(self, fleet: fleet_api.Fleet, document: Document) -> None:
        sets = []
        for number, use in enumerate(fleet.spec.stages):
            where: FieldPath = ("spec", "stages", number)
            if use.name:
                sets.append(self._stages_by_name(use.name, document, where))
            else:
                sets.append(self._stages_in_file(use.file or "", document, (*where, "file")))
        self.references.stage_sets[fleet.name] = tuple(stage_set for stage_set in sets if stage_set is not None)

    def _stages_by_name(self, name: str, document: Document, where: FieldPath) -> NamedStageSet | None:
        if name in self._index.stages:
            stage_document = self._index.stages[name]
            stage: Any = stage_document.value
            self.references.stage_documents[stage_document.path, stage_document.index] = stage_document
            self._index.used_files.setdefault(document.path, set()).add(stage_document.path)
            return NamedStageSet(name, (stage,))
        known = list(StageLibrary())
        if name in known:
            return NamedStageSet(name, from_library=True)
        hint = problems.suggestion(name, [*known, *self._index.stages])
        message = f"no Stage and no Stage set is named {name!r}"
        self._index.report(document, [Finding(where, message, hint, rule="unknown-reference")])
        return None

    def _stages_in_file(self, name: str, document: Document, where: FieldPath) -> NamedStageSet | None:
        file = self._read(name, document, where)
        if file is None:
            return None
        documents, errors = self._parse(file)
        linted_files = {stage_document.path for stage_document in self._index.stages.values()}
        stages: list[Manifest] = []
        for stage_document in documents:
            stage = stage_document.value
            if not isinstance(stage, dict) or stage.get("kind") != "Stage":
                continue
            if file.path not in linted_files and not _is_library_stage(stage):
                self._index.report(stage_document, lint_stage(stage))
            if tree_checks.has_name(stage):
                stages.append(stage)
                self.references.stage_documents[stage_document.path, stage_document.index] = stage_document
        if not stages and not errors:
            finding = Finding(where, f"{file.path} contains no Stage", "name a file with Stages", rule="no-stage")
            self._index.report(document, [finding])
        return NamedStageSet(name, tuple(stages))

    def resolve_kwok_objects(self, fleet: fleet_api.Fleet, document: Document) -> None:
        for number, use in enumerate(fleet.spec.kwok_resources):
            file = self._read(use.file, document, ("spec", "kwokResources", number, "file"))
            for kwok_document in self._parse(file)[0] if file else ():
                findings = kwok_resources.check(kwok_document.value)
                self._index.report(kwok_document, findings)
                if not findings and isinstance(kwok_document.value, dict):
                    manifest = kwok_resources.owned_manifest(kwok_document.value, fleet.name)
                    self.references.kwok_objects.setdefault(fleet.name, []).append((manifest, kwok_document))

    def resolve_templates(self, fleet: fleet_api.Fleet, document: Document) -> None:
        for number, pool in enumerate(fleet.spec.node_pools):
            source = pool.template_from
            if source is None:
                continue
            get_templates = self._live_templates if source.nodes else self._file_templates
            templates = get_templates(source, document, ("spec", "nodePools", number, "templateFrom"))
            self.references.templates[fleet.name, pool.name] = tuple(templates)

    def _file_templates(self, source: TemplateFrom, document: Document, where: FieldPath) -> list[Manifest]:
        file = self._read(source.file or "", document, (*where, "file"))
        if file is None:
            return []
        documents, _ = self._parse(file)
        nodes, error = tree_checks.node_templates([node_document.value for node_document in documents])
        matching = node_templates.matching_nodes(nodes, source.match_labels)
        if error or not matching:
            message = error or f"no node in {file.path} has these labels"
            place = "matchLabels" if nodes and source.match_labels else "file"
            no_nodes = "name a file with Nodes, a List of Nodes or the autoscaler's ConfigMap"
            hint = "compare with the labels in that file" if nodes else no_nodes
            self._index.report(document, [Finding((*where, place), message, hint, rule="no-template")])
        return [node_templates.sanitized_template(node, saved=True) for node in matching]

    def _live_templates(self, source: TemplateFrom, document: Document, where: FieldPath) -> list[Manifest]:
        selector = source.nodes
        if self._live_nodes is None or selector is None:
            return []
        nodes = [node for node in self._live_nodes(source.context) if not node_templates.is_fake(node)]
        matching = node_templates.matching_nodes(nodes, selector.match_labels, selector.names)
        if not matching:
            message = f"none of the cluster's {len(nodes)} real nodes matches"
            hint = "compare with: kubectl get nodes --show-labels"
            self._index.report(document, [Finding((*where, "nodes"), message, hint, rule="no-template")])
        return [node_templates.sanitized_template(node) for node in matching]

    def resolve_traces(self, fleet: fleet_api.Fleet, document: Document) -> None:
        for number, wave in enumerate(fleet.spec.waves):
            if wave.arrivals is None or wave.arrivals.trace is None:
                continue
            where = ("spec", "waves", number, "arrivals", "trace", "file")
            file = self._read(wave.arrivals.trace.file, document, where)
            if file is not None:
                trace, errors = traces.read(file.path, file.text, wave.arrivals.trace.format)
                self._index.problems += errors
                if trace is not None:
                    self.references.traces[fleet.name, wave.name] = trace

    def _read(self, name: str, document: Document, where: FieldPath) -> files.File | None:
        """Read a referenced file; None, with a finding, if that is not possible."""
        file = files.read_reference(self._boundary, document.path, name)
        if isinstance(file, str):
            finding = Finding(where, file, "name a file beside the fleet files", rule="unreadable")
            self._index.report(document, [finding])
            if (missing := files.reference_path(self._boundary, document.path, name)) is not None:
                self._index.reference_digests[missing] = ""
            return None
        self._index.reference_digests[file.path] = file.digest
        self._index.used_files.setdefault(document.path, set()).add(file.path)
        return file

    def _parse(self, file: files.File) -> tuple[list[Document], list[Problem]]:
        """Parse a referenced file. A large one must be JSON: YAML would take minutes."""
        documents, errors = list[Document](), list[Problem]()
        if len(file.text) <= files.MAX_FILE_BYTES:
            documents, errors = parser.parse(file.path, file.text)
        else:
            try:
                documents = [Document(file.path, orjson.loads(file.text))]
            except orjson.JSONDecodeError as error:
                message = f"is larger than {files.MAX_FILE_BYTES >> 20} MiB and not JSON ({error.msg})"
                hint = "save it as JSON: kubectl get nodes -o json"
                errors = [Problem(file.path, error.lineno, error.colno, "", message, hint, rule="file-too-large")]
        self._index.problems += errors
        return documents, errors


def _is_library_stage(stage: Manifest) -> bool:
    """Return whether a Stage is an unchanged copy from the library."""
    name = library_set_name(stage)
    return stage in StageLibrary().get(name, ())
