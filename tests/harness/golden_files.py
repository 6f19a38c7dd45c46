"""Texts that are compared with files, and written by `--update-golden`."""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True)
class GoldenFiles:
    """The comparison, or the writing."""

    update: bool

    def check(self, name: str, text: str) -> None:
        """Fail, with the usual diff, unless the file *name* holds exactly *text*."""
        file = FOLDER / name
        if self.update:
            file.write_text(text)
        assert file.exists(), f"{file} is missing: run make golden, and read what it wrote"
        assert text == file.read_text(), f"{name} differs: if that is meant, run make golden"
