"""Commands that must reject their input before they start anything."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60


def run_rejected(folder: Path, *arguments: str) -> str:
    """Run a command that must reject its input, without a cluster; return its standard error."""
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
    assert not (folder / ".local").exists(), "nothing may be started"
    return done.stderr
