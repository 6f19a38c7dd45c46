"""HTML tables and sections. Escapes all texts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from kwokfleet.report import numbers


@dataclass(frozen=True, slots=True)
class Cell:
    """One field of a table, as text; *below*: a second, smaller line."""

    text: str
    style: str = ""
    below: str = ""

    def html(self, tag: str = "td") -> str:
        """Return the cell as HTML, with a style for missing data."""
        style = self.style or ("nodata" if self.text == numbers.NO_DATA else "")
        small = f"<small>{escape(self.below)}</small>" if self.below else ""
        return f"<{tag}{f' class={chr(34)}{style}{chr(34)}' if style else ''}>{escape(self.text)}{small}</{tag}>"


Row = Sequence[Cell | str]


def texts(*values: str) -> list[Cell]:
    """Return cells with text, aligned to the left."""
    return [Cell(value, "text") for value in values]


def table(head: Row, rows: Iterable[Row], style: str = "") -> str:
    """Return a table, empty without rows. A row with one cell is a group heading."""
    body_rows = "".join(_row(row, len(head)) for row in rows)
    if not body_rows:
        return ""
    body = f"<table><thead><tr>{_cells(head, 'th')}</tr></thead><tbody>{body_rows}</tbody></table>"
    return f'<div class="sheet{style and f" {style}"}">{body}</div>\n'


def _row(row: Row, width: int) -> str:
    if len(row) == 1:
        return f'<tr class="group"><th colspan="{width}">{escape(_cell(row[0]).text)}</th></tr>'
    return f"<tr>{_cell(row[0]).html('th')}{_cells(row[1:], 'td')}</tr>"


def _cells(row: Row, tag: str) -> str:
    return "".join(_cell(cell).html(tag) for cell in row)


def _cell(cell: Cell | str) -> Cell:
    return Cell(cell) if isinstance(cell, str) else cell


def notes(texts: Iterable[str]) -> str:
    """Return notes as a list; empty without notes."""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<ul class="note">{items}</ul>' if items else ""


def section(title: str, body: str) -> str:
    """Return a section with a title; empty without a body."""
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>\n" if body else ""


def details(title: str, body: str) -> str:
    """Return a collapsible section; empty without a body."""
    return f"<details><summary>{escape(title)}</summary>{body}</details>\n" if body else ""
