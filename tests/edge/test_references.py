"""Files that Fleets refer to: which they are, so that they can be watched."""

from pathlib import Path

from kwokfleet.source import loader

FLEET = """\
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {{name: a}}
spec:
  nodePools: [{{name: p, replicas: 1, templateFrom: {{file: "{name}"}}}}]
"""
NODES = "apiVersion: v1\nkind: Node\nmetadata: {name: n}\n"


def referred(tmp_path: Path, name: str) -> dict[str, str]:
    """Return what a Fleet in a folder of its own refers to."""
    (tmp_path / "fleets").mkdir(exist_ok=True)
    (tmp_path / "fleets" / "a.yaml").write_text(FLEET.format(name=name))
    return dict(loader.Loader().load(tmp_path / "fleets").references)


def test_a_file_beside_the_folder_is_told_with_its_digest(tmp_path: Path) -> None:
    """Which is of its contents: another one, if they change."""
    (tmp_path / "n.yaml").write_text(NODES)
    first = referred(tmp_path, "../n.yaml")
    (tmp_path / "n.yaml").write_text(NODES + "# more\n")
    second = referred(tmp_path, "../n.yaml")
    assert list(first) == list(second) == [str(tmp_path / "n.yaml")]
    assert all([*first.values(), *second.values()])
    assert first != second


def test_a_file_that_is_missing_is_told_too(tmp_path: Path) -> None:
    """It may come, and then the Fleet is right."""
    assert referred(tmp_path, "../n.yaml") == {str(tmp_path / "n.yaml"): ""}


def test_what_may_not_be_referred_to_is_not_told(tmp_path: Path) -> None:
    """Nobody makes us watch /etc."""
    for name in ("/etc/passwd", "../../../../../../../../etc/passwd", "a\\0b"):
        assert referred(tmp_path, name) == {}
