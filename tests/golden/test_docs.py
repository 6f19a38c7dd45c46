"""Pages and files that are made from the code, and must not lag behind it."""

import json
from pathlib import Path

from kwokfleet.api import decode
from tests.harness import python_files
from tests.harness.golden_files import GoldenFiles

DOCS = Path(__file__).parents[2] / "docs"


def current(name: str, text: str, golden_file: GoldenFiles) -> None:
    """Fail unless a file under docs/ holds exactly *text*."""
    if golden_file.update:
        (DOCS / name).write_text(text)
    assert (DOCS / name).read_text() == text, f"docs/{name} lags behind: run make golden"


def test_the_schema_is_the_model_s(golden_file: GoldenFiles) -> None:
    """Editors check files as kwokfleet does."""
    current("fleet.schema.json", json.dumps(decode.json_schema(), indent=2) + "\n", golden_file)


def test_the_reference_lists_every_field(golden_file: GoldenFiles) -> None:
    """Every field with its meaning, as the model has it."""
    current("fleet-reference.md", python_files.load(DOCS / "reference.py").text(), golden_file)


def test_the_page_about_scaling_shows_what_was_measured(golden_file: GoldenFiles) -> None:
    """Its numbers are those of the last benchmark, and what follows from them."""
    current("scaling.md", python_files.load(DOCS / "scaling.py").text(), golden_file)


def test_the_table_of_rights_is_the_manifests(golden_file: GoldenFiles) -> None:
    """Each rule of each role, with the reason that stands above it."""
    current(
        "rights.md", python_files.load(DOCS / "rights_table.py").page((DOCS / "rights.md").read_text()), golden_file
    )
