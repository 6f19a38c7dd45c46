"""Fleet files in a ConfigMap."""

from pathlib import Path

import pytest

from kwokfleet import errors
from kwokfleet.install import bundle
from kwokfleet.install.fleet_configmap import FleetConfigMap
from kwokfleet.source import files, loader

FLEET = """
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {name: lab}
spec:
  nodePools: [{name: pool, replicas: 1}]
  stages: [pod-general, {file: STAGE}]
"""
STAGE = """
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: slow}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector: {matchLabels: {slow: "true"}}
  steps: [{delete: true}]
"""


def packed(folder: Path, stage: str) -> FleetConfigMap:
    """Write a fleet file that refers to a Stage; pack the folder."""
    for path, text in ((folder / "lab.yaml", FLEET.replace("STAGE", stage)), (folder / stage, STAGE)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    loaded = loader.Loader().load(folder)
    assert loaded.usable, loaded.problems
    return bundle.pack_files(folder, loaded)


def unpacked(config_map: FleetConfigMap, where: Path) -> Path:
    """Write files as a volume does; return the daemon's start path."""
    for key, path in config_map.paths.items():
        (where / path).parent.mkdir(parents=True, exist_ok=True)
        (where / path).write_text(config_map.data[key])
    return where / config_map.start


@pytest.mark.parametrize("stage", ["slow.yaml", "parts/slow.yaml", "../parts/slow.yaml"])
def test_unpacked_files_are_equal_to_the_packed_files(tmp_path: Path, stage: str) -> None:
    """The reference to the Stage resolves, and the digest equals the daemon's."""
    config_map = packed(tmp_path / "fleets", stage)
    mounted = unpacked(config_map, tmp_path / "mounted")
    assert loader.Loader().load(mounted).usable
    assert files.read(mounted).digest == bundle.digest(config_map)


def test_one_file_is_packed_alone(tmp_path: Path) -> None:
    """Other files in its folder are not packed."""
    packed(tmp_path, "slow.yaml")
    (tmp_path / "other.yaml").write_text("a: 1")
    alone = tmp_path / "lab.yaml"
    assert set(bundle.pack_files(alone, loader.Loader().load(alone)).data) == {"lab.yaml", "slow.yaml"}


def test_a_reference_outside_the_folder_is_rejected(tmp_path: Path) -> None:
    """It is valid in a checkout, but a pod has only the folder."""
    (tmp_path / ".git").mkdir()
    with pytest.raises(errors.InputError, match="outside the parent folder of fleets/"):
        packed(tmp_path / "deep" / "fleets", "../../parts/slow.yaml")
