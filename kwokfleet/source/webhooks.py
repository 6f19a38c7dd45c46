"""What a webhook means: whether it is from who knows the secret, and tells of a push to what we follow.

GitHub (and Gitea, Forgejo) sign the body: `X-Hub-Signature-256`. GitLab sends the secret itself,
`X-Gitlab-Token`, or signs as Standard Webhooks has it: `webhook-signature`, over id, time and
body. A hook only ever asks to look at the repository; what is there is what counts, so a hook sent
twice does no harm.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any
from urllib import parse

import orjson

MAX_AGE_S = 300.0
"""How far the time in a signed hook may be from ours: Standard Webhooks' five minutes."""
_KEY_PREFIX = "whsec_"
_MOST_DIGITS = 20


class Meaning(Enum):
    """What to do about a hook."""

    REFUSED = auto()
    """It is from who knows no secret, or cannot be read."""
    IGNORED = auto()
    """It is genuine, and none of our business."""
    PING = auto()
    """It is a test of the connection."""
    PUSH = auto()
    """Our branch or tag has moved: look at the repository."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a hook means, and why."""

    meaning: Meaning
    why: str
    ref: str = ""
    """What was pushed to, in full: `refs/heads/main`."""
    authentic: bool = True
    """Whether it is from who knows the secret: what is refused else is merely malformed."""


def judge(headers: Mapping[str, str], body: bytes, *, secret: str, ref: str, now: float) -> Verdict:
    """Decide what a hook means to who follows *ref*; *now* in seconds since 1970.

    Header names may be in any case. The secret is checked before anything is read.
    """
    sent = {name.lower(): value for name, value in headers.items()}
    refusal = _refusal(sent, body, secret, now)
    if refusal:
        return Verdict(Meaning.REFUSED, refusal, authentic=False)
    event = sent.get("x-github-event") or sent.get("x-gitlab-event") or ""
    if event == "ping":
        return Verdict(Meaning.PING, "the hook works")
    if event not in {"push", "Push Hook", "Tag Push Hook"}:
        return Verdict(Meaning.IGNORED, f"{_shown(event)} is no push" if event else "it names no event")
    return _push(body, ref)


def _refusal(sent: Mapping[str, str], body: bytes, secret: str, now: float) -> str:
    """Return why a hook is not to be trusted; empty if it is.

    One proof is enough: GitLab may send two, with different secrets, and who would forge one would leave out the other.
    """
    if not secret:
        return "no secret is set here"
    refusals = [
        proof(sent[name], sent, body, secret, now)
        for name, proof in (
            ("x-hub-signature-256", _github),
            ("webhook-signature", _standard),
            ("x-gitlab-token", _gitlab),
        )
        if name in sent
    ]
    if not refusals:
        return "it is not signed: set the hook's secret"
    return "" if "" in refusals else refusals[0]


_WRONG = "its signature is wrong: the secrets differ, or the body was changed"


def _github(given: str, _: Mapping[str, str], body: bytes, secret: str, __: float) -> str:
    wanted = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return "" if _same(given.strip(), wanted) else _WRONG


def _gitlab(given: str, _: Mapping[str, str], __: bytes, secret: str, ___: float) -> str:
    return "" if _same(given, secret) else "its token is wrong: the secrets differ"


def _standard(given: str, sent: Mapping[str, str], body: bytes, secret: str, now: float) -> str:
    """Check a signature as Standard Webhooks defines it; there may be several, of old and new keys."""
    at = sent.get("webhook-timestamp", "")
    said = f"{sent.get('webhook-id', '')}.{at}.".encode("utf-8", "surrogatepass") + body
    wanted = "v1," + base64.b64encode(hmac.new(_key(secret), said, hashlib.sha256).digest()).decode()
    if not any(_same(each, wanted) for each in given.split()):
        return _WRONG
    fresh = len(at) < _MOST_DIGITS and at.isascii() and at.isdigit() and abs(now - int(at)) <= MAX_AGE_S
    return "" if fresh else "it is too old, or a clock is wrong"


def _key(secret: str) -> bytes:
    """Return the key of a signing token: `whsec_` and the key in base64; else the text itself."""
    if secret.startswith(_KEY_PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(_KEY_PREFIX), validate=True)
        except binascii.Error:
            pass
    return secret.encode()


def _same(given: str, wanted: str) -> bool:
    """Compare in a time that does not tell how much is right."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode())


def _push(body: bytes, ref: str) -> Verdict:
    try:
        told: Any = orjson.loads(_json(body))
    except orjson.JSONDecodeError:
        return Verdict(Meaning.REFUSED, "its body is not JSON: let it send application/json")
    pushed = told.get("ref") if isinstance(told, dict) else None
    if not isinstance(pushed, str) or not pushed.startswith("refs/"):
        return Verdict(Meaning.REFUSED, "its body names no ref")
    if not _follows(ref, pushed, told):
        return Verdict(Meaning.IGNORED, f"{_shown(pushed)} is not followed here", pushed)
    return Verdict(Meaning.PUSH, f"{_shown(pushed)} was pushed", pushed)


def _json(body: bytes) -> bytes:
    """Return the JSON of a body; GitHub sends it as a form if nobody tells it otherwise."""
    if not body.startswith(b"payload="):
        return body
    return parse.unquote_to_bytes(body.removeprefix(b"payload=").replace(b"+", b" "))


def _follows(ref: str, pushed: str, told: Mapping[str, Any]) -> bool:
    """Return whether who follows *ref* should look: a push to it; for HEAD, one to the default branch."""
    if ref != "HEAD":
        return pushed in {ref, f"refs/heads/{ref}", f"refs/tags/{ref}"}
    about = [told[name] for name in ("repository", "project") if isinstance(told.get(name), dict)]
    defaults = {f"refs/heads/{each['default_branch']}" for each in about if each.get("default_branch")}
    return pushed in defaults if defaults else pushed.startswith("refs/heads/")


def _shown(text: str) -> str:
    return repr(text[:100])
