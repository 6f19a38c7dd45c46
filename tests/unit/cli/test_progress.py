"""Progress updates as text."""

from kwokfleet.cli import progress
from kwokfleet.embedded import progress as embedded_progress


def test_a_build_shows_packages_and_its_usual_duration() -> None:
    """A build can take nine minutes."""
    update = embedded_progress.ProgressUpdate(
        "kube-apiserver", embedded_progress.ProgressPhase.BUILDING, "k8s.io/api", 785, 1570, usual_s=300
    )
    assert progress.describe(update, 65) == "building, 785 of 1570 packages, 1 min 05 s (usually 5 min 00 s)"


def test_a_download_counts_megabytes() -> None:
    """The unit is MB instead of packages."""
    assert (
        progress.describe(
            embedded_progress.ProgressUpdate("etcd", embedded_progress.ProgressPhase.DOWNLOADING, "", 3, 26), 0.5
        )
        == "downloading, 3 of 26 MB"
    )


def test_a_finished_subject_shows_its_detail() -> None:
    """Phase and duration are omitted."""
    assert (
        progress.describe(
            embedded_progress.ProgressUpdate("etcd", embedded_progress.ProgressPhase.DONE, "ready after 2.5 s"), 9
        )
        == "ready after 2.5 s"
    )
