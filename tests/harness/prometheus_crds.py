"""The Prometheus operator's definitions, as it publishes them: our ServiceMonitor must be one to it, not to us."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from kwokfleet.embedded import toolchain

MODULE = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
INSIDE = Path("example", "prometheus-operator-crd")
KINDS = ("prometheusrules", "servicemonitors")
DOWNLOAD_S = 120


def definitions() -> list[Path]:
    """Return the files of the two definitions; a test that needs them is skipped where they cannot be had."""
    go = toolchain.on_path()
    if go is None:
        pytest.skip("needs a recent Go, to get the Prometheus operator's definitions")
    asked = [str(go.program), "mod", "download", "-json", MODULE]
    variables = {"GOFLAGS": "", "GOWORK": "off", "GOTOOLCHAIN": "local"}
    try:
        done = subprocess.run(
            asked,
            env=os.environ | variables,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{MODULE} was not there within {DOWNLOAD_S} s")
    if done.returncode != 0:
        pytest.skip(f"{MODULE} cannot be had: {(done.stdout + done.stderr)[-300:]}")
    folder = Path(json.loads(done.stdout)["Dir"]) / INSIDE
    return [folder / f"monitoring.coreos.com_{kind}.yaml" for kind in KINDS]
