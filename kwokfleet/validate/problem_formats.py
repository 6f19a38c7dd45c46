"""Output formats for Problems: JSON, GitHub workflow commands, SARIF 2.1.0."""

import dataclasses
import json
import urllib.parse
from collections.abc import Sequence
from typing import Any

from kwokfleet.documents.problems import Problem

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def to_json(problems: Sequence[Problem], summary: dict[str, Any]) -> str:
    """Return one JSON object: the summary, and the list `problems`."""
    return json.dumps({**summary, "problems": [dataclasses.asdict(problem) for problem in problems]}, indent=2)


def to_github(problems: Sequence[Problem]) -> str:
    """Return GitHub workflow commands: annotations at lines of a pull request."""
    return "\n".join(
        f"::{problem.severity.value} file={_escape_property(problem.path)},line={problem.line},col={problem.column},"
        f"title={_escape_property(problem.rule)}::{_escape_message(problem.message)}"
        for problem in problems
    )


def to_sarif(problems: Sequence[Problem], version: str) -> str:
    """Return a SARIF log for code scanning."""
    rules = sorted({problem.rule for problem in problems})
    driver = {
        "name": "kwokfleet",
        "version": version,
        "informationUri": "https://kwokfleet.dev",
        "rules": [{"id": rule, "shortDescription": {"text": rule.replace("-", " ")}} for rule in rules],
    }
    results = [_result(problem, rules.index(problem.rule)) for problem in problems]
    log = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    return json.dumps(log, indent=2)


def _result(problem: Problem, rule_index: int) -> dict[str, Any]:
    uri = urllib.parse.quote(problem.path, errors="surrogateescape")  # a relative path, percent-encoded
    region = {"startLine": max(1, problem.line), "startColumn": max(1, problem.column)}
    return {
        "ruleId": problem.rule,
        "ruleIndex": rule_index,
        "level": problem.severity.value,
        "message": {"text": problem.message},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}],
    }


def _escape_message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_message(text).replace(":", "%3A").replace(",", "%2C")
