"""Plans and what became of them, for people: grouped by fleet and pool, in colour where there is a terminal."""

import sys
from collections.abc import Iterable, Iterator, Sequence

import typer

from kwokfleet.cli import files, output
from kwokfleet.reconcile import guards, plan_formats
from kwokfleet.reconcile import outcomes as report
from kwokfleet.reconcile.changes import Plan, Withheld, WithheldCause
from kwokfleet.reconcile.outcomes import Outcome

MOST_NAMED = 10
"""Outcomes that are told one by one; with more of a kind, the rest is a number."""
_COLOURS = {"+": typer.colors.GREEN, "-": typer.colors.RED, "~": typer.colors.YELLOW, "±": typer.colors.MAGENTA}


def use_color() -> bool:
    """Return whether standard output is a terminal that may be coloured."""
    return sys.stdout.isatty() and output.read_settings().color


def lines(made: Plan, *, details: bool) -> Iterator[str]:
    """Yield a plan, line by line."""
    last = None
    for group in report.groups(made.changes):
        if group.fleet != last:
            yield _bold(f"fleet {group.fleet}" if group.fleet else "shared by all fleets")
            last = group.fleet
        yield f"  {_signs(report.group_line(group))}"
    if details:
        for change in made.changes:
            first, *rest = plan_formats.change_lines(change)
            yield _painted(first)
            yield from rest
    for each in made.withheld:
        yield from withheld(each, details=details)


def withheld(each: Withheld, *, details: bool = False) -> Iterator[str]:
    """Yield what is withheld, why, and what would release it."""
    what = files.count(len(each.changes), "change")
    place = f"fleet {each.fleet}: " if each.fleet else ""
    yield f"{_styled('withheld', typer.colors.YELLOW)}: {place}{what}: {each.why}"
    release = guards.next_step(each, output.program())
    if release:
        yield f"    next: {release}"
    if details:
        for change in each.changes:
            yield from (f"    {line}" for line in plan_formats.change_lines(change))
    elif each.cause not in (WithheldCause.BROKEN, WithheldCause.FOLLOWS):  # those would not be what is meant
        yield from (f"    {_signs(report.group_line(group))}" for group in report.groups(each.changes))


def outcomes(bad: Sequence[Outcome]) -> Iterator[str]:
    """Yield what did not go well: a few of each kind by name."""
    kinds: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in bad:
        kinds.setdefault((outcome.result.value, outcome.change.action.value), []).append(outcome)
    for (result, action), mine in kinds.items():
        for outcome in mine[:MOST_NAMED]:
            object_name = plan_formats.object_name(outcome.change)
            yield f"{_styled(result, typer.colors.RED)}: {action} {object_name}: {outcome.message}"
        if len(mine) > MOST_NAMED:
            yield f"{_styled(result, typer.colors.RED)}: … and {len(mine) - MOST_NAMED:,} more like these"


def _signs(line: str) -> str:
    if not use_color():
        return line
    title, _, rest = line.partition(": ")
    return f"{title}: " + ", ".join(_painted(part) if part[1:2] != "0" else part for part in rest.split(", "))


def _painted(text: str) -> str:
    colour = _COLOURS.get(text[:1])
    return _styled(text, colour) if colour else text


def _bold(text: str) -> str:
    return typer.style(text, bold=True) if use_color() else text


def _styled(text: str, colour: str) -> str:
    return typer.style(text, fg=colour) if use_color() else text


def echo(texts: Iterable[str]) -> None:
    """Print lines at once: a write for each of many would take longer than making them."""
    text = "\n".join(texts)
    if text:
        typer.echo(text)
