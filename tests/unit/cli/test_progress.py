from kwokfleet.cli import progress as display
from kwokfleet.embedded import progress


def test_a_build_says_how_far_it_is_and_how_long_it_usually_takes() -> None:
    """Nine minutes are bearable if one can see them pass."""
    update = progress.Update("kube-apiserver", progress.Phase.BUILDING, "k8s.io/api", 785, 1570, usual_s=300)
    assert display.describe(update, 65) == "building, 785 of 1570 packages, 1 min 05 s (usually 5 min 00 s)"


def test_a_download_counts_megabytes() -> None:
    """Size instead of packages."""
    assert (
        display.describe(progress.Update("etcd", progress.Phase.DOWNLOADING, "", 3, 26), 0.5)
        == "downloading, 3 of 26 MB"
    )


def test_what_is_done_shows_its_outcome() -> None:
    """The detail stands alone."""
    assert display.describe(progress.Update("etcd", progress.Phase.DONE, "ready after 2.5 s"), 9) == "ready after 2.5 s"
