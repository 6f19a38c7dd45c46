"""`kwokfleet test`: run all waves on a temporary cluster, and check their gates."""

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
    from kwokfleet.experiment.progress import ExpectedWave, WaveSelection

DONE = "done"
TEST_TIMEOUT = output.duration_text(settings.TEST_TIMEOUT)

Until = Annotated[
    str,
    typer.Option(
        metavar="done|DURATION",
        help="done: until each wave has finished one run; or a duration, counted from when the fleet is Ready.",
    ),
]
Timeout = Annotated[str, typer.Option(metavar="DURATION", help="Time limit, counted from when the cluster is up.")]
ReportDir = Annotated[
    Path | None, typer.Option(help="Write reports to this folder: HTML, JUnit, CSV, JSON, ClusterLoader2.")
]
Keep = Annotated[bool, typer.Option("--keep", help="Keep the cluster after the test.")]


@dataclass(frozen=True, slots=True)
class _Options:
    """Options of a test."""

    path: Path
    play_s: float | None
    """None: until every wave has finished one run."""
    timeout_s: float
    report_dir: Path | None
    keep: bool
    bin_dir: Path | None
    scheduler_config: Path | None

    @property
    def within(self) -> timedelta:
        """Time in which waves must start."""
        return timedelta(seconds=self.timeout_s if self.play_s is None else self.play_s)


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
    """Run all waves on a temporary cluster, and check their gates: exit with 0 if all pass, 1 if not.

    For pipelines. Invalid files are reported before the cluster starts. With --kubeconfig or --context the test uses
    that cluster, and removes its fleets at the end. The variable KUBECONFIG is ignored.
    """
    play_s = None if until == DONE else sync.seconds(until, "--until")
    options = _Options(
        run.require_exists(path or files.default_path()), play_s, sync.seconds(timeout), report_dir, keep, bin_dir,
        kube_scheduler_config,
    )  # fmt: skip
    foreign = context is not None or kubeconfig is not None
    _check_options(options, foreign=foreign)
    fleets, expected = _plan_test(options)
    if report_dir is not None:
        report_dir.mkdir(parents=True, exist_ok=True)
    output.start_logging(quiet=True)
    if foreign:
        site = test_cleanup.SharedCluster(fleets, context, kubeconfig)
        code = _test_on_existing_cluster(options, expected, site)
    else:
        with _temporary_cluster(options) as started:
            label = f"{started.name}, Kubernetes {started.version}"
            code = _run_test(options, expected, (None, started.kubeconfig), label)
    raise typer.Exit(code)


def _check_options(options: _Options, *, foreign: bool) -> None:
    if options.play_s is not None and options.play_s >= options.timeout_s:
        until, timeout = _duration_text(options.play_s), _duration_text(options.timeout_s)
        raise errors.InputError(
            f"--until {until} must be shorter than --timeout {timeout}", hint="use a longer --timeout"
        )
    if foreign and options.scheduler_config is not None:
        raise errors.InputError(
            "--kube-scheduler-config is for a temporary cluster only",
            hint="omit --kubeconfig and --context, or configure the scheduler of that cluster",
        )


def _duration_text(seconds: float) -> str:
    from kwokfleet.api import units

    return units.format_duration(timedelta(seconds=seconds))


def _plan_test(options: _Options) -> "tuple[Sequence[Fleet], Sequence[ExpectedWave]]":
    """Return the Fleets of the files and the Waves to wait for; raise if none would run, or one would never start."""
    from kwokfleet.documents import problems
    from kwokfleet.experiment import progress
    from kwokfleet.source import loader

    loaded = files.load(loader.Loader(), options.path)
    output.print_lines(map(files.problem_line, loaded.problems))
    file_errors = problems.errors(loaded.problems)
    if file_errors:
        raise errors.InputError(
            f"{files.count(len(file_errors), 'error')} in {options.path}; the test was not started",
            hint="check files without a cluster: kwokfleet validate",
        )
    selection = progress.select_waves(loaded.tree.fleets, datetime.now(UTC), options.within)
    _check_start_times(selection, options)
    if not selection.expected:
        no_wave = "none is due in that time" if selection.late or selection.past else "the files have none"
        reason = f"suspended: {progress.abbreviate(selection.suspended)}" if selection.suspended else no_wave
        raise errors.InputError(
            f"no wave of {options.path} would run: {reason}", hint="a test needs waves: docs/fleet-files.md"
        )
    if selection.suspended:
        output.print_line(f"note: suspended waves do not run: {progress.abbreviate(selection.suspended)}")
    if not any(wave.has_gates for wave in selection.expected):
        output.print_line("note: no wave has gates, so the test cannot fail; see docs/testing.md")
    return loaded.tree.fleets, selection.expected


