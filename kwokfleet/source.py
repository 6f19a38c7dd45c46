"""From a path to a validated Tree: what validate, render, diff and the daemon begin with.

Read the files, parse them, make models of the documents, follow what they refer to, hold all of it
together. Everything wrong on the way is gathered as Problems; what is right goes on without it. A
Loader remembers what it made of each file, so loading again costs what changed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from kwokfleet.core import (
    checks,
    controller,
    documents,
    kwok_objects,
    node_templates,
    problems,
    render,
    stagesets,
    tree_checks,
    usage,
    validation,
    wave_checks,
    workloads,
)
from kwokfleet.core import fleet as model
from kwokfleet.core.documents import Document
from kwokfleet.core.objects import STAGE_API_VERSION, Manifest
from kwokfleet.core.problems import Finding, Problem, Severity, Where
from kwokfleet.edge import files, library
from kwokfleet.formats import traces

LiveNodes = Callable[[str | None], list[Manifest]]
"""Returns the nodes of the cluster that a kubeconfig context names."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a path holds."""

    tree: render.Tree
    problems: tuple[Problem, ...]
    snapshot: files.Snapshot
    broken: frozenset[str] = frozenset()
    """Fleets whose documents are there but cannot be used: what they own is left alone."""
    unreadable: frozenset[str] = frozenset()
    """Files of which nobody can tell what they would own."""
    frozen: str = ""
    """Why nothing at all may be done: there is no file, or how kwok runs is declared wrongly. Empty otherwise."""
    controller_known: bool = True
    """Whether a KwokController document would have been seen if there is one."""
    partial: bool = False
    """Whether it speaks only of the Fleets it declares: a single file does, a folder speaks of all there are."""
    references: Mapping[str, str] = field(default_factory=dict)
    """The digests of files that Fleets refer to, wherever they are; empty of one that cannot be read. To be watched."""

    @property
    def usable(self) -> bool:
        """Whether nothing is wrong beyond warnings."""
        return not problems.errors(self.problems)


def nothing() -> Loaded:
    """Return what no file at all would say."""
    return Loaded(render.Tree(), (), files.Snapshot(Path(), (), (), ""))


@dataclass(slots=True)
class _Found:
    """What is being put together."""

    fleets: dict[str, tuple[model.Fleet, Document]] = field(default_factory=dict)
    controllers: list[tuple[controller.KwokController, Document]] = field(default_factory=list)
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


