"""The Tree of valid Fleets, and the checks that need references or all Fleets together."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kwokfleet.api import fleet as fleet_api
from kwokfleet.documents.parser import Document
from kwokfleet.documents.problems import Finding
from kwokfleet.render import desired, usage
from kwokfleet.source.document_index import DocumentIndex
from kwokfleet.source.references import References
from kwokfleet.source.stage_library import StageLibrary
from kwokfleet.validate import fleet_checks, kwok_resources, tree_checks, wave_checks


def build(index: DocumentIndex, references: References) -> desired.Tree:
    """Check the Fleets and return the Tree of the valid ones; findings go to *index*."""
    fleets = [fleet for fleet, _ in index.fleets.values()]
    for fleet, document in index.fleets.values():
        index.report(document, _check_fleet(fleet, references))
    for _, document in index.controllers[1:]:
        message = f"another KwokController is defined in {index.controllers[0][1].path}"
        index.report(document, [Finding(("metadata", "name"), message, "keep one of them", rule="duplicate-name")])
    _check_together(index, references, fleets)
    invalid = index.invalid_fleets() | index.broken
    tree = desired.Tree(
        tuple(fleet for fleet in sorted(fleets, key=lambda fleet: fleet.name) if fleet.name not in invalid),
        index.controller_spec,
        StageLibrary(),
        {name: sets for name, sets in sorted(references.stage_sets.items()) if name not in invalid},
        references.templates,
        references.traces,
        {name: tuple(manifest for manifest, _ in objects) for name, objects in sorted(references.kwok_objects.items())},
    )
    for name, finding in tree_checks.check_stage_coverage(tree):
        index.report(index.fleets[name][1], [finding])
    invalid = index.invalid_fleets()
    return replace(tree, fleets=tuple(fleet for fleet in tree.fleets if fleet.name not in invalid))


def _check_fleet(fleet: fleet_api.Fleet, references: References) -> Iterator[Finding]:
    yield from fleet_checks.check(fleet)
    for number, pool in enumerate(fleet.spec.node_pools):
        if pool.template_from is not None and not any(fleet_checks.check_node_template(pool.template, ())):
            templates = references.templates[fleet.name, pool.name]
            yield from fleet_checks.check_pod_cidr_size(pool, templates, ("spec", "nodePools", number, "podCIDR"))
    for number, wave in enumerate(fleet.spec.waves):
        trace = references.traces.get((fleet.name, wave.name))
        yield from wave_checks.check(fleet, wave, ("spec", "waves", number), trace)


def _check_together(index: DocumentIndex, references: References, fleets: list[fleet_api.Fleet]) -> None:
    overlaps = fleet_checks.overlapping_pod_cidrs(sorted(fleets, key=lambda fleet: fleet.name))
    for name, finding in (*overlaps, *tree_checks.check_conflicts(fleets, references.stage_sets)):
        index.report(index.fleets[name][1], [finding])
    kwok_objects = [pair for _, pairs in sorted(references.kwok_objects.items()) for pair in pairs]
    for document, finding in kwok_resources.check_conflicts(kwok_objects, uses=usage.is_declared(fleets)):
        index.report(document, [finding])
    if index.controllers:  # without one, it may be in a file that was not read
        for name, pairs in references.kwok_objects.items():
            manifests = [manifest for manifest, _ in pairs]
            index.report(index.fleets[name][1], kwok_resources.check_reachable(manifests, index.controller_spec))
    if len(references.stage_documents) > 1:
        _lint_together(index, list(references.stage_documents.values()))


def _lint_together(index: DocumentIndex, documents: Sequence[Document]) -> None:
    from kwokfleet.stagelint import rules  # noqa: PLC0415  # slow to import

    stages = [
        ((number,), document.value) for number, document in enumerate(documents) if isinstance(document.value, dict)
    ]
    for finding in rules.check_set(stages):
        document = documents[int(finding.field_path[0])]
        problem = document.problem(replace(finding, field_path=finding.field_path[1:]))
        if not any((other.path, other.line) == (problem.path, problem.line) for other in index.problems):
            index.problems.append(problem)
