"""Commands that must refuse their input before anything is started."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60


def run_rejected(folder: Path, *arguments: str) -> str:
    """Run a command that must refuse its input, where no cluster is known; return what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "kwokfleet", *arguments],
        cwd=folder,
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "next:" in done.stderr
    assert not (folder / ".local").exists(), "nothing is to be started"
    return done.stderr
