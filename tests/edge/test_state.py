import json
from dataclasses import replace
from pathlib import Path

import pytest

from kwokfleet import errors
from kwokfleet.embedded import state, versions

CERTIFICATES = Path(__file__).with_name("certificates")
"""Made for these tests; they open nothing."""
PORTS = state.Ports(kube_apiserver=1, kube_controller_manager=2, kube_scheduler=3, etcd=4, etcd_peer=5, kwok=6)
BINARIES = tuple((binary.name, f"/bin/{binary.name}") for binary in versions.BINARIES)
SPEC = state.Spec(port=1, extra_args=(("etcd", "a", "b"), ("kube-scheduler", "v", "4")), binaries=BINARIES)


def make_cluster_folder(tmp_path: Path, name: str = "demo", *, finished: bool = True) -> state.ClusterFolder:
    """Create the folder of a finished cluster."""
    where = state.cluster_folder(tmp_path, name)
    state.write_record(where, state.ClusterRecord(finished=finished, spec=SPEC, ports=PORTS))
    for path in (where.saved_config, where.kubeconfig, *map(where.pki, ("ca.crt", "admin.crt", "admin.key"))):
        path.parent.mkdir(exist_ok=True)
        path.write_text((CERTIFICATES / path.name).read_text() if path.parent.name == "pki" else "something")
    return where


def test_the_marker_is_read_back_equal(tmp_path: Path) -> None:
    """Options of two commands are compared by it."""
    assert state.read_record(make_cluster_folder(tmp_path)) == state.ClusterRecord(
        finished=True, spec=SPEC, ports=PORTS
    )


def test_a_finished_cluster_is_complete(tmp_path: Path) -> None:
    """With all its files."""
    assert state.folder_state(make_cluster_folder(tmp_path)) == (state.FolderState.COMPLETE, "")


@pytest.mark.parametrize("empty", [True, False])
def test_no_folder_or_an_empty_one_is_absent(tmp_path: Path, empty: bool) -> None:  # noqa: FBT001 - a case
    """The user may have created the folder."""
    where = state.cluster_folder(tmp_path, "demo")
    if empty:
        where.root.mkdir(parents=True)
    assert state.folder_state(where)[0] is state.FolderState.ABSENT


def test_a_folder_without_our_marker_is_foreign(tmp_path: Path) -> None:
    """For example a cluster of kwokctl."""
    where = make_cluster_folder(tmp_path)
    where.marker.unlink()
    assert state.folder_state(where)[0] is state.FolderState.FOREIGN


def test_an_unfinished_cluster_is_incomplete(tmp_path: Path) -> None:
    """Its `up` was killed."""
    assert state.folder_state(make_cluster_folder(tmp_path, finished=False))[0] is state.FolderState.INCOMPLETE


@pytest.mark.parametrize("text", ["", "{", "[]", '{"finished": true}'])
def test_an_unreadable_marker_is_damage(tmp_path: Path, text: str) -> None:
    """Truncated, not JSON, or with other fields."""
    where = make_cluster_folder(tmp_path)
    where.marker.write_text(text)
    standing, why = state.folder_state(where)
    assert standing is state.FolderState.DAMAGED
    assert "kwokfleet.json cannot be read" in why


def test_unusable_certificates_are_damage(tmp_path: Path) -> None:
    """The file exists but is not valid."""
    where = make_cluster_folder(tmp_path)
    where.pki("ca.crt").write_text("not a certificate")
    standing, why = state.folder_state(where)
    assert standing is state.FolderState.DAMAGED
    assert "its certificates are invalid" in why


def test_a_foreign_marker_is_damage(tmp_path: Path) -> None:
    """Only the marker of kwokfleet is trusted."""
    where = make_cluster_folder(tmp_path)
    where.marker.write_text(where.marker.read_text().replace('"kwokfleet"', '"another"'))
    assert state.folder_state(where)[0] is state.FolderState.DAMAGED


def test_missing_files_are_damage_and_named(tmp_path: Path) -> None:
    """A kubeconfig without its certificate is unusable."""
    where = make_cluster_folder(tmp_path)
    where.pki("admin.key").unlink()
    where.kubeconfig.write_text("")
    assert state.folder_state(where) == (state.FolderState.DAMAGED, "missing or empty: kubeconfig.yaml, pki/admin.key")


@pytest.mark.parametrize("name", ["", "Demo", "-demo", "a/b", "../up", "a" * 41, "a b", "demo\n"])
def test_names_that_could_leave_the_folder_are_rejected(tmp_path: Path, name: str) -> None:
    """A name is used as a folder, a context and a flag."""
    with pytest.raises(errors.InputError):
        state.cluster_folder(tmp_path, name)


def test_ports_of_other_clusters_are_reserved_despite_a_damaged_one(tmp_path: Path) -> None:
    """A stopped cluster keeps its ports."""
    make_cluster_folder(tmp_path, "other")
    make_cluster_folder(tmp_path, "broken").marker.write_text(json.dumps({"ports": None}))
    assert state.ports_of_others(state.cluster_folder(tmp_path, "demo")) == {1, 2, 3, 4, 5, 6}
    assert state.cluster_names(tmp_path) == ("broken", "other")


def test_differences_between_options_are_described() -> None:
    """Each has the old and the new value; equal and unset options have none."""
    own = (("etcd", "/own/etcd"), *BINARIES[1:])
    other = state.Spec(port=2, scheduler_config="/s.yaml", extra_args=(("etcd", "a", "c"),), binaries=own)
    assert list(state.differences(SPEC, SPEC)) == []
    assert list(state.differences(SPEC, state.Spec())) == []
    assert list(state.differences(SPEC, replace(SPEC, extra_args=SPEC.extra_args[::-1]))) == []
    assert list(state.differences(SPEC, other)) == [
        "--port 1 at creation, 2 now",
        "--kube-scheduler-config none at creation, /s.yaml now",
        "--extra-args etcd=a=b, kube-scheduler=v=4 at creation, etcd=a=c now",
        "etcd from /bin/etcd at creation, from /own/etcd now",
    ]
    assert list(state.differences(other, replace(other, scheduler_config_digest="0"))) == [
        "/s.yaml has changed since the creation"
    ]


@pytest.mark.parametrize("folder", ["with space", "a,b", 'quo"te'])
def test_folders_that_kwokctl_cannot_handle_are_rejected(tmp_path: Path, folder: str) -> None:
    """It would truncate the name and start a cluster in another folder."""
    with pytest.raises(errors.InputError) as caught:
        state.cluster_folder(tmp_path / folder, "demo")
    assert "KWOKFLEET_DATA_DIR" in caught.value.hint
