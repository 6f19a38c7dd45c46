"""The published JSON schema accepts the examples and rejects errors."""

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.harness.json_schema import schema_path, violations

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "fleets").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_schema_accepts_the_examples(path: Path) -> None:
    """The first line of an example names an existing schema."""
    schema = json.loads(schema_path(path).read_text())
    for document in YAML(typ="safe").load_all(path):
        assert violations(document, schema, schema) == []


@pytest.mark.parametrize(
    ("part", "where"),
    [
        ({"nodePools": [{"name": "a", "replicas": -1}]}, "replicas"),
        ({"nodePools": [{"name": "a", "replicas": 1, "label": {}}]}, "label"),
        ({"waves": [{"name": "a", "template": {}, "start": {"cron": 5}}]}, "start"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_the_schema_rejects_errors(part: dict[str, Any], where: str) -> None:
    """It rejects the same values as `validate`."""
    schema = json.loads((ROOT / "docs" / "fleet.schema.json").read_text())
    document = {"apiVersion": "kwokfleet.dev/v1alpha1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": part}
    assert where in " ".join(violations(document, schema, schema))