def _check_start_times(selection: "WaveSelection", options: _Options) -> None:
    from kwokfleet.experiment import progress

    late = [f"{name} (due {due:%Y-%m-%dT%H:%M:%SZ})" for name, due in selection.late]
    if options.play_s is not None:
        if late or selection.past:
            output.print_line(f"note: not due in that time: {progress.abbreviate((*late, *selection.past))}")
    elif selection.past:
        raise errors.InputError(
            f"the start time of {progress.abbreviate(selection.past)} is in the past: it would never run",
            hint="use start: {after: 10s}, or limit the test: --until 5m",
        )
    elif late:
        raise errors.InputError(
            f"first due after --timeout {_duration_text(options.timeout_s)}: {progress.abbreviate(late)}",
            hint="use start: {after: 10s}, a longer --timeout, or --until 5m to run only waves due by then",
        )


@contextmanager
def _temporary_cluster(options: _Options) -> "Iterator[embedded.ClusterStatus]":
    """Start a temporary cluster; delete it when the block ends."""
    from kwokfleet.embedded import cluster, state
    from kwokfleet.embedded import progress as embedded_progress

    config, name = cluster_commands.settings_with(options.bin_dir), f"test-{os.urandom(3).hex()}"
    spec = state.Spec(scheduler_config=str(options.scheduler_config or ""))
    started = None
    try:
        with output.show_progress() as report:
            started = cluster.up(config, name, spec, report)
        yield started
    finally:
        for number in signals.STOPPING:  # a second signal must not interrupt the removal
            signal.signal(number, signal.SIG_IGN)
        if started is None:  # `up` cleans up when it fails; but a signal may arrive after it
            with suppress(errors.KwokfleetError):
                cluster.down(config, name, embedded_progress.discard)
        elif options.keep:
            _print_next_steps(started, options.path)
        else:
            cluster.down(config, name, embedded_progress.discard)
            output.print_line(f"cluster {name} deleted")


def _print_next_steps(started: "embedded.ClusterStatus", path: Path) -> None:
    cluster_commands.print_usage(started)
    output.print_line(
        f"kwok has ended with the test, so the nodes become NotReady. To continue with the same files:\n\n"
        f"  {output.program()} up {path} --name {started.name}\n"
    )


def _test_on_existing_cluster(
    options: _Options, expected: "Sequence[ExpectedWave]", site: test_cleanup.SharedCluster
) -> errors.ExitCode:
    """Test on an existing cluster; remove the Fleets at the end, unless --keep is set."""
    label = f"context {site.context}" if site.context else str(site.kubeconfig)
    where = (site.context, site.kubeconfig)
    test_cleanup.require_unknown_fleets(site)
    if options.keep:
        return _run_test(options, expected, where, label)
    with test_cleanup.removed_at_exit(site):
        return _run_test(options, expected, where, label, lambda started: test_cleanup.remove_fleets(started, site))


def _run_test(
    options: _Options,
    expected: "Sequence[ExpectedWave]",
    where: tuple[str | None, Path | None],
    cluster: str,
    clean_up: "Callable[[daemon.Daemon], None]" = lambda _daemon: None,
) -> errors.ExitCode:
    """Run a daemon until the test ends; print the results, also after a timeout."""
    from kwokfleet.cli import test_view
    from kwokfleet.experiment import runner

    start, timeout = time.monotonic(), None
    config = replace(run.default_config(options.path, None, options.bin_dir), context=where[0], kubeconfig=where[1])
    with run.running(config) as started:
        test_runner = runner.ExperimentRunner(started, expected, config.results_dir)
        try:
            with test_view.display(output.console(stderr=True), cluster) as show:
                output.start_logging(quiet=True)  # logs above the live display
                test_runner.wait(options.play_s, options.timeout_s, show)
                test_runner.wait_for_results()
        except errors.DeadlineError as error:
            timeout = error
        finally:
            clean_up(started)
    test_runner.poll()  # the last measurements
    code = _print_results(test_runner, options, time.monotonic() - start)
    if timeout is not None:
        raise timeout
    return code


def _print_results(test_runner: "runner.ExperimentRunner", options: _Options, took_s: float) -> errors.ExitCode:
    """Print the result of each Run, write the reports, return the exit code."""
    from kwokfleet.cli import test_view
    from kwokfleet.experiment.progress import RunStep

    rows = test_view.rows(test_runner.snapshot.runs)
    if rows:
        typer.echo(output.table(rows))
    finished = [run for run in test_runner.snapshot.runs if run.step is RunStep.FINISHED]
    failures = [f"{run.name}: {failure}" for run in finished for failure in run.failures]
    output.print_lines(failures)
    if options.report_dir is not None:
        from kwokfleet.report import writer

        written = writer.write_all(map(writer.stored_input, test_runner.stored_results()), options.report_dir)
        pages = [f"; open {file}" for file in written if file.suffix == ".html"]
        output.print_line(f"reports: {files.count(len(written), 'file')} in {options.report_dir}{''.join(pages)}")
    gates = sum(len(run.result.gates) for run in finished if run.result)
    verdict = files.count(len(failures), "failure") if failures else "all passed" if gates else "nothing to check"
    summary = f"{files.count(len(finished), 'run')} finished, {files.count(gates, 'gate')}: {verdict}"
    output.print_line(f"{summary} in {took_s:.0f} s")
    return errors.ExitCode.NO if failures else errors.ExitCode.DONE
