"""Pages and files that are generated from the code are up to date."""

import json
from pathlib import Path

from kwokfleet.api import decode
from tests.harness import python_files
from tests.harness.golden_files import GoldenFiles

DOCS = Path(__file__).parents[2] / "docs"


def assert_current(name: str, text: str, golden_file: GoldenFiles) -> None:
    """Fail unless a file under docs/ contains exactly *text*."""
    if golden_file.update:
        (DOCS / name).write_text(text)
    assert (DOCS / name).read_text() == text, f"docs/{name} is not up to date: run make golden"


def test_the_schema_equals_the_model(golden_file: GoldenFiles) -> None:
    """Editors check files as kwokfleet does."""
    assert_current("fleet.schema.json", json.dumps(decode.json_schema(), indent=2) + "\n", golden_file)


def test_the_reference_lists_every_field(golden_file: GoldenFiles) -> None:
    """With the description of the model."""
    assert_current("fleet-reference.md", python_files.load(DOCS / "reference.py").text(), golden_file)


def test_the_scaling_page_shows_the_measurements(golden_file: GoldenFiles) -> None:
    """Its numbers are those of the last benchmark."""
    assert_current("scaling.md", python_files.load(DOCS / "scaling.py").text(), golden_file)


def test_the_table_of_rights_equals_the_manifests(golden_file: GoldenFiles) -> None:
    """Each rule of each role, with the reason in its comment."""
    assert_current(
        "rights.md", python_files.load(DOCS / "rights_table.py").page((DOCS / "rights.md").read_text()), golden_file
    )
