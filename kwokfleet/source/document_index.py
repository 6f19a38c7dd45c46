"""The documents of one tree, decoded and indexed by kind, with every Problem found so far."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kwokfleet.api import fleet as fleet_api
from kwokfleet.api import kwok_controller
from kwokfleet.documents import problems
from kwokfleet.documents.parser import Document
from kwokfleet.documents.problems import Finding, Problem, Severity
from kwokfleet.kube.objects import STAGE_API_VERSION
from kwokfleet.validate import tree_checks

Decoded = tuple[fleet_api.Fleet | kwok_controller.KwokController | None, list[Finding]]
"""The model of a document, None if it is invalid, and the findings."""

_UNREADABLE_RULES = {"unreadable", "not-utf-8", "file-too-large", "outside"}


@dataclass(slots=True)
class DocumentIndex:
    """Documents by kind, and Problems."""

    fleets: dict[str, tuple[fleet_api.Fleet, Document]] = field(default_factory=dict)
    controllers: list[tuple[kwok_controller.KwokController, Document]] = field(default_factory=list)
    stages: dict[str, Document] = field(default_factory=dict)
    foreign: list[Document] = field(default_factory=list)
    """Documents of other APIs; a Fleet may refer to their file."""
    used_files: dict[str, set[str]] = field(default_factory=dict)
    """For each file, the files that it refers to."""
    reference_digests: dict[str, str] = field(default_factory=dict)
    """Digests of referenced files; empty for a file that cannot be read."""
    problems: list[Problem] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    """Fleets that cannot be decoded, or that share a name."""
    controller_paths: set[str] = field(default_factory=set)
    """Files with a KwokController document, valid or not."""

    def report(self, document: Document, findings: Iterable[Finding]) -> None:
        """Add findings as Problems of a document."""
        self.problems += [document.problem(finding) for finding in findings]

    def add(self, document: Document, decode: Callable[[Document], Decoded]) -> None:
        """Add a document by its apiVersion and kind; *decode* is called for our own kinds only."""
        if isinstance(document.value, dict) and "$schema" in document.value and "kind" not in document.value:
            return  # the output of `kwokfleet schema`
        findings = tree_checks.check_document(document.value)
        if findings:
            self.report(document, findings)
            return
        value: Mapping[str, Any] = document.value  # type: ignore[assignment]  # a mapping: just checked
        if value.get("apiVersion") == fleet_api.API_VERSION:
            self._add_model(document, value, decode(document))
        elif value.get("apiVersion") == STAGE_API_VERSION and value.get("kind") == "Stage":
            self._add_stage(document, value)
        else:
            self.foreign.append(document)

    def _add_model(self, document: Document, value: Mapping[str, Any], decoded: Decoded) -> None:
        model, findings = decoded
        self.report(document, findings)
        if value["kind"] == "KwokController":
            self.controller_paths.add(document.path)
        if isinstance(model, kwok_controller.KwokController):
            self.controllers.append((model, document))
        elif model is None:
            metadata = value.get("metadata")
            name = metadata.get("name") if isinstance(metadata, Mapping) else None
            if value["kind"] == "Fleet" and isinstance(name, str):
                self.broken.add(name)
        elif model.name in self.fleets:
            self._report_duplicate(document, f"Fleet {model.name!r}", self.fleets[model.name][1])
            self.broken.add(model.name)
        else:
            self.fleets[model.name] = (model, document)

    def _add_stage(self, document: Document, value: Mapping[str, Any]) -> None:
        self.report(document, lint_stage(value))
        if not tree_checks.has_name(value):
            return
        name = value["metadata"]["name"]
        if name in self.stages:
            self._report_duplicate(document, f"Stage {name!r}", self.stages[name])
        else:
            self.stages[name] = document

    def _report_duplicate(self, document: Document, what: str, first: Document) -> None:
        message = f"{what} is already defined in {first.path}"
        self.report(document, [Finding(("metadata", "name"), message, "rename one of them", rule="duplicate-name")])

    @property
    def controller_spec(self) -> kwok_controller.KwokControllerSpec:
        """The spec of the first KwokController, or the defaults."""
        return self.controllers[0][0].spec if self.controllers else kwok_controller.KwokControllerSpec()

    def invalid_fleets(self) -> set[str]:
        """Return the Fleets with an error in their file or in a file they refer to."""
        paths = {problem.path for problem in problems.errors(self.problems)}
        return {
            name
            for name, (_, document) in self.fleets.items()
            if paths & {document.path, *self.used_files.get(document.path, ())}
        }

    def unreadable_files(self) -> set[str]:
        """Return the files whose Fleets are not known, because the file cannot be read or parsed."""
        return {
            problem.path
            for problem in problems.errors(self.problems)
            if problem.rule.startswith("yaml-") or problem.rule in _UNREADABLE_RULES
        }

    def report_unused(self) -> None:
        """Add a warning for each document of another API that no Fleet refers to."""
        used = {path for paths in self.used_files.values() for path in paths}
        message, hint = "is not a kwokfleet document, and no Fleet refers to it", "move it out of the tree"
        for document in self.foreign:
            if document.path not in used:
                self.report(document, [Finding((), message, hint, Severity.WARNING, "ignored")])

    def unique_problems(self) -> tuple[Problem, ...]:
        """Return the Problems in order. A YAML Problem hides others at the same place: they follow from it."""
        yaml = {problem for problem in self.problems if problem.rule.startswith("yaml-")}
        places = {(problem.path, problem.line, problem.column) for problem in yaml}
        others = {problem for problem in self.problems if (problem.path, problem.line, problem.column) not in places}
        return tuple(sorted(yaml | others))

    def frozen_reason(self) -> str:
        """Return why nothing may be changed: the KwokController's file has errors, and all nodes depend on it."""
        errors = [problem for problem in problems.errors(self.problems) if problem.path in self.controller_paths]
        return f"the KwokController cannot be used: error in {errors[0].path}:{errors[0].line}" if errors else ""


def lint_stage(stage: Mapping[str, Any]) -> list[Finding]:
    """Return the linter's findings. Most trees have no Stages, so the linter is imported here: it is slow to import."""
    from kwokfleet.stagelint import rules  # noqa: PLC0415  # slow to import

    return rules.check(stage)
