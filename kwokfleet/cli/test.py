"""`kwokfleet test`: play the waves of some files on a cluster made for that, and say whether what was expected held."""

import os
import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kwokfleet import errors, settings
from kwokfleet.cli import cluster as cluster_commands
from kwokfleet.cli import connection, files, output, run, signals, sync, test_cleanup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kwokfleet.api.fleet import Fleet
    from kwokfleet.daemon import daemon
    from kwokfleet.embedded import cluster as embedded
    from kwokfleet.experiment import runner
    from kwokfleet.experiment.progress import ExpectedWave, RunProgress, WaveSelection

DONE = "done"
TEST_TIMEOUT = output.duration_text(settings.TEST_TIMEOUT)

Until = Annotated[
    str,
    typer.Option(
        metavar="done|DURATION",
        help="done: until each wave has had a run and all of it is over; or for so long once the fleet is Ready.",
    ),
]
Timeout = Annotated[str, typer.Option(metavar="DURATION", help="Give up after this long, counted from the cluster.")]
ReportDir = Annotated[
    Path | None,
    typer.Option(help="Write reports into this folder: HTML, JUnit, CSV, JSON, ClusterLoader2's.", show_default=False),
]
Keep = Annotated[bool, typer.Option("--keep", help="Leave the cluster as it is in the end.")]


@dataclass(frozen=True, slots=True)
class _Options:
    """What to test, and how."""

    path: Path
    play_s: float | None
    """None: until every wave has been played once."""
    timeout_s: float
    report_dir: Path | None
    keep: bool
    bin_dir: Path | None
    scheduler_config: Path | None

    @property
    def within(self) -> timedelta:
        """How long waves have to begin."""
        return timedelta(seconds=self.timeout_s if self.play_s is None else self.play_s)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is in the files."""

    fleets: "Sequence[Fleet]"
    expected: "Sequence[ExpectedWave]"


def run_test(  # noqa: PLR0913, PLR0917  # one for each option
    path: files.OnePath = None,
    until: Until = DONE,
    timeout: Timeout = TEST_TIMEOUT,
    report_dir: ReportDir = None,
    keep: Keep = False,
    bin_dir: cluster_commands.BinDir = None,
    kube_scheduler_config: cluster_commands.SchedulerConfig = None,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Play all waves on a cluster of their own, measure, and exit 0 if what they expect held, 1 if not.

    For pipelines. The files are checked before anything is started. With --kubeconfig or --context it uses that
    cluster instead, and removes the fleets from it in the end; KUBECONFIG alone is not taken for a wish.
    """
    play_s = None if until == DONE else sync.seconds(until, "--until")
    options = _Options(
        run.require_exists(path or files.default_path()), play_s, sync.seconds(timeout), report_dir, keep, bin_dir,
        kube_scheduler_config,
    )  # fmt: skip
    foreign = context is not None or kubeconfig is not None
    _refuse_contradictions(options, foreign=foreign)
    plan = _planned(options)
    if report_dir is not None:
        report_dir.mkdir(parents=True, exist_ok=True)
    output.start_logging(quiet=True)
    if foreign:
        code = _tested_elsewhere(options, plan, context, kubeconfig)
    else:
        with _own_cluster(options) as made:
            told = f"{made.name}, Kubernetes {made.version}"
            code = _tested(options, plan, (None, made.kubeconfig), told, lambda _made: None)
    raise typer.Exit(code)


def _refuse_contradictions(options: _Options, *, foreign: bool) -> None:
    if options.play_s is not None and options.play_s >= options.timeout_s:
        raise errors.InputError(
            f"--until {_shown(options.play_s)} is not shorter than --timeout {_shown(options.timeout_s)}",
            hint="give it a longer --timeout",
        )
    if foreign and options.scheduler_config is not None:
        raise errors.InputError(
            "--kube-scheduler-config is for a cluster that is made here",
            hint="leave out --kubeconfig and --context, or configure that cluster's scheduler there",
        )


