"""Why the API server refuses an object, and whether that may pass.

A quota frees up when objects complete; a namespace that is being deleted is made anew; a new one needs a moment.
"""

import re
from collections.abc import Mapping

from kwokfleet.kube.requests import Response

_QUOTED = re.compile(r'^\S+ "[^"]*" is (forbidden|invalid): ')
_PASSING = ("exceeded quota", "error looking up service account", "because it is being terminated")
_MOST_SAID = 3
_FORBIDDEN, _NOT_FOUND, _CONFLICT = 403, 404, 409


def is_transient(answer: Response) -> bool:
    """Return whether the same request may be answered otherwise before long."""
    if answer.status == _FORBIDDEN:
        return any(words in answer.message for words in _PASSING)
    if answer.status == _NOT_FOUND:
        return bool((answer.json().get("details") or {}).get("kind") == "namespaces")
    return answer.status == _CONFLICT and "object is being deleted" in answer.message


def reason_text(answer: Response) -> str:
    """Return what is wrong, without the object's name, so that it is the same for all that it is wrong with."""
    return f"{answer.status} {_QUOTED.sub('', answer.message)}"


def summary(groups: Mapping[str, tuple[int, str]]) -> str:
    """Return in a line what was refused: by reason, how many objects, and the first of them."""
    most = sorted(groups.items(), key=lambda each: (-each[1][0], each[0]))
    told = [f"{example}{f' and {count - 1} more' if count > 1 else ''}: {what}" for what, (count, example) in most]
    return "; ".join((*told[:_MOST_SAID], *(["…"] if len(told) > _MOST_SAID else [])))


def is_budget_rejection(answer: Response) -> bool:
    """Return whether an eviction was refused by a PodDisruptionBudget."""
    return bool(budget_messages(answer))


def budget_messages(answer: Response) -> list[str]:
    """Return what the API server says of each budget: only here it names them."""
    causes = (answer.json().get("details") or {}).get("causes") or ()
    return [each.get("message") or "" for each in causes if each.get("reason") == "DisruptionBudget"]
