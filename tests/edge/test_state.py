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


def made(tmp_path: Path, name: str = "demo", *, finished: bool = True) -> state.ClusterFolder:
    """Make a folder as a finished cluster leaves it."""
    where = state.cluster_folder(tmp_path, name)
    state.write_record(where, state.ClusterRecord(finished=finished, spec=SPEC, ports=PORTS))
    for path in (where.saved_config, where.kubeconfig, *map(where.pki, ("ca.crt", "admin.crt", "admin.key"))):
        path.parent.mkdir(exist_ok=True)
        path.write_text((CERTIFICATES / path.name).read_text() if path.parent.name == "pki" else "something")
    return where


def test_the_marker_remembers_everything(tmp_path: Path) -> None:
    """What was written is read back equal, so that options can be compared."""
    assert state.read_record(made(tmp_path)) == state.ClusterRecord(finished=True, spec=SPEC, ports=PORTS)


def test_a_finished_cluster_is_made(tmp_path: Path) -> None:
    """The good case."""
    assert state.folder_state(made(tmp_path)) == (state.FolderState.COMPLETE, "")


@pytest.mark.parametrize("empty", [True, False])
def test_no_folder_or_an_empty_one_is_absent(tmp_path: Path, empty: bool) -> None:  # noqa: FBT001 - a case
    """A folder somebody made in advance is no obstacle."""
    where = state.cluster_folder(tmp_path, "demo")
    if empty:
        where.root.mkdir(parents=True)
    assert state.folder_state(where)[0] is state.FolderState.ABSENT


def test_a_folder_without_our_marker_is_foreign(tmp_path: Path) -> None:
    """Kwokctl's own clusters, or anything else, are not ours."""
    where = made(tmp_path)
    where.marker.unlink()
    assert state.folder_state(where)[0] is state.FolderState.FOREIGN


def test_an_unfinished_cluster_is_half_made(tmp_path: Path) -> None:
    """Whoever was making it died."""
    assert state.folder_state(made(tmp_path, finished=False))[0] is state.FolderState.INCOMPLETE


@pytest.mark.parametrize("text", ["", "{", "[]", '{"finished": true}'])
def test_an_unreadable_marker_is_damage(tmp_path: Path, text: str) -> None:
    """Cut off, not JSON, or of another shape."""
    where = made(tmp_path)
    where.marker.write_text(text)
    standing, why = state.folder_state(where)
    assert standing is state.FolderState.DAMAGED
    assert "kwokfleet.json cannot be read" in why


def test_certificates_that_cannot_be_used_are_damage(tmp_path: Path) -> None:
    """Present is not enough."""
    where = made(tmp_path)
    where.pki("ca.crt").write_text("not a certificate")
    standing, why = state.folder_state(where)
    assert standing is state.FolderState.DAMAGED
    assert "its certificates are invalid" in why


def test_a_marker_of_somebody_elses_is_damage(tmp_path: Path) -> None:
    """Only what kwokfleet wrote is believed."""
    where = made(tmp_path)
    where.marker.write_text(where.marker.read_text().replace('"kwokfleet"', '"another"'))
    assert state.folder_state(where)[0] is state.FolderState.DAMAGED


def test_missing_files_are_damage_and_named(tmp_path: Path) -> None:
    """A kubeconfig without its certificate is of no use."""
    where = made(tmp_path)
    where.pki("admin.key").unlink()
    where.kubeconfig.write_text("")
    assert state.folder_state(where) == (state.FolderState.DAMAGED, "missing or empty: kubeconfig.yaml, pki/admin.key")


@pytest.mark.parametrize("name", ["", "Demo", "-demo", "a/b", "../up", "a" * 41, "a b", "demo\n"])
def test_names_that_could_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    """A name becomes a folder, a context and a flag: it must be harmless as each."""
    with pytest.raises(errors.InputError):
        state.cluster_folder(tmp_path, name)


def test_ports_of_other_clusters_are_known_even_beside_a_damaged_one(tmp_path: Path) -> None:
    """A stopped neighbour keeps its ports; a broken one does not stop us."""
    made(tmp_path, "other")
    made(tmp_path, "broken").marker.write_text(json.dumps({"ports": None}))
    assert state.ports_of_others(state.cluster_folder(tmp_path, "demo")) == {1, 2, 3, 4, 5, 6}
    assert state.cluster_names(tmp_path) == ("broken", "other")


def test_differences_between_options_are_put_into_words() -> None:
    """Each says what was then and what is now; what is equal or left open says nothing."""
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
def test_folders_that_kwokctl_cannot_handle_are_refused(tmp_path: Path, folder: str) -> None:
    """It would cut the name short and start a cluster somewhere else."""
    with pytest.raises(errors.InputError) as caught:
        state.cluster_folder(tmp_path / folder, "demo")
    assert "KWOKFLEET_DATA_DIR" in caught.value.hint
