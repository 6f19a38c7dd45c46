"""Plans for others to read: JSON for programs, Markdown for pull requests, unified diffs for eyes and diff tools."""

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
"""Objects that a Markdown report lists one by one: a comment has 65,536 characters."""


def to_json(made: Plan, *, whole: bool) -> str:
    """Return a plan as JSON; *whole* manifests of what is created, if wanted."""
    document = {
        "differs": not made.empty,
        "digest": digest(made.changes),
        "summary": _counts(made),
        "groups": [_group(group) for group in outcomes.groups(made.changes)],
        "changes": [_change(change, whole=whole) for change in made.changes],
        "withheld": [_withheld(each, whole=whole) for each in made.withheld],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _counts(made: Plan) -> dict[str, int]:
    counts = {action.value: sum(change.action is action for change in made.changes) for action in ChangeAction}
    return counts | {"withheld": sum(len(each.changes) for each in made.withheld)}


def _group(group: outcomes.ChangeGroup) -> dict[str, Any]:
    return {
        "fleet": group.fleet,
        "title": group.title,
        "create": group.created,
        "update": group.changed,
        "replace": group.replaced,
        "delete": group.deleted,
        "fields": dict(group.fields),
    }


def _change(change: Change, *, whole: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "action": change.action.value,
        "apiVersion": change.key.api_version,
        "kind": change.key.kind,
        "name": change.key.name,
        "fleet": change.fleet,
        "pool": change.pool,
        "reason": change.reason,
    }
    if change.key.namespace:
        found["namespace"] = change.key.namespace
    if change.differences:
        found["differences"] = [
            {"path": list(each.path)}
            | ({} if each.live is ABSENT else {"live": each.live})
            | ({} if each.desired is ABSENT else {"want": each.desired})
            for each in change.differences
        ]
    if whole and change.desired is not None:
        found["want"] = change.desired
    return found


def _withheld(each: Withheld, *, whole: bool) -> dict[str, Any]:
    found = {"cause": each.cause.value, "fleet": each.fleet, "why": each.why}
    if each.digest:
        found["digest"] = each.digest
    return found | {"changes": [_change(change, whole=whole) for change in each.changes]}


# ----------------------------------------------------------------------------------------
# for people


def object_name(change: Change) -> str:
    """Return what an object is called, with its kind."""
    inside = f"{change.key.namespace}/" if change.key.namespace else ""
    return f"{change.key.kind.lower()} {inside}{change.key.name}"


def change_lines(change: Change) -> Iterator[str]:
    """Yield a change, and below it each field that differs."""
    yield f"{SIGNS[change.action]} {object_name(change)}: {change.reason}"
    for each in change.differences:
        yield f"    {field_text(each.path)}: {value_text(each.live)} -> {value_text(each.desired)}"


def field_text(path: diff.Path) -> str:
    """Return a field as people write it: `metadata.labels["a.b/c"]`."""
    plain = all(step.replace("-", "").replace("_", "").isalnum() for step in path)
    if plain:
        return ".".join(path)
    text = ""
    for step in path:
        simple = step.replace("-", "").replace("_", "").isalnum()
        text += (f".{step}" if text else step) if simple else f'["{step}"]'
    return text


def value_text(what: Any) -> str:  # noqa: ANN401  # any part of a manifest
    """Return one side of a difference on one line."""
    return "(none)" if what is ABSENT else orjson.dumps(what).decode()


def to_markdown(made: Plan) -> str:
    """Return a plan as Markdown."""
    if made.empty:
        return "**kwokfleet:** no differences\n"
    out = [f"**kwokfleet:** {outcomes.summary(made)}", ""]
    shown = outcomes.groups(made.changes)
    if shown:
        out += ["| fleet | what | create | change | replace | delete |", "|---|---|--:|--:|--:|--:|"]
        out += [
            f"| {group.fleet or '(shared)'} | {group.title} | {group.created} | {_fields(group)} "
            f"| {group.replaced} | {group.deleted} |"
            for group in shown
        ]
        out.append("")
    for each in made.withheld:
        release = f" Release it with `kwokfleet approve {each.digest}`." if each.digest else ""
        out.append(f"> **withheld** ({each.cause}, {len(each.changes)}): {each.why}.{release}")
        out.append("")
    listed = [line for change in made.changes[:MOST_IN_MARKDOWN] for line in change_lines(change)]
    if listed:
        more = len(made.changes) - MOST_IN_MARKDOWN
        out += ["<details><summary>objects</summary>", "", "```", *listed]
        out += [f"… and {more} more"] if more > 0 else []
        out += ["```", "", "</details>", ""]
    return "\n".join(out)


def _fields(group: outcomes.ChangeGroup) -> str:
    return ", ".join(f"{count} {title}" for title, count in group.fields) or str(group.changed)


def file_name(change: Change) -> str:
    """Return the name under which diff tools are shown an object, as kubectl has it."""
    parts = (change.key.api_version.replace("/", "."), change.key.kind, change.key.namespace, change.key.name)
    return ".".join(parts)


def before_and_after(change: Change) -> tuple[str, str]:
    """Return an object as YAML before and after a change."""
    live = "" if change.live is None else writer.to_yaml(_sorted(change.live.manifest))
    return live, "" if change.action is ChangeAction.DELETE else writer.to_yaml(_sorted(merged_manifest(change)))


def _sorted(manifest: Manifest) -> Manifest:
    """Return an object in the order of its names: the API server and kubectl each have their own."""
    made: Manifest = orjson.loads(orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS))
    return made


def merged_manifest(change: Change) -> Manifest:
    """Return an object as it would be after a change."""
    if change.live is None:
        return change.desired or {}
    # Not deepcopy: equal parts of a live object are one, and would stay one, so that a change of one showed in both.
    made: Manifest = orjson.loads(orjson.dumps(change.live.manifest))
    for each in change.differences:
        if each.path[:2] in (diff.TAINTS, diff.ADDRESSES):
            entries = made.setdefault(each.path[0], {}).setdefault(each.path[1], [])
            if each.live is not ABSENT:
                entries.remove(each.live)
            if each.desired is not ABSENT:
                entries.append(each.desired)
            continue
        part = made
        for step in each.path[:-1]:
            part = part.setdefault(step, {})
        if each.desired is ABSENT:
            part.pop(each.path[-1], None)
        else:
            part[each.path[-1]] = each.desired
    return made


def unified_diff(change: Change) -> str:
    """Return a change as a unified diff of YAML."""
    live, after = before_and_after(change)
    title = file_name(change)
    found = difflib.unified_diff(
        live.splitlines(keepends=True), after.splitlines(keepends=True), f"LIVE/{title}", f"MERGED/{title}"
    )
    return "".join(found)