class Loader:
    """Loads trees, one after the other."""

    def __init__(self, live_nodes: LiveNodes | None = None) -> None:
        self._live_nodes = live_nodes
        self._parsed: dict[tuple[str, str], tuple[list[Document], list[Problem]]] = {}
        self._models: dict[tuple[str, str, int], tuple[Any, list[Finding]]] = {}
        self._sets: dict[str, tuple[Manifest, ...]] = {}

    def load(self, path: Path, *, stable: bool = False) -> Loaded:
        """Load a file or folder as it is now; *stable*: once nobody is writing there."""
        loaded = self.loaded(files.read_stable(path) if stable else files.read(path), files.boundary(path))
        empty = "" if loaded.snapshot.files else f"there is no fleet file in {path} that can be read"
        return replace(loaded, partial=path.is_file(), frozen=loaded.frozen or empty)

    def loaded(self, snapshot: files.Snapshot, boundary: Path) -> Loaded:
        """Return what a snapshot holds."""
        found = _Found(problems=list(snapshot.problems))
        for file in snapshot.files:
            parsed, wrong = self._parse(file.path, file.text, file.digest)
            found.problems += wrong
            for document in parsed:
                self._sort(document, file.digest, found)
        self._forget(snapshot)
        tree = _Assembly(self, found, boundary).tree()
        unreadable = {problem.path for problem in problems.errors(found.problems) if _hides_documents(problem)}
        found.problems += _ignored(found)
        broken = found.broken | _fleets_with_errors(found)
        said = tuple(sorted(_said_once(found.problems)))
        known = bool(found.controllers) or not unreadable
        frozen, references = _frozen(found), dict(sorted(found.references.items()))
        return Loaded(
            tree, said, snapshot, frozenset(broken), frozenset(unreadable), frozen, known, references=references
        )

    def _parse(self, path: str, text: str, digest: str) -> tuple[list[Document], list[Problem]]:
        known = self._parsed.get((path, digest))
        if known is None:
            known = self._parsed[path, digest] = documents.parse(path, text)
        return known

    def _forget(self, snapshot: files.Snapshot) -> None:
        """Drop what was made of files that are no longer there."""
        present = {(file.path, file.digest) for file in snapshot.files}
        self._parsed = {key: value for key, value in self._parsed.items() if key in present}
        self._models = {key: value for key, value in self._models.items() if key[:2] in present}

    def _sort(self, document: Document, digest: str, found: _Found) -> None:
        """Put a document where it belongs, by its apiVersion and kind."""
        if isinstance(document.value, dict) and "$schema" in document.value and "kind" not in document.value:
            return  # what `kwokfleet schema` printed
        wrong = tree_checks.document(document.value)
        if wrong:
            found.add(document, wrong)
            return
        value: Mapping[str, Any] = document.value  # type: ignore[assignment]  # a mapping: just checked
        if value.get("apiVersion") == model.API_VERSION:
            self._model(document, digest, value, found)
        elif value.get("apiVersion") == STAGE_API_VERSION and value.get("kind") == "Stage":
            _stage(document, value, found)
        else:
            found.foreign.append(document)

    def _model(self, document: Document, digest: str, value: Mapping[str, Any], found: _Found) -> None:
        key = (document.path, digest, document.index)
        if value["kind"] == "KwokController":
            found.controller_paths.add(document.path)
        if key not in self._models:
            self._models[key] = validation.read(model.KINDS[value["kind"]], value)
        made, wrong = self._models[key]
        found.add(document, wrong)
        if made is None:
            name = (value.get("metadata") or {}).get("name") if isinstance(value.get("metadata"), Mapping) else None
            if value["kind"] == "Fleet" and isinstance(name, str):
                found.broken.add(name)
        elif isinstance(made, controller.KwokController):
            found.controllers.append((made, document))
        elif made.name in found.fleets:
            first = found.fleets[made.name][1]
            what = f"there is another Fleet {made.name!r}, in {first.path}"
            found.add(document, [Finding(("metadata", "name"), what, "give one another name", rule="duplicate-name")])
            found.broken.add(made.name)
        else:
            found.fleets[made.name] = (made, document)

    def library_set(self, name: str) -> tuple[Manifest, ...]:
        """Return the documents of one of the library's sets."""
        if name not in self._sets:
            parsed, _ = documents.parse(f"{name}.yaml", library.stage_set(name))
            self._sets[name] = tuple(document.value for document in parsed if isinstance(document.value, dict))
        return self._sets[name]

    def file_documents(self, file: files.File) -> tuple[list[Document], list[Problem]]:
        """Return the documents of a file that another one refers to."""
        if len(file.text) <= files.MAX_FILE_BYTES:
            return documents.parse(file.path, file.text)
        try:
            return [Document(file.path, orjson.loads(file.text))], []
        except orjson.JSONDecodeError as error:
            what = f"has more than {files.MAX_FILE_BYTES >> 20} MiB and is not JSON ({error.msg})"
            hint = "save it as JSON: kubectl get nodes -o json"
            return [], [Problem(file.path, error.lineno, error.colno, "", what, hint, rule="file-too-large")]

    def live_nodes(self, context: str | None) -> list[Manifest] | None:
        """Return the live nodes of a cluster, None if there is no way to ask."""
        return self._live_nodes(context) if self._live_nodes else None


