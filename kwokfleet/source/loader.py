"""From a path to a validated Tree: what validate, render, diff and the daemon begin with.

Read the files, parse them, make models of the documents, follow what they refer to, hold all of it
together. Everything wrong on the way is gathered as Problems; what is right goes on without it. A
Loader remembers what it made of each file, so loading again costs what changed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from kwokfleet.api import decode, kwok_controller
from kwokfleet.api import fleet as fleet_api
from kwokfleet.documents import parser, problems
from kwokfleet.documents.parser import Document
from kwokfleet.documents.problems import Finding, Problem, Severity
from kwokfleet.kube.objects import STAGE_API_VERSION, Manifest
from kwokfleet.render import desired
from kwokfleet.source import files, library
from kwokfleet.source import references as assembly
from kwokfleet.validate import tree_checks

LiveNodes = Callable[[str | None], list[Manifest]]
"""Returns the nodes of the cluster that a kubeconfig context names."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a path holds."""

    tree: desired.Tree
    problems: tuple[Problem, ...]
    snapshot: files.FileSnapshot
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

    @property
    def whole(self) -> bool:
        """Whether it speaks of all there is, so that what it does not speak of has vanished."""
        return self.usable and not self.partial and not self.frozen


def empty_tree() -> Loaded:
    """Return what no file at all would say."""
    return Loaded(desired.Tree(), (), files.FileSnapshot(Path(), (), (), ""))


class Loader:
    """Loads trees, one after the other."""

    def __init__(self, live_nodes: LiveNodes | None = None) -> None:
        self._live_nodes = live_nodes
        self._parsed: dict[tuple[str, str], tuple[list[Document], list[Problem]]] = {}
        self._models: dict[tuple[str, str, int], tuple[Any, list[Finding]]] = {}
        self._sets: dict[str, tuple[Manifest, ...]] = {}

    def load(self, path: Path, *, stable: bool = False, pause_s: float = files.PAUSE_S) -> Loaded:
        """Load a file or folder as it is now; *stable*: once two readings, *pause_s* apart, agree."""
        read = files.read_stable(path, pause_s=pause_s) if stable else files.read(path)
        loaded = self.loaded(read, files.boundary(path))
        empty = "" if loaded.snapshot.files else f"there is no fleet file in {path} that can be read"
        return replace(loaded, partial=path.is_file(), frozen=loaded.frozen or empty)

    def loaded(self, snapshot: files.FileSnapshot, boundary: Path) -> Loaded:
        """Return what a snapshot holds."""
        found = assembly.DocumentIndex(problems=list(snapshot.problems))
        for file in snapshot.files:
            parsed, wrong = self._parse(file.path, file.text, file.digest)
            found.problems += wrong
            for document in parsed:
                self._sort(document, file.digest, found)
        self._forget(snapshot)
        tree = assembly.ReferenceResolver(self, found, boundary).tree()
        unreadable = {problem.path for problem in problems.errors(found.problems) if _hides_documents(problem)}
        found.problems += _ignored(found)
        broken = found.broken | assembly.fleets_with_errors(found)
        said = tuple(sorted(_said_once(found.problems)))
        known = bool(found.controllers) or not unreadable
        frozen, references = _frozen(found), dict(sorted(found.references.items()))
        return Loaded(
            tree, said, snapshot, frozenset(broken), frozenset(unreadable), frozen, known, references=references
        )

    def _parse(self, path: str, text: str, digest: str) -> tuple[list[Document], list[Problem]]:
        known = self._parsed.get((path, digest))
        if known is None:
            known = self._parsed[path, digest] = parser.parse(path, text)
        return known

    def _forget(self, snapshot: files.FileSnapshot) -> None:
        """Drop what was made of files that are no longer there."""
        present = {(file.path, file.digest) for file in snapshot.files}
        self._parsed = {key: value for key, value in self._parsed.items() if key in present}
        self._models = {key: value for key, value in self._models.items() if key[:2] in present}

    def _sort(self, document: Document, digest: str, found: assembly.DocumentIndex) -> None:
        """Put a document where it belongs, by its apiVersion and kind."""
        if isinstance(document.value, dict) and "$schema" in document.value and "kind" not in document.value:
            return  # what `kwokfleet schema` printed
        wrong = tree_checks.check_document(document.value)
        if wrong:
            found.add(document, wrong)
            return
        value: Mapping[str, Any] = document.value  # type: ignore[assignment]  # a mapping: just checked
        if value.get("apiVersion") == fleet_api.API_VERSION:
            self._model(document, digest, value, found)
        elif value.get("apiVersion") == STAGE_API_VERSION and value.get("kind") == "Stage":
            _stage(document, value, found)
        else:
            found.foreign.append(document)

    def _model(self, document: Document, digest: str, value: Mapping[str, Any], found: assembly.DocumentIndex) -> None:
        key = (document.path, digest, document.index)
        if value["kind"] == "KwokController":
            found.controller_paths.add(document.path)
        if key not in self._models:
            self._models[key] = decode.to_model(fleet_api.KINDS[value["kind"]], value)
        made, wrong = self._models[key]
        found.add(document, wrong)
        if made is None:
            name = (value.get("metadata") or {}).get("name") if isinstance(value.get("metadata"), Mapping) else None
            if value["kind"] == "Fleet" and isinstance(name, str):
                found.broken.add(name)
        elif isinstance(made, kwok_controller.KwokController):
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
            parsed, _ = parser.parse(f"{name}.yaml", library.stage_set(name))
            self._sets[name] = tuple(document.value for document in parsed if isinstance(document.value, dict))
        return self._sets[name]

    def file_documents(self, file: files.File) -> tuple[list[Document], list[Problem]]:
        """Return the documents of a file that another one refers to."""
        if len(file.text) <= files.MAX_FILE_BYTES:
            return parser.parse(file.path, file.text)
        try:
            return [Document(file.path, orjson.loads(file.text))], []
        except orjson.JSONDecodeError as error:
            what = f"has more than {files.MAX_FILE_BYTES >> 20} MiB and is not JSON ({error.msg})"
            hint = "save it as JSON: kubectl get nodes -o json"
            return [], [Problem(file.path, error.lineno, error.colno, "", what, hint, rule="file-too-large")]

    def live_nodes(self, context: str | None) -> list[Manifest] | None:
        """Return the live nodes of a cluster, None if there is no way to ask."""
        return self._live_nodes(context) if self._live_nodes else None


