import io

from rich.console import Console

from kwokfleet.cli import progress
from kwokfleet.embedded import progress as embedded_progress

UPDATES = (
    embedded_progress.ProgressUpdate("etcd", embedded_progress.ProgressPhase.WAITING),
    embedded_progress.ProgressUpdate(
        "etcd", embedded_progress.ProgressPhase.BUILDING, "go.uber.org/zap", 10, 575, usual_s=70
    ),
    embedded_progress.ProgressUpdate(
        "etcd", embedded_progress.ProgressPhase.BUILDING, "google.golang.org/grpc", 20, 575, usual_s=70
    ),
    embedded_progress.ProgressUpdate("etcd", embedded_progress.ProgressPhase.NOTE, "something worth a line"),
    embedded_progress.ProgressUpdate(
        "etcd", embedded_progress.ProgressPhase.BUILDING, "k8s.io/klog", 30, 575, usual_s=70
    ),
    embedded_progress.ProgressUpdate("etcd", embedded_progress.ProgressPhase.DONE, "v3.6.8, built"),
)


def displayed(*, terminal: bool, updates: tuple[embedded_progress.ProgressUpdate, ...] = UPDATES) -> str:
    """Report *updates*; return the output."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None)
    with progress.show(console) as report:
        for update in updates:
            report(update)
    return out.getvalue()


def test_a_terminal_shows_the_finished_table() -> None:
    """The last frame stays, with a check mark per step."""
    text = displayed(terminal=True)
    assert "✓ etcd v3.6.8, built" in text
    assert "something worth a line" in text


def test_a_log_file_gets_a_line_per_change() -> None:
    """Not one line per compiled package, and no control characters."""
    assert displayed(terminal=False).splitlines() == [
        "etcd: building, 10 of 575 packages, 0 s (usually 1 min 10 s)",
        "etcd: something worth a line",
        "etcd: v3.6.8, built",
    ]


def test_nothing_is_printed_without_updates() -> None:
    """Cached binaries print no empty line."""
    assert displayed(terminal=True, updates=()) == ""
    assert displayed(terminal=False, updates=()) == ""