class _Library(Mapping[str, tuple[Manifest, ...]]):
    """The library's sets by name; a set is read when somebody asks for it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getitem__(self, name: str) -> tuple[Manifest, ...]:
        if name not in library.stage_sets():
            raise KeyError(name)
        return self._loader.library_set(name)

    def __iter__(self) -> Iterator[str]:
        return iter(library.stage_sets())

    def __len__(self) -> int:
        return len(library.stage_sets())


class _Assembly:
    """Follows what the Fleets of one tree refer to, and holds all of it together."""

    def __init__(self, loader: Loader, found: _Found, boundary: Path) -> None:
        self.loader, self.found, self.boundary = loader, found, boundary
        self.sets: dict[str, tuple[stagesets.Named, ...]] = {}
        self.templates: dict[render.Name, tuple[Manifest, ...]] = {}
        self.traces: dict[render.Name, workloads.Trace] = {}
        self.kwok_objects: dict[str, list[tuple[Manifest, Document]]] = {}
        self.own_stages: dict[tuple[str, int], Document] = {}
        """The Stages of an author's own that some Fleet names, by file and document."""

    def tree(self) -> render.Tree:
        """Return the tree, with only what can be used."""
        fleets = [fleet for fleet, _ in self.found.fleets.values()]
        for fleet, document in self.found.fleets.values():
            self.found.add(document, checks.check(fleet))
            self._stage_uses(fleet, document)
            self._kwok_files(fleet, document)
            self._pool_templates(fleet, document)
            self._waves(fleet, document)
        spec = self._controller()
        self._held_together(fleets)
        bad = _fleets_with_errors(self.found) | self.found.broken
        tree = render.Tree(
            tuple(fleet for fleet in sorted(fleets, key=lambda each: each.name) if fleet.name not in bad),
            spec,
            _Library(self.loader),
            {name: uses for name, uses in sorted(self.sets.items()) if name not in bad},
            self.templates,
            self.traces,
            {name: tuple(each for each, _ in found) for name, found in sorted(self.kwok_objects.items())},
        )
        self._played(tree)
        bad = _fleets_with_errors(self.found)
        return replace(tree, fleets=tuple(fleet for fleet in tree.fleets if fleet.name not in bad))

    def _controller(self) -> controller.KwokControllerSpec:
        for _, document in self.found.controllers[1:]:
            first = self.found.controllers[0][1]
            what = f"there is another KwokController, in {first.path}"
            self.found.add(document, [Finding(("metadata", "name"), what, "keep one of them", rule="duplicate-name")])
        return self._spec()

    def _spec(self) -> controller.KwokControllerSpec:
        return self.found.controllers[0][0].spec if self.found.controllers else controller.KwokControllerSpec()

    # what Fleets refer to

    def _stage_uses(self, fleet: model.Fleet, document: Document) -> None:
        uses: list[stagesets.Named] = []
        for index, use in enumerate(fleet.spec.stages):
            where: Where = ("spec", "stages", index)
            made = (
                self._named(use.name, document, where) if use.name else self._stages_of(use.file or "", document, where)
            )
            if made is not None:
                uses.append(made)
        self.sets[fleet.name] = tuple(uses)

    def _named(self, name: str, document: Document, where: Where) -> stagesets.Named | None:
        if name in self.found.stages:
            own = self.found.stages[name]
            stage: Any = own.value
            self.own_stages[own.path, own.index] = own
            self.found.used.setdefault(document.path, set()).add(own.path)
            return stagesets.Named(name, (stage,))
        known = library.stage_sets()
        if name in known:
            return stagesets.Named(name, from_library=True)
        what = f"there is no set of Stages and no Stage {name!r}"
        hint = problems.meant(name, [*known, *self.found.stages])
        self.found.add(document, [Finding(where, what, hint, rule="unknown-reference")])
        return None

    def _stages_of(self, name: str, document: Document, where: Where) -> stagesets.Named | None:
        file = self._referenced(name, document, (*where, "file"))
        if file is None:
            return None
        parsed, wrong = self.loader.file_documents(file)
        self.found.problems += wrong
        stages: list[Manifest] = []
        for each in parsed:
            if not isinstance(each.value, dict) or each.value.get("kind") != "Stage":
                continue
            if file.path not in {one.path for one in self.found.stages.values()} and not self._from_library(each.value):
                self.found.add(each, _linted(each.value))
            if tree_checks.has_name(each.value):
                stages.append(each.value)
                self.own_stages[each.path, each.index] = each
        if not stages and not wrong:
            what = f"{file.path} holds no Stage"
            self.found.add(document, [Finding((*where, "file"), what, "name a file with some", rule="no-stage")])
        return stagesets.Named(name, tuple(stages))

    def _from_library(self, stage: Manifest) -> bool:
        """Return whether a Stage is one of the library's, as it is there."""
        name = stagesets.set_of(stage)
        return name in library.stage_sets() and stage in self.loader.library_set(name)

    def _kwok_files(self, fleet: model.Fleet, document: Document) -> None:
        """Read the files of kwok's own objects that a Fleet names."""
        for index, use in enumerate(fleet.spec.kwok_resources):
            file = self._referenced(use.file, document, ("spec", "kwokResources", index, "file"))
            if file is None:
                continue
            parsed, wrong = self.loader.file_documents(file)
            self.found.problems += wrong
            for each in parsed:
                trouble = kwok_objects.check(each.value)
                self.found.add(each, trouble)
                if not trouble and isinstance(each.value, dict):
                    made = kwok_objects.owned(each.value, fleet.name)
                    self.kwok_objects.setdefault(fleet.name, []).append((made, each))

    def _pool_templates(self, fleet: model.Fleet, document: Document) -> None:
        for index, pool in enumerate(fleet.spec.node_pools):
            source = pool.template_from
            where: Where = ("spec", "nodePools", index, "templateFrom")
            if source is None:
                continue
            made = self._live(source, document, where) if source.nodes else self._from_file(source, document, where)
            self.templates[fleet.name, pool.name] = tuple(made)
            if not any(checks.node_template(pool.template, ())):
                self.found.add(document, checks.room(pool, made, ("spec", "nodePools", index, "podCIDR")))

    def _from_file(self, source: model.TemplateFrom, document: Document, where: Where) -> list[Manifest]:
        file = self._referenced(source.file or "", document, (*where, "file"))
        if file is None:
            return []
        parsed, wrong = self.loader.file_documents(file)
        self.found.problems += wrong
        given, trouble = tree_checks.node_templates([each.value for each in parsed])
        chosen = [
            node_templates.sanitised(node, saved=True) for node in node_templates.matching(given, source.match_labels)
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

    def _live(self, source: model.TemplateFrom, document: Document, where: Where) -> list[Manifest]:
        live = self.loader.live_nodes(source.context)
        selector = source.nodes
        if live is None or selector is None:
            return []
        real = [node for node in live if not node_templates.is_fake(node)]
        chosen = node_templates.matching(real, selector.match_labels, selector.names)
        if not chosen:
            what = f"none of the cluster's {len(real)} real nodes matches"
            self.found.add(
                document, [Finding((*where, "nodes"), what, "see kubectl get nodes --show-labels", rule="no-template")]
            )
        return [node_templates.sanitised(node) for node in chosen]

    def _waves(self, fleet: model.Fleet, document: Document) -> None:
        for index, wave in enumerate(fleet.spec.waves):
            where: Where = ("spec", "waves", index)
            trace = None
            if wave.arrivals is not None and wave.arrivals.trace is not None:
                place: Where = (*where, "arrivals", "trace", "file")
                file = self._referenced(wave.arrivals.trace.file, document, place)
                if file is not None:
                    trace, wrong = traces.read(file.path, file.text, wave.arrivals.trace.format)
                    self.found.problems += wrong
                if trace is not None:
                    self.traces[fleet.name, wave.name] = trace
            self.found.add(document, wave_checks.check(fleet, wave, where, trace))

    def _referenced(self, name: str, document: Document, where: Where) -> files.File | None:
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

    def _held_together(self, fleets: list[model.Fleet]) -> None:
        for name, finding in checks.overlapping_networks(sorted(fleets, key=lambda fleet: fleet.name)):
            self.found.add(self.found.fleets[name][1], [finding])
        for name, finding in tree_checks.together(fleets, self.sets):
            self.found.add(self.found.fleets[name][1], [finding])
        raw = [each for _, found in sorted(self.kwok_objects.items()) for each in found]
        for document, finding in kwok_objects.together(raw, uses=usage.declared(fleets)):
            self.found.add(document, [finding])
        if self.found.controllers:  # without one, it may be in a file that is not looked at
            for name, found in self.kwok_objects.items():
                own = [each for each, _ in found]
                self.found.add(self.found.fleets[name][1], kwok_objects.unreachable(own, self._spec()))
        if len(self.own_stages) > 1:
            self._stages_together(list(self.own_stages.values()))

    def _stages_together(self, own: list[Document]) -> None:
        from kwokfleet.core.stagelint import rules  # noqa: PLC0415  # slow to import

        stages = [((index,), document.value) for index, document in enumerate(own) if isinstance(document.value, dict)]
        for finding in rules.check_together(stages):
            document = own[int(finding.where[0])]
            problem = document.problem(replace(finding, where=finding.where[1:]))
            if not any((each.path, each.line) == (problem.path, problem.line) for each in self.found.problems):
                self.found.problems.append(problem)

    def _played(self, tree: render.Tree) -> None:
        """Hold the Stages that would be played against the workload and the nodes they would play it on."""
        for name, finding in tree_checks.played(tree):
            self.found.add(self.found.fleets[name][1], [finding])


def _stage(document: Document, value: Mapping[str, Any], found: _Found) -> None:
    found.add(document, _linted(value))
    if not tree_checks.has_name(value):
        return
    name = value["metadata"]["name"]
    if name in found.stages:
        what = f"there is another Stage {name!r}, in {found.stages[name].path}"
        found.add(document, [Finding(("metadata", "name"), what, "give one another name", rule="duplicate-name")])
    else:
        found.stages[name] = document


def _linted(stage: Mapping[str, Any]) -> list[Finding]:
    """Return what kwok would stumble over. Most trees have no Stage of their own, and need no linter."""
    from kwokfleet.core.stagelint import rules  # noqa: PLC0415  # slow to import

    return rules.check(stage)


def _said_once(found: list[Problem]) -> set[Problem]:
    """Return each Problem once: what is wrong as YAML already needs not be wrong as a value too."""
    odd = {(each.path, each.line, each.column) for each in found if each.rule.startswith("yaml-")}
    return {each for each in found if each.rule.startswith("yaml-") or (each.path, each.line, each.column) not in odd}


def _frozen(found: _Found) -> str:
    """Return why nothing may be done, if a file that says how kwok runs has errors: all nodes depend on it."""
    wrong = [each for each in problems.errors(found.problems) if each.path in found.controller_paths]
    return f"{wrong[0].path}:{wrong[0].line} says how kwok runs, and has errors" if wrong else ""


def _hides_documents(problem: Problem) -> bool:
    """Return whether a Problem leaves open which Fleets its file holds."""
    return problem.rule.startswith("yaml-") or problem.rule in {"unreadable", "not-utf-8", "file-too-large", "outside"}


def _fleets_with_errors(found: _Found) -> set[str]:
    """Return the Fleets in whose files, or in files they refer to, something is wrong: all or nothing."""
    bad = {problem.path for problem in problems.errors(found.problems)}
    return {
        name
        for name, (_, document) in found.fleets.items()
        if bad & {document.path, *found.used.get(document.path, ())}
    }


def _ignored(found: _Found) -> list[Problem]:
    """Return a warning for each document that is not ours and that nothing refers to."""
    return [
        document.problem(
            Finding(
                (),
                "is not a kwokfleet document, and nothing refers to it",
                "move it out of the tree",
                Severity.WARNING,
                "ignored",
            )
        )
        for document in found.foreign
        if not any(document.path in used for used in found.used.values())
    ]
