"""Files that Fleets refer to, for the file watcher."""

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
    """Return the files that a Fleet refers to."""
    (tmp_path / "fleets").mkdir(exist_ok=True)
    (tmp_path / "fleets" / "a.yaml").write_text(FLEET.format(name=name))
    return dict(loader.Loader().load(tmp_path / "fleets").references)


def test_a_referenced_file_is_returned_with_its_digest(tmp_path: Path) -> None:
    """The digest changes with the contents."""
    (tmp_path / "n.yaml").write_text(NODES)
    first = referred(tmp_path, "../n.yaml")
    (tmp_path / "n.yaml").write_text(NODES + "# more\n")
    second = referred(tmp_path, "../n.yaml")
    assert list(first) == list(second) == [str(tmp_path / "n.yaml")]
    assert all([*first.values(), *second.values()])
    assert first != second


def test_a_missing_referenced_file_is_returned(tmp_path: Path) -> None:
    """The Fleet becomes valid when it is created."""
    assert referred(tmp_path, "../n.yaml") == {str(tmp_path / "n.yaml"): ""}


def test_a_rejected_reference_is_not_returned(tmp_path: Path) -> None:
    """A Fleet must not make the daemon watch /etc."""
    for name in ("/etc/passwd", "../../../../../../../../etc/passwd", "a\\0b"):
        assert referred(tmp_path, name) == {}
