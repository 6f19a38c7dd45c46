"""Webhooks of git hosts: authentication, and whether they announce a push to the ref we follow.

GitHub, Gitea and Forgejo sign the body: `X-Hub-Signature-256`. GitLab sends the secret itself,
`X-Gitlab-Token`, or a Standard Webhooks signature over id, time and body: `webhook-signature`. A
webhook only triggers a fetch, so a repeated webhook does no harm.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib import parse

import orjson

MAX_AGE_S = 300.0
"""Largest clock difference of a signed webhook: five minutes, as Standard Webhooks recommends."""
_KEY_PREFIX = "whsec_"
_MAX_DIGITS = 20


Decision = tuple[HTTPStatus, str]
"""The response to a webhook, and the reason. 202: fetch; 200: nothing to fetch; 400: malformed; 401: not authentic."""


def evaluate(headers: Mapping[str, str], body: bytes, *, secret: str, ref: str, now: float) -> Decision:
    """Decide on a webhook for a source that follows *ref*; *now* in seconds since 1970.

    Header names may be in any case. The secret is checked before the body is parsed.
    """
    sent = {name.lower(): value for name, value in headers.items()}
    error = _authentication_error(sent, body, secret, now)
    if error:
        return HTTPStatus.UNAUTHORIZED, error
    event = sent.get("x-github-event") or sent.get("x-gitlab-event") or ""
    if event == "ping":
        return HTTPStatus.OK, "the webhook works"
    if event not in {"push", "Push Hook", "Tag Push Hook"}:
        return HTTPStatus.OK, f"event {_excerpt(event)} is not a push" if event else "no event header"
    return _push(body, ref)


def _authentication_error(sent: Mapping[str, str], body: bytes, secret: str, now: float) -> str:
    """Return why a webhook is not authentic; empty if it is.

    One valid proof is enough: GitLab may send two, with different secrets.
    """
    if not secret:
        return "no webhook secret is configured"
    checks = {"x-hub-signature-256": _github, "webhook-signature": _standard, "x-gitlab-token": _gitlab}
    failures = [check(sent[name], sent, body, secret, now) for name, check in checks.items() if name in sent]
    if not failures:
        return "the webhook is not signed: set its secret at the git host"
    return "" if "" in failures else failures[0]


_BAD_SIGNATURE = "invalid signature: the secrets differ, or the body was changed"


def _github(signature: str, _: Mapping[str, str], body: bytes, secret: str, __: float) -> str:
    expected = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return "" if _same(signature.strip(), expected) else _BAD_SIGNATURE


def _gitlab(token: str, _: Mapping[str, str], __: bytes, secret: str, ___: float) -> str:
    return "" if _same(token, secret) else "invalid token: the secrets differ"


def _standard(signatures: str, sent: Mapping[str, str], body: bytes, secret: str, now: float) -> str:
    """Check Standard Webhooks signatures; there may be several, of old and new keys."""
    timestamp = sent.get("webhook-timestamp", "")
    signed = f"{sent.get('webhook-id', '')}.{timestamp}.".encode("utf-8", "surrogatepass") + body
    expected = "v1," + base64.b64encode(hmac.new(_key(secret), signed, hashlib.sha256).digest()).decode()
    if not any(_same(signature, expected) for signature in signatures.split()):
        return _BAD_SIGNATURE
    is_number = len(timestamp) < _MAX_DIGITS and timestamp.isascii() and timestamp.isdigit()
    fresh = is_number and abs(now - int(timestamp)) <= MAX_AGE_S
    return "" if fresh else f"the timestamp is missing or more than {MAX_AGE_S:g} s off: check the clocks"


def _key(secret: str) -> bytes:
    """Return the key of a signing token: `whsec_` and base64, or else the text itself."""
    if secret.startswith(_KEY_PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(_KEY_PREFIX), validate=True)
        except binascii.Error:
            pass
    return secret.encode()


def _same(received: str, expected: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(received.encode("utf-8", "surrogatepass"), expected.encode())


def _push(body: bytes, ref: str) -> Decision:
    try:
        payload: Any = orjson.loads(_json(body))
    except orjson.JSONDecodeError:
        return HTTPStatus.BAD_REQUEST, "the body is not JSON: set the content type application/json at the git host"
    pushed = payload.get("ref") if isinstance(payload, dict) else None
    if not isinstance(pushed, str) or not pushed.startswith("refs/"):
        return HTTPStatus.BAD_REQUEST, "the body has no ref"
    if not _follows(ref, pushed, payload):
        return HTTPStatus.OK, f"{_excerpt(pushed)} is not the ref of this source"
    return HTTPStatus.ACCEPTED, f"{_excerpt(pushed)} was pushed"


def _json(body: bytes) -> bytes:
    """Return the JSON of a body; GitHub sends a form by default."""
    if not body.startswith(b"payload="):
        return body
    return parse.unquote_to_bytes(body.removeprefix(b"payload=").replace(b"+", b" "))


def _follows(ref: str, pushed: str, payload: Mapping[str, Any]) -> bool:
    """Return whether a push concerns *ref*; HEAD means the default branch."""
    if ref != "HEAD":
        return pushed in {ref, f"refs/heads/{ref}", f"refs/tags/{ref}"}
    repositories = [payload[name] for name in ("repository", "project") if isinstance(payload.get(name), dict)]
    defaults = {f"refs/heads/{branch}" for repository in repositories if (branch := repository.get("default_branch"))}
    return pushed in defaults if defaults else pushed.startswith("refs/heads/")


def _excerpt(text: str) -> str:
    return repr(text[:100])
