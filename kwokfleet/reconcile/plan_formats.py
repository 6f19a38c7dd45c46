"""Plan formats: JSON, Markdown for pull requests, unified diffs."""

import difflib
from collections.abc import Iterator
from typing import Any

import orjson

from kwokfleet.documents import writer
from kwokfleet.kube.objects import Manifest
from kwokfleet.reconcile import diff, outcomes
from kwokfleet.reconcile.changes import Change, ChangeAction, Plan, Withheld, digest
from kwokfleet.reconcile.diff import ABSENT

SIGNS = {ChangeAction.CREATE: "+", ChangeAction.UPDATE: "~", ChangeAction.REPLACE: "±", ChangeAction.DELETE: "-"}
MOST_IN_MARKDOWN = 200
"""Most objects listed in Markdown: a GitHub comment has at most 65,536 characters."""


def to_json(plan: Plan, *, whole: bool) -> str:
    """Return a Plan as JSON; *whole*: with the desired manifests."""
    document = {
        "differs": not plan.empty,
        "digest": digest(plan.changes),
        "summary": plan.counts(),
        "groups": [_group(group) for group in outcomes.groups(plan.changes)],
        "changes": [_change(change, whole=whole) for change in plan.changes],
        "withheld": [_withheld(group, whole=whole) for group in plan.withheld],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _group(group: outcomes.ChangeGroup) -> dict[str, Any]:
    counts = {action.value: group.counts[action] for action in ChangeAction}
    return {"fleet": group.fleet, "title": group.title, **counts, "fields": dict(group.fields)}


def _change(change: Change, *, whole: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "action": change.action.value,
        "apiVersion": change.key.api_version,
        "kind": change.key.kind,
        "name": change.key.name,
        "fleet": change.fleet,
        "pool": change.pool,
        "reason": change.reason,
    }
    if change.key.namespace:
        fields["namespace"] = change.key.namespace
    if change.differences:
        fields["differences"] = [
            {"path": list(difference.path)}
            | ({} if difference.live is ABSENT else {"live": difference.live})
            | ({} if difference.desired is ABSENT else {"want": difference.desired})
            for difference in change.differences
        ]
    if whole and change.desired is not None:
        fields["want"] = change.desired
    return fields


def _withheld(group: Withheld, *, whole: bool) -> dict[str, Any]:
    fields = {"cause": group.cause.value, "fleet": group.fleet, "why": group.why}
    if group.digest:
        fields["digest"] = group.digest
    return fields | {"changes": [_change(change, whole=whole) for change in group.changes]}


def object_name(change: Change) -> str:
    """Return kind, namespace and name of an object."""
    inside = f"{change.key.namespace}/" if change.key.namespace else ""
    return f"{change.key.kind.lower()} {inside}{change.key.name}"


def change_lines(change: Change) -> Iterator[str]:
    """Yield a line for a change, and one for each difference."""
    yield f"{SIGNS[change.action]} {object_name(change)}: {change.reason}"
    for difference in change.differences:
        yield f"    {field_text(difference.path)}: {value_text(difference.live)} -> {value_text(difference.desired)}"


def field_text(path: diff.Path) -> str:
    """Return a field path: `metadata.labels["a.b/c"]`."""
    text = ""
    for step in path:
        simple = step.replace("-", "").replace("_", "").isalnum()
        text += (f".{step}" if text else step) if simple else f'["{step}"]'
    return text


def value_text(what: Any) -> str:  # noqa: ANN401  # any part of a manifest
    """Return one side of a difference as JSON."""
    return "(none)" if what is ABSENT else orjson.dumps(what).decode()


def to_markdown(plan: Plan) -> str:
    """Return a Plan as Markdown."""
    if plan.empty:
        return "**kwokfleet:** no differences\n"
    out = [f"**kwokfleet:** {outcomes.summary(plan)}", ""]
    groups = outcomes.groups(plan.changes)
    if groups:
        out += ["| fleet | what | create | change | replace | delete |", "|---|---|--:|--:|--:|--:|"]
        out += [*map(_markdown_row, groups), ""]
    for withheld in plan.withheld:
        release = f" To allow it: `kwokfleet approve {withheld.digest}`." if withheld.digest else ""
        out += [f"> **withheld** ({withheld.cause}, {len(withheld.changes)}): {withheld.why}.{release}", ""]
    listed = [line for change in plan.changes[:MOST_IN_MARKDOWN] for line in change_lines(change)]
    if listed:
        more = len(plan.changes) - MOST_IN_MARKDOWN
        out += ["<details><summary>objects</summary>", "", "```", *listed]
        out += [f"… and {more} more"] if more > 0 else []
        out += ["```", "", "</details>", ""]
    return "\n".join(out)


def _markdown_row(group: outcomes.ChangeGroup) -> str:
    changed = ", ".join(f"{count} {title}" for title, count in group.fields) or group.counts["update"]
    cells = (group.title, group.counts["create"], changed, group.counts["replace"], group.counts["delete"])
    return f"| {group.fleet or '(shared)'} | {' | '.join(map(str, cells))} |"


def file_name(change: Change) -> str:
    """Return the file name of an object for diff tools, as kubectl diff has it."""
    return ".".join((change.key.api_version.replace("/", "."), *change.key[1:]))


def before_and_after(change: Change) -> tuple[str, str]:
    """Return the YAML of an object before and after a change."""
    live = "" if change.live is None else _sorted_yaml(change.live.manifest)
    return live, "" if change.action is ChangeAction.DELETE else _sorted_yaml(merged_manifest(change))


def _sorted_yaml(manifest: Manifest) -> str:
    """Return an object with sorted keys: the API server and kubectl order them differently."""
    return writer.to_yaml(orjson.loads(orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS)))


def merged_manifest(change: Change) -> Manifest:
    """Return an object after a change."""
    if change.live is None:
        return change.desired or {}
    # Not deepcopy: live objects share equal parts, and a change of one would appear in both.
    merged: Manifest = orjson.loads(orjson.dumps(change.live.manifest))
    for difference in change.differences:
        if difference.path[:2] in (diff.TAINTS, diff.ADDRESSES):
            entries = merged.setdefault(difference.path[0], {}).setdefault(difference.path[1], [])
            if difference.live is not ABSENT:
                entries.remove(difference.live)
            if difference.desired is not ABSENT:
                entries.append(difference.desired)
            continue
        part = merged
        for step in difference.path[:-1]:
            part = part.setdefault(step, {})
        if difference.desired is ABSENT:
            part.pop(difference.path[-1], None)
        else:
            part[difference.path[-1]] = difference.desired
    return merged


def unified_diff(change: Change) -> str:
    """Return the unified diff of a change."""
    live, after = before_and_after(change)
    before, title = live.splitlines(keepends=True), file_name(change)
    return "".join(difflib.unified_diff(before, after.splitlines(keepends=True), f"LIVE/{title}", f"MERGED/{title}"))
