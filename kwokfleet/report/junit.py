"""Results as JUnit XML: one case per Run, and one per gate.

Cases have the names of ClusterLoader2's cases (`TEST overall (CONFIG)`, `TEST: STEP`).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from xml.sax import saxutils

from kwokfleet.measure.result import GateResult, Result
from kwokfleet.report import numbers

SUITE = "kwokfleet"
CLUSTERLOADER2_SUITE = "ClusterLoaderV2"
_XML = '<?xml version="1.0" encoding="UTF-8"?>'
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML does not allow, even escaped."""


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    seconds: float
    failure: str = ""
    cause: str = "Failure"
    skipped: str = ""
    out: str = ""


def to_xml(results: Sequence[Result], suite: str = SUITE) -> str:
    """Return one document for all Runs."""
    cases = [case for result in results for case in _cases(result)]
    failures = sum(bool(case.failure) for case in cases)
    skipped = sum(bool(case.skipped) for case in cases)
    total = sum(numbers.length(result) or 0.0 for result in results)
    attributes = f'tests="{len(cases)}" failures="{failures}" errors="0" skipped="{skipped}" time="{total:.3f}"'
    start = min((result.start for result in results), default=None)
    timestamp = f' timestamp="{start.replace(tzinfo=None).isoformat(timespec="seconds")}"' if start else ""
    head = f"  <testsuite name={_attribute(suite)} {attributes}{timestamp}>"
    lines = (line for case in cases for line in _case_lines(case, suite))
    return "\n".join([_XML, f"<testsuites {attributes}>", head, *lines, "  </testsuite>", "</testsuites>", ""])


def _cases(result: Result) -> Iterator[_Case]:
    title, numbers_text = f"{result.fleet}/{result.wave}", "\n".join(_facts(result))
    overall = _Case(f"{title} overall ({result.run})", numbers.length(result) or 0.0, out=numbers_text)
    if result.state == "Running":
        yield replace(overall, skipped="the Run is not over")
    elif result.state == "Cancelled":
        yield replace(overall, failure="the Run was cancelled", cause="Cancelled")
    else:
        yield replace(overall, failure="\n".join(_describe(gate) for gate in result.gates if not gate.passed))
    for gate in result.gates:
        cause = "NoData" if gate.no_data else "Failure"
        yield _Case(f"{title}: {gate.name} ({result.run})", 0.0, "" if gate.passed else _describe(gate), cause)


def _describe(gate: GateResult) -> str:
    clock = f" (clock: {gate.clock})" if gate.clock else ""
    return f"{gate.name}: wanted {gate.want}, got {gate.got}{clock}{gate.why and f': {gate.why}'}"


def _facts(result: Result) -> Iterable[str]:
    yield f"{result.template_kind or 'objects'}: {numbers.sentence(result.objects)}"
    if result.template_kind != "Pod":
        yield f"pods: {numbers.sentence(result.pods)}"
    for latency in result.latencies:
        text = ", ".join(f"{name} {numbers.duration(getattr(latency, name))}" for name in ("p50", "p90", "p99"))
        yield f"{latency.of} {latency.name} ({latency.clock}): {text if latency.count else numbers.NO_DATA}"
    yield from (f"gap from {gap.start} to {gap.end}: {gap.why}" for gap in result.gaps)
    yield from (f"{failure.count} failures: {failure.what} (first: {failure.example})" for failure in result.troubles)


def _case_lines(case: _Case, suite: str) -> Iterator[str]:
    head = f"    <testcase name={_attribute(case.name)} classname={_attribute(suite)} time={_attribute(case.seconds)}"
    body = []
    if case.skipped:
        body.append(f"      <skipped message={_attribute(case.skipped)}/>")
    if case.failure:
        first = case.failure.partition("\n")[0]
        attributes = f"type={_attribute(case.cause)} message={_attribute(first)}"
        body.append(f"      <failure {attributes}>{_text(case.failure)}</failure>")
    if case.out:
        body.append(f"      <system-out>{_text(case.out)}</system-out>")
    yield from (f"{head}>", *body, "    </testcase>") if body else (f"{head}/>",)


def _attribute(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return saxutils.quoteattr(_FORBIDDEN.sub("\ufffd", text))


def _text(value: str) -> str:
    return saxutils.escape(_FORBIDDEN.sub("\ufffd", value))
