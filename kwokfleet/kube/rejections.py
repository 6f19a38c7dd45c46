"""Rejections of the API server: the reason, and whether a later try may succeed.

A quota frees up when objects complete, a terminating namespace is created again, a new one needs a moment.
"""

import re
from collections.abc import Mapping

from kwokfleet.kube.requests import Response

_OBJECT_PREFIX = re.compile(r'^\S+ "[^"]*" is (forbidden|invalid): ')
_TRANSIENT = ("exceeded quota", "error looking up service account", "because it is being terminated")
_MAX_REASONS = 3
_FORBIDDEN, _NOT_FOUND, _CONFLICT = 403, 404, 409


def is_transient(response: Response) -> bool:
    """Return whether the same request may succeed soon."""
    if response.status == _FORBIDDEN:
        return any(text in response.message for text in _TRANSIENT)
    is_deleting = response.status == _CONFLICT and "object is being deleted" in response.message
    return is_deleting or is_missing_namespace(response)


def is_missing_namespace(response: Response) -> bool:
    """Return whether the namespace of an object does not exist."""
    return response.status == _NOT_FOUND and (response.json().get("details") or {}).get("kind") == "namespaces"


def reason_text(response: Response) -> str:
    """Return the reason without the object's name, so that equal reasons are equal texts."""
    return f"{response.status} {_OBJECT_PREFIX.sub('', response.message)}"


def summary(groups: Mapping[str, tuple[int, str]]) -> str:
    """Return one line about rejected objects; *groups*: reason -> (number of objects, first object)."""
    by_count = sorted(groups.items(), key=lambda group: (-group[1][0], group[0]))
    texts = [f"{first}{f' and {count - 1} more' if count > 1 else ''}: {reason}" for reason, (count, first) in by_count]
    return "; ".join((*texts[:_MAX_REASONS], *(["…"] if len(texts) > _MAX_REASONS else [])))


def is_budget_rejection(response: Response) -> bool:
    """Return whether a PodDisruptionBudget rejected an eviction."""
    return bool(budget_messages(response))


def budget_messages(response: Response) -> list[str]:
    """Return the message of each PodDisruptionBudget; only these messages name the budget."""
    causes = (response.json().get("details") or {}).get("causes") or ()
    return [cause.get("message") or "" for cause in causes if cause.get("reason") == "DisruptionBudget"]
