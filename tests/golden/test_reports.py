"""Reports in the terminal and in pull requests."""

from kwokfleet.cli import report_view
from kwokfleet.measure import compare
from kwokfleet.report import comparisons, junit
from tests.harness import sample_results
from tests.harness.golden_files import GoldenFiles


def test_report_in_the_terminal(golden_file: GoldenFiles) -> None:
    """Tables, sparklines, gates, gaps and failures; then a Run without data."""
    shown = [
        *report_view.lines(sample_results.sample_run(400, gap=(8, 12)).result),
        "",
        *report_view.lines(sample_results.empty_result()),
    ]
    golden_file.check("report.txt", "".join(f"{line.rstrip()}\n" for line in "\n".join(shown).splitlines()))


def test_comparison_in_a_pull_request(golden_file: GoldenFiles) -> None:
    """Regressions are highlighted."""
    comparison = compare.compare(
        sample_results.sample_run(400).result, sample_results.sample_run(400, name="2", slower=1.3).result
    )
    golden_file.check("report-diff.md", comparisons.to_markdown(comparison, compare.RegressionLimits()))


def test_junit(golden_file: GoldenFiles) -> None:
    """For build servers."""
    golden_file.check(
        "report-junit.xml", junit.to_xml([sample_results.sample_run(400).result, sample_results.empty_result()])
    )
