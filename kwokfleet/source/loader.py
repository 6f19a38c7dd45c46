"""From a path to a validated Tree: the first step of validate, render, diff and the daemon.

1. `files` reads the path; `documents.parser` parses each file.
2. `document_index` decodes the documents into models.
3. `references` reads the files that Fleets refer to.
4. `tree` builds the Tree and checks it as a whole.

Errors become Problems; valid Fleets are loaded without the others. A Loader caches parsed files, so
reloading costs only what changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from kwokfleet.api import decode
from kwokfleet.api import fleet as fleet_api
from kwokfleet.documents import parser, problems
from kwokfleet.documents.parser import Document
from kwokfleet.documents.problems import Problem
from kwokfleet.render import desired
from kwokfleet.source import document_index, files, references, tree
from kwokfleet.source.references import LiveNodes


@dataclass(frozen=True, slots=True)
class Loaded:
    """The contents of a path."""

    tree: desired.Tree
    problems: tuple[Problem, ...]
    snapshot: files.FileSnapshot
    broken: frozenset[str] = frozenset()
    """Invalid Fleets: their objects are left unchanged."""
    unreadable: frozenset[str] = frozenset()
    """Files that may declare unknown Fleets."""
    frozen: str = ""
    """Why nothing may be changed: no file, or an invalid KwokController. Empty otherwise."""
    controller_known: bool = True
    """Whether all files that may hold the KwokController were read."""
    partial: bool = False
    """Whether the path is a single file: other Fleets are out of scope then."""
    references: Mapping[str, str] = field(default_factory=dict)
    """Digests of the files that Fleets refer to, to be watched; empty for a file that cannot be read."""

    @property
    def usable(self) -> bool:
        """Whether there are no errors; warnings are allowed."""
        return not problems.errors(self.problems)

    @property
    def whole(self) -> bool:
        """Whether every Fleet is known, so that a missing one was deleted."""
        return self.usable and not self.partial and not self.frozen


def empty_tree() -> Loaded:
    """Return the contents of an empty path."""
    return Loaded(desired.Tree(), (), files.FileSnapshot((), (), ""))


class Loader:
    """Loads trees and caches parsed files."""

    def __init__(self, live_nodes: LiveNodes | None = None) -> None:
        self._live_nodes = live_nodes
        self._parsed: dict[tuple[str, str], tuple[list[Document], list[Problem]]] = {}
        self._decoded: dict[tuple[str, str, int], document_index.Decoded] = {}

    def load(self, path: Path, *, stable: bool = False, pause_s: float = files.PAUSE_S) -> Loaded:
        """Load a file or folder; *stable*: wait until two readings, *pause_s* apart, agree."""
        snapshot = files.read_stable(path, pause_s=pause_s) if stable else files.read(path)
        loaded = self.load_snapshot(snapshot, files.boundary(path))
        no_files = "" if snapshot.files else f"no readable fleet file in {path}"
        return replace(loaded, partial=path.is_file(), frozen=loaded.frozen or no_files)

    def load_snapshot(self, snapshot: files.FileSnapshot, boundary: Path) -> Loaded:
        """Load files that were read already; references out of the folder *boundary* are rejected."""
        index = self._index(snapshot)
        resolved = references.resolve(index, boundary, self._live_nodes)
        built = tree.build(index, resolved)
        unreadable = index.unreadable_files()
        index.report_unused()
        return Loaded(
            built,
            index.unique_problems(),
            snapshot,
            broken=frozenset(index.broken | index.invalid_fleets()),
            unreadable=frozenset(unreadable),
            frozen=index.frozen_reason(),
            controller_known=bool(index.controllers) or not unreadable,
            references=dict(sorted(index.reference_digests.items())),
        )

    def _index(self, snapshot: files.FileSnapshot) -> document_index.DocumentIndex:
        index = document_index.DocumentIndex(problems=list(snapshot.problems))
        present = {(file.path, file.digest) for file in snapshot.files}
        self._parsed = {key: value for key, value in self._parsed.items() if key in present}
        self._decoded = {key: value for key, value in self._decoded.items() if key[:2] in present}
        for file in snapshot.files:
            if (file.path, file.digest) not in self._parsed:
                self._parsed[file.path, file.digest] = parser.parse(file.path, file.text)
            documents, file_problems = self._parsed[file.path, file.digest]
            index.problems += file_problems
            for document in documents:
                index.add(document, partial(self._decode, file.digest))
        return index

    def _decode(self, digest: str, document: Document) -> document_index.Decoded:
        key = (document.path, digest, document.index)
        if key not in self._decoded:
            value: Any = document.value
            self._decoded[key] = decode.to_model(fleet_api.KINDS[value["kind"]], value)
        return self._decoded[key]
