"""Results of benchmarks, as tables and JSON."""

import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

OUTPUT = Path(__file__).parents[2] / "build" / "bench"
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class Result:
    """Samples of several contestants, measured in turn in one run."""

    title: str
    unit: str
    samples: Mapping[str, Sequence[float]]
    peers: tuple[str, ...]
    """Contestants that the ratios refer to."""
    goal: str
    """The goal in words."""


def measure_in_turn(rounds: int, contestants: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Measure each contestant once per round, so that load of the machine affects all."""
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name, measure in contestants.items():
            samples[name].append(measure())
            print_progress(f"round {number + 1} of {rounds}: {name} {samples[name][-1]:.2f}")
    return samples


def print_progress(text: str) -> None:
    """Print progress."""
    Console(stderr=True).print(text, highlight=False, soft_wrap=True)


def show(name: str, result: Result) -> None:
    """Print the table and write the JSON."""
    medians = {name: statistics.median(values) for name, values in result.samples.items()}
    table = Table(title=result.title, caption=result.goal)
    for column in ("", f"median {result.unit}", "lowest", "highest", *(f"ratio to {peer}" for peer in result.peers)):
        table.add_column(column, justify="left" if not column else "right")
    for contestant, values in result.samples.items():
        figures = (
            medians[contestant],
            min(values),
            max(values),
            *(medians[contestant] / medians[peer] for peer in result.peers),
        )
        table.add_row(contestant, *(f"{figure:.2f}" for figure in figures))
    Console().print(table)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    document = {
        "name": name,
        "title": result.title,
        "goal": result.goal,
        "unit": result.unit,
        "machine": {"cores": os.cpu_count(), "system": platform.platform()},
        "samples": {contestant: list(values) for contestant, values in result.samples.items()},
        "medians": medians,
        "ratios": {
            peer: {contestant: medians[contestant] / medians[peer] for contestant in medians} for peer in result.peers
        },
    }
    (OUTPUT / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")


def write_page() -> None:
    """Write the page with the latest result of every benchmark."""
    documents = [json.loads(path.read_text()) for path in sorted(OUTPUT.glob("*.json"))]
    text = [
        "# Benchmarks",
        "",
        "Written by `make bench`, from the last run of each; medians, lowest and highest of the rounds. Contestants",
        "of one table were measured in turn in one run on the same cluster. Trust the ratios: the times are those of",
        f"one small machine ({documents[0]['machine']['cores']} cores), shared with the control plane itself.",
        "",
    ]
    for document in documents:
        text += _section(document)
    PAGE.write_text("\n".join(text))


def _section(document: dict[str, Any]) -> list[str]:
    peers = list(document["ratios"])
    titles = ["", f"median {document['unit']}", "lowest", "highest", *(f"ratio to {peer}" for peer in peers)]
    rows = []
    for name, values in document["samples"].items():
        ratios = (document["ratios"][peer][name] for peer in peers)
        figures = [document["medians"][name], min(values), max(values), *ratios]
        rows.append(f"| {name} | {' | '.join(_figure(figure) for figure in figures)} |")
    head = [f"| {' | '.join(titles)} |", f"|---{'|--:' * (len(titles) - 1)}|"]
    return [f"## {document['title']}", "", f"Goal: {document['goal']}.", "", *head, *rows, ""]


def _figure(number: float) -> str:
    return f"{number:.3f}" if number < 0.1 else f"{number:.2f}"
