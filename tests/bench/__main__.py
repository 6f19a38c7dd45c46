"""Run the benchmarks named on the command line, or all."""

import importlib
import sys
from pathlib import Path

from tests.bench import table

FOLDER = Path(__file__).parent


def main(names: list[str]) -> None:
    """Run each benchmark's `run()` and show what it returns."""
    known = sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))
    if unknown := set(names) - set(known):
        sys.exit(f"error: no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    for name in names or known:
        made: table.Result | list[table.Result] = importlib.import_module(f"tests.bench.bench_{name}").run()
        for number, result in enumerate(made if isinstance(made, list) else [made]):
            table.show(f"{name}-{number}" if number else name, result)
    table.write_page()


if __name__ == "__main__":
    main(sys.argv[1:])
