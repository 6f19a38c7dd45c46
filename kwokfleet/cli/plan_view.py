"""Plans and their outcomes as text, grouped by fleet and pool, with colors on a terminal."""

from collections.abc import Iterable, Iterator, Sequence

import typer

from kwokfleet.cli import files, output
from kwokfleet.reconcile import guards, plan_formats
from kwokfleet.reconcile import outcomes as report
from kwokfleet.reconcile.changes import Plan, Withheld, WithheldCause
from kwokfleet.reconcile.outcomes import Outcome

MAX_LISTED = 10
"""Outcomes of one kind that are listed; the others are counted."""
_COLORS = {"+": typer.colors.GREEN, "-": typer.colors.RED, "~": typer.colors.YELLOW, "±": typer.colors.MAGENTA}


def lines(plan: Plan, *, details: bool) -> Iterator[str]:
    """Yield the lines of a plan."""
    last_fleet = None
    for group in report.groups(plan.changes):
        if group.fleet != last_fleet:
            yield output.styled(f"fleet {group.fleet}" if group.fleet else "shared by all fleets", bold=True)
            last_fleet = group.fleet
        yield f"  {_colored_signs(report.group_line(group))}"
    if details:
        for change in plan.changes:
            first, *rest = plan_formats.change_lines(change)
            yield _colored(first)
            yield from rest
    for held in plan.withheld:
        yield from withheld(held, details=details)


def withheld(held: Withheld, *, details: bool = False) -> Iterator[str]:
    """Yield the lines of withheld changes: the reason, and the next step."""
    count = files.count(len(held.changes), "change")
    prefix = f"fleet {held.fleet}: " if held.fleet else ""
    yield f"{output.styled('withheld', typer.colors.YELLOW)}: {prefix}{count}: {held.why}"
    next_step = guards.next_step(held, output.program())
    if next_step:
        yield f"    next: {next_step}"
    if details:
        for change in held.changes:
            yield from (f"    {line}" for line in plan_formats.change_lines(change))
    elif held.cause not in (WithheldCause.BROKEN, WithheldCause.FOLLOWS):
        yield from (f"    {_colored_signs(report.group_line(group))}" for group in report.groups(held.changes))


def outcomes(bad: Sequence[Outcome]) -> Iterator[str]:
    """Yield the lines of failed outcomes: at most `MAX_LISTED` of each kind."""
    kinds: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in bad:
        kinds.setdefault((outcome.result.value, outcome.change.action.value), []).append(outcome)
    for (result, action), failed in kinds.items():
        for outcome in failed[:MAX_LISTED]:
            object_name = plan_formats.object_name(outcome.change)
            yield f"{output.styled(result, typer.colors.RED)}: {action} {object_name}: {outcome.message}"
        if len(failed) > MAX_LISTED:
            yield f"{output.styled(result, typer.colors.RED)}: … and {len(failed) - MAX_LISTED:,} more of this kind"


def _colored_signs(line: str) -> str:
    if not output.use_color():
        return line
    title, _, rest = line.partition(": ")
    return f"{title}: " + ", ".join(_colored(part) if part[1:2] != "0" else part for part in rest.split(", "))


def _colored(text: str) -> str:
    return output.styled(text, _COLORS.get(text[:1]))


def echo(texts: Iterable[str]) -> None:
    """Print lines in one write: one write per line would take longer than producing them."""
    text = "\n".join(texts)
    if text:
        typer.echo(text)
