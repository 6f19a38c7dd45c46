"""Golden files: compared with texts, or written with `--update-golden`."""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True)
class GoldenFiles:
    """Compares or updates golden files."""

    update: bool

    def check(self, name: str, text: str) -> None:
        """Fail with a diff unless the file *name* contains exactly *text*."""
        file = FOLDER / name
        if self.update:
            file.write_text(text)
        assert file.exists(), f"{file} is missing: run make golden and review the file"
        assert text == file.read_text(), f"{name} differs: if intended, run make golden"