def _shown(seconds: float) -> str:
    from kwokfleet.api import units

    return units.format_duration(timedelta(seconds=seconds))


# ----------------------------------------------------------------------------------------
# before anything is started


def _planned(options: _Options) -> _Plan:
    """Check the files, and return what is to be played; raise if that is nothing, or if a wave would never be."""
    from kwokfleet.documents import problems
    from kwokfleet.experiment import progress
    from kwokfleet.source import loader

    loaded = files.load(loader.Loader(), options.path)
    for problem in loaded.problems:
        output.print_line(files.problem_line(problem))
    wrong = problems.errors(loaded.problems)
    if wrong:
        raise errors.InputError(
            f"{files.count(len(wrong), 'problem')} in {options.path}: nothing was started",
            hint="kwokfleet validate shows the same, and needs no cluster",
        )
    selection = progress.select_waves(loaded.tree.fleets, datetime.now(UTC), options.within)
    _refuse_what_never_comes(selection, options)
    if not selection.expected:
        none = "none is due in that time" if selection.late or selection.past else "there is none"
        why = f"suspended: {progress.abbreviate(selection.suspended)}" if selection.suspended else none
        raise errors.InputError(
            f"no wave of {options.path} would be played: {why}", hint="a test needs waves: docs/fleet-files.md"
        )
    if selection.suspended:
        output.print_line(f"note: suspended, so not played: {progress.abbreviate(selection.suspended)}")
    if not any(wave.has_gates for wave in selection.expected):
        output.print_line("note: no wave says what it expects, so nothing can fail: docs/testing.md tells of gates")
    return _Plan(loaded.tree.fleets, selection.expected)


def _refuse_what_never_comes(selection: "WaveSelection", options: _Options) -> None:
    from kwokfleet.experiment import progress

    late = [f"{name} (due {due:%Y-%m-%dT%H:%M:%SZ})" for name, due in selection.late]
    if options.play_s is not None:
        if late or selection.past:
            output.print_line(f"note: not due in that time: {progress.abbreviate((*late, *selection.past))}")
    elif selection.past:
        raise errors.InputError(
            f"the time of {progress.abbreviate(selection.past)} is past: it would never be played",
            hint="write start: {after: 10s}, or say how long to play: --until 5m",
        )
    elif late:
        raise errors.InputError(
            f"first due after --timeout {_shown(options.timeout_s)}: {progress.abbreviate(late)}",
            hint="start: {after: 10s} in a file for tests, a longer --timeout, or --until 5m for what is due by then",
        )


# ----------------------------------------------------------------------------------------
# the cluster


@contextmanager
def _own_cluster(options: _Options) -> "Iterator[embedded.ClusterStatus]":
    """Bring up a cluster that nobody else has, and remove it however the block ends."""
    from kwokfleet.cli import progress
    from kwokfleet.embedded import cluster, state
    from kwokfleet.embedded import progress as embedded_progress

    config, name = cluster_commands.settings_with(options.bin_dir), f"test-{os.urandom(3).hex()}"
    spec = state.Spec(scheduler_config=str(options.scheduler_config or ""))
    made = None
    try:
        with progress.show(output.console(stderr=True)) as report:
            made = cluster.up(config, name, spec, report)
        yield made
    finally:
        for each in signals.STOPPING:  # it ends already; half a removal helps nobody
            signal.signal(each, signal.SIG_IGN)
        if made is None:  # `up` leaves nothing when it fails; but a signal may come between two lines
            with suppress(errors.KwokfleetError):
                cluster.down(config, name, embedded_progress.discard)
        elif options.keep:
            _say_how_to_go_on(made, options.path)
        else:
            cluster.down(config, name, embedded_progress.discard)
            output.print_line(f"cluster {name} is gone")


