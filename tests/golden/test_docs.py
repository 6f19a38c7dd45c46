"""Pages and files that are made from the code, and must not lag behind it."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

from kwokfleet.api import decode
from tests.harness.golden_files import GoldenFiles

DOCS = Path(__file__).parents[2] / "docs"


def maker(name: str) -> ModuleType:
    """Return a program of docs/ that writes a page."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    current("fleet-reference.md", maker("reference").text(), golden_file)


def test_the_page_about_scaling_shows_what_was_measured(golden_file: GoldenFiles) -> None:
    """Its numbers are those of the last benchmark, and what follows from them."""
    current("scaling.md", maker("scaling").text(), golden_file)


def test_the_table_of_rights_is_the_manifests(golden_file: GoldenFiles) -> None:
    """Each rule of each role, with the reason that stands above it."""
    current("rights.md", maker("rights_table").page((DOCS / "rights.md").read_text()), golden_file)
