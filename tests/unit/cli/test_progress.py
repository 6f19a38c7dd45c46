from kwokfleet.cli import progress
from kwokfleet.embedded import progress as embedded_progress


def test_a_build_says_how_far_it_is_and_how_long_it_usually_takes() -> None:
    """Nine minutes are bearable if one can see them pass."""
    update = embedded_progress.ProgressUpdate(
        "kube-apiserver", embedded_progress.ProgressPhase.BUILDING, "k8s.io/api", 785, 1570, usual_s=300
    )
    assert progress.describe(update, 65) == "building, 785 of 1570 packages, 1 min 05 s (usually 5 min 00 s)"


def test_a_download_counts_megabytes() -> None:
    """Size instead of packages."""
    assert (
        progress.describe(
            embedded_progress.ProgressUpdate("etcd", embedded_progress.ProgressPhase.DOWNLOADING, "", 3, 26), 0.5
        )
        == "downloading, 3 of 26 MB"
    )


def test_what_is_done_shows_its_outcome() -> None:
    """The detail stands alone."""
    assert (
        progress.describe(
            embedded_progress.ProgressUpdate("etcd", embedded_progress.ProgressPhase.DONE, "ready after 2.5 s"), 9
        )
        == "ready after 2.5 s"
    )
