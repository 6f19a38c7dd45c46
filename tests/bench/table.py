"""What a benchmark returns, as a table for people and JSON for programs."""

import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

OUTPUT = Path(__file__).parents[2] / "build" / "bench"


@dataclass(frozen=True)
class Result:
    """Samples of several contestants, measured in turn in one run."""

    title: str
    unit: str
    samples: Mapping[str, Sequence[float]]
    peers: tuple[str, ...]
    """The contestants that ratios are taken to."""
    goal: str
    """What was asked for, in words."""


def in_turn(rounds: int, contestants: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Measure each contestant once per round, so that a slow minute of the machine hits all alike."""
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name, measure in contestants.items():
            samples[name].append(measure())
            Console(stderr=True).print(f"round {number + 1} of {rounds}: {name} {samples[name][-1]:.2f}")
    return samples


def show(name: str, result: Result) -> None:
    """Print the table and write the JSON."""
    medians = {each: statistics.median(values) for each, values in result.samples.items()}
    table = Table(title=result.title, caption=result.goal)
    for column in ("", f"median {result.unit}", "lowest", "highest", *(f"ratio to {peer}" for peer in result.peers)):
        table.add_column(column, justify="left" if not column else "right")
    for each, values in result.samples.items():
        figures = (medians[each], min(values), max(values), *(medians[each] / medians[peer] for peer in result.peers))
        table.add_row(each, *(f"{figure:.2f}" for figure in figures))
    Console().print(table)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    document = {
        "name": name,
        "title": result.title,
        "goal": result.goal,
        "unit": result.unit,
        "machine": {"cores": os.cpu_count(), "system": platform.platform()},
        "samples": {each: list(values) for each, values in result.samples.items()},
        "medians": medians,
        "ratios": {peer: {each: medians[each] / medians[peer] for each in medians} for peer in result.peers},
    }
    (OUTPUT / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")