def _say_how_to_go_on(made: "embedded.ClusterStatus", path: Path) -> None:
    cluster_commands.print_usage(made)
    output.print_line(
        f"kwok has ended with the test, so its nodes will not stay Ready. To go on with the same files:\n\n"
        f"  {output.program()} up {path} --name {made.name}\n"
    )


# ----------------------------------------------------------------------------------------
# the test


def _tested_elsewhere(options: _Options, plan: _Plan, context: str | None, kubeconfig: Path | None) -> errors.ExitCode:
    """Test on a cluster that somebody named, and leave it as it was, unless it is to be kept."""
    site = test_cleanup.SharedCluster(plan.fleets, context, kubeconfig)
    told = f"that of {f'context {context}' if context else kubeconfig}"
    test_cleanup.require_unknown_fleets(site)
    if options.keep:
        return _tested(options, plan, (context, kubeconfig), told, lambda _made: None)
    with test_cleanup.removed_at_exit(site):
        return _tested(options, plan, (context, kubeconfig), told, lambda made: test_cleanup.remove_fleets(made, site))


def _tested(
    options: _Options,
    plan: _Plan,
    where: tuple[str | None, Path | None],
    cluster: str,
    leave: "Callable[[daemon.Daemon], None]",
) -> errors.ExitCode:
    """Run a daemon until the test is over; tell what came of it, also if that took too long."""
    from kwokfleet.cli import test_view
    from kwokfleet.experiment import runner

    began, test_runner, late = time.monotonic(), None, None
    config = replace(run.default_config(options.path, None, options.bin_dir), context=where[0], kubeconfig=where[1])
    with run.running(config) as made:
        test_runner = runner.ExperimentRunner(made, plan.expected, config.results_dir)
        try:
            with test_view.display(output.console(stderr=True), cluster) as show:
                output.start_logging(quiet=True)  # above what is drawn, not through it
                test_runner.wait(options.play_s, options.timeout_s, show)
                test_runner.wait_for_results()
        except errors.DeadlineError as error:
            late = error
        finally:
            leave(made)
    test_runner.poll()  # what was measured up to the end
    code = _tell(test_runner, options, time.monotonic() - began)
    if late is not None:
        raise late
    return code


def _tell(test_runner: "runner.ExperimentRunner", options: _Options, took_s: float) -> errors.ExitCode:
    """Print what came of each Run, write the reports, and return the exit code."""
    from kwokfleet.cli import test_view

    runs = test_runner.snapshot.runs
    rows = test_view.rows(runs)
    if rows:
        typer.echo(output.table(rows))
    failures = _failures(runs)
    for line in failures:
        output.print_line(line)
    if options.report_dir is not None:
        output.print_line(_written(test_runner, options.report_dir))
    output.print_line(f"{_summary(runs, failures)} in {took_s:.0f} s")
    return errors.ExitCode.NO if failures else errors.ExitCode.DONE


def _failures(runs: "Sequence[RunProgress]") -> list[str]:
    from kwokfleet.experiment.progress import RunStep

    return [f"{run.name}: {failure}" for run in runs if run.step is RunStep.FINISHED for failure in run.failures]


def _summary(runs: "Sequence[RunProgress]", failures: "Sequence[str]") -> str:
    from kwokfleet.experiment.progress import RunStep

    over = [run for run in runs if run.step is RunStep.FINISHED]
    gates = sum(len(run.result.gates) for run in over if run.result)
    held = files.count(len(failures), "failure") if failures else "all held" if gates else "nothing could fail"
    return f"{files.count(len(over), 'run')} over, {files.count(gates, 'gate')}: {held}"


def _written(test_runner: "runner.ExperimentRunner", folder: Path) -> str:
    """Write the reports; return where they are."""
    from kwokfleet.report import writer

    written = writer.write_all(test_runner.stored_results(), folder)
    pages = [f"; open {file}" for file in written if file.suffix == ".html"]
    return f"reports: {files.count(len(written), 'file')} in {folder}{''.join(pages)}"
