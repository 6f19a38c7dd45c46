"""helm, promtool and the Prometheus operator's CRDs, for tests alone: from the pinned Go module in this folder.

`python -m tests.tools` gets missing ones into the cache, beside the control plane. `make test` runs it first.
"""

import re
from pathlib import Path

from kwokfleet import settings
from kwokfleet.embedded import binaries, crds, progress, versions

MODULE = Path(__file__).parent
GO_MOD = (MODULE / "go.mod").read_text()


def _version(module: str) -> str:
    match = re.search(rf"^(?:\t|require ){re.escape(module)} (v\S+)", GO_MOD, re.MULTILINE)
    assert match, f"{module} is not in {MODULE / 'go.mod'}"
    return match[1]


TOOLS = (
    versions.Binary(
        name="helm",
        project="helm",
        version=_version("helm.sh/helm/v3"),
        go_package="helm.sh/helm/v3/cmd/helm",
        usual_packages=900,
        usual_build_s=160,
        module=MODULE,
    ),
    versions.Binary(
        name="promtool",
        project="prometheus",
        version=_version("github.com/prometheus/prometheus"),
        go_package="github.com/prometheus/prometheus/cmd/promtool",
        usual_packages=500,
        usual_build_s=80,
        build_tags="remove_all_sd",  # no service discovery: the cloud SDKs take longer to compile than all else
        module=MODULE,
    ),
)
PROMETHEUS_OPERATOR = crds.CrdSource(
    project="prometheus-operator",
    module="github.com/prometheus-operator/prometheus-operator",
    version=_version("github.com/prometheus-operator/prometheus-operator"),
    folder=Path("example", "prometheus-operator-crd"),
    go_mod=MODULE,
)


def present(config: settings.Settings) -> dict[str, Path]:
    """Return the tools that exist, by name: those in KWOKFLEET_BIN_DIR first, then those in the cache."""
    folders = [folder for folder in (_cache(config), config.bin_dir) if folder]
    return {tool.name: path for folder in folders for tool in TOOLS if binaries.is_program(path := folder / tool.name)}


def ensure(config: settings.Settings, report: progress.ProgressReporter) -> dict[str, Path]:
    """Return every tool by name; build missing ones."""
    if len(present(config)) < len(TOOLS):
        cache = _cache(config)
        with binaries.exclusive_cache(cache, report):
            if missing := [tool for tool in TOOLS if tool.name not in present(config)]:
                binaries.build_all(missing, cache, cache.parent, report)
    return present(config)


def _cache(config: settings.Settings) -> Path:
    key = "_".join(f"{tool.name}-{tool.version}" for tool in TOOLS)
    return config.cache_dir / "test-tools" / f"{key}_{'-'.join(binaries.this_platform())}"
