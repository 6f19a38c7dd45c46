"""Runs all tests in two parallel processes: integration tests, and all others.

Integration tests mostly wait for kwok. The output of the other tests is shown at the end. `pytest` alone runs the same
tests one after the other.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SHARED = HERE / "integration"
OTHERS = [HERE / name for name in ("unit", "golden", "edge", "e2e")]
STOP_S = 60


def main(arguments: list[str]) -> int:
    """Run all tests; return 0 if all passed."""
    pytest = [sys.executable, "-m", "pytest", *arguments]
    with tempfile.TemporaryFile() as said, subprocess.Popen([*pytest, *OTHERS], stdout=said, stderr=said) as others:
        try:
            code = subprocess.call([*pytest, SHARED])
            code = others.wait() or code
        finally:
            if others.poll() is None:
                others.terminate()
                others.wait(STOP_S)
            said.seek(0)
            sys.stdout.buffer.write(said.read())
            sys.stdout.flush()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
