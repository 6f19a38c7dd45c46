"""Fleet files on their way into a ConfigMap."""

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
    """Write a fleet file that refers to a Stage, and pack the folder."""
    for path, text in ((folder / "lab.yaml", FLEET.replace("STAGE", stage)), (folder / stage, STAGE)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    loaded = loader.Loader().load(folder)
    assert loaded.usable, loaded.problems
    return bundle.pack_files(folder, loaded)


def unpacked(made: FleetConfigMap, where: Path) -> Path:
    """Put files where a volume puts them, and return where the daemon begins."""
    for key, path in made.paths.items():
        (where / path).parent.mkdir(parents=True, exist_ok=True)
        (where / path).write_text(made.data[key])
    return where / made.start


@pytest.mark.parametrize("stage", ["slow.yaml", "parts/slow.yaml", "../parts/slow.yaml"])
def test_what_arrives_is_what_was_packed(tmp_path: Path, stage: str) -> None:
    """The Stage is found from where the fleet file lies, and the digest is the one that the daemon will tell."""
    made = packed(tmp_path / "fleets", stage)
    there = unpacked(made, tmp_path / "mounted")
    assert loader.Loader().load(there).usable
    assert files.read(there).digest == bundle.digest(made)


def test_one_file_is_packed_alone(tmp_path: Path) -> None:
    """Its neighbours stay at home."""
    packed(tmp_path, "slow.yaml")
    (tmp_path / "other.yaml").write_text("a: 1")
    alone = tmp_path / "lab.yaml"
    assert set(bundle.pack_files(alone, loader.Loader().load(alone)).data) == {"lab.yaml", "slow.yaml"}


def test_a_file_that_is_too_far_out_is_refused(tmp_path: Path) -> None:
    """In a checkout files may refer to anything in it; in a pod there is only the folder around them."""
    (tmp_path / ".git").mkdir()
    with pytest.raises(errors.InputError, match="outside the parent folder of fleets/"):
        packed(tmp_path / "deep" / "fleets", "../../parts/slow.yaml")
