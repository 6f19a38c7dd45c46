"""Run the benchmarks named on the command line, or all."""

import importlib
import sys
from pathlib import Path

from tests.bench import table

FOLDER = Path(__file__).parent


def main(names: list[str]) -> None:
    """Run the benchmarks and show their results."""
    available = sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))
    if unknown := set(names) - set(available):
        sys.exit(f"error: no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(available)}")
    for name in names or available:
        results: table.Result | list[table.Result] = importlib.import_module(f"tests.bench.bench_{name}").run()
        for number, result in enumerate(results if isinstance(results, list) else [results]):
            table.show(f"{name}-{number}" if number else name, result)
    table.write_page()


if __name__ == "__main__":
    main(sys.argv[1:])