def _stage(document: Document, value: Mapping[str, Any], found: assembly.DocumentIndex) -> None:
    found.add(document, assembly.lint_stage(value))
    if not tree_checks.has_name(value):
        return
    name = value["metadata"]["name"]
    if name in found.stages:
        what = f"there is another Stage {name!r}, in {found.stages[name].path}"
        found.add(document, [Finding(("metadata", "name"), what, "give one another name", rule="duplicate-name")])
    else:
        found.stages[name] = document


def _said_once(found: list[Problem]) -> set[Problem]:
    """Return each Problem once: what is wrong as YAML already needs not be wrong as a value too."""
    odd = {(each.path, each.line, each.column) for each in found if each.rule.startswith("yaml-")}
    return {each for each in found if each.rule.startswith("yaml-") or (each.path, each.line, each.column) not in odd}


def _frozen(found: assembly.DocumentIndex) -> str:
    """Return why nothing may be done, if a file that says how kwok runs has errors: all nodes depend on it."""
    wrong = [each for each in problems.errors(found.problems) if each.path in found.controller_paths]
    return f"{wrong[0].path}:{wrong[0].line} says how kwok runs, and has errors" if wrong else ""


def _hides_documents(problem: Problem) -> bool:
    """Return whether a Problem leaves open which Fleets its file holds."""
    return problem.rule.startswith("yaml-") or problem.rule in {"unreadable", "not-utf-8", "file-too-large", "outside"}


def _ignored(found: assembly.DocumentIndex) -> list[Problem]:
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
