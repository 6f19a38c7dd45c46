"""The files beside a running kwok: followed for as long as they are right, and what is wrong in them said once."""

from pathlib import Path
from typing import TYPE_CHECKING

from kwokfleet import errors
from kwokfleet.cli import files, output, render

if TYPE_CHECKING:
    from kwokfleet.source import loader


class Files:
    """What files say, or what they said before something became wrong in them."""

    def __init__(self, path: Path) -> None:
        from kwokfleet.source import loader

        self._path = path
        self._loader = loader.Loader(render.live_nodes(None))
        self._complaint: tuple[str, ...] = ()
        self.last: loader.Loaded = self._loader.load(path)
        files.refuse_if_wrong(self.last)

    def look(self) -> "loader.Loaded":
        """Return what they say now, the last good if that is wrong; say so, once."""
        complaint, loaded = self._read()
        if complaint and complaint != self._complaint:
            for line in complaint:
                output.print_line(line)
            output.print_line("kwok goes on as the files said before")
        if self._complaint and not complaint:
            output.print_line("the files are right again")
        self._complaint = complaint
        if loaded is not None and not complaint:
            self.last = loaded
        return self.last

    def _read(self) -> "tuple[tuple[str, ...], loader.Loaded | None]":
        """Return what is wrong, and what the files say."""
        try:
            loaded = self._loader.load(self._path)
        except errors.KwokfleetError as error:  # moved away, for the moment or for good
            return (f"error: {error}",), None
        if not loaded.usable:
            return tuple(files.problem_line(each) for each in loaded.problems), None
        return ((f"error: {loaded.frozen}",), None) if loaded.frozen else ((), loaded)
