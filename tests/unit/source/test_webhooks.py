"""What a webhook means."""

import base64
import hashlib
import hmac
import json
from typing import Any
from urllib.parse import quote_plus

import pytest

from kwokfleet.source import webhooks
from kwokfleet.source.webhooks import Meaning, Verdict

SECRET = "It's a Secret to Everybody"  # noqa: S105 - an example
NOW = 1_700_000_000.0


def github(body: bytes, *, event: str = "push", secret: str = SECRET) -> dict[str, str]:
    """Return the headers that GitHub would send."""
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {"X-GitHub-Event": event, "X-Hub-Signature-256": f"sha256={digest}"}


def signed(body: bytes, *, key: bytes, at: str = str(int(NOW)), event: str = "Push Hook") -> dict[str, str]:
    """Return the headers of a GitLab hook with a signing token."""
    digest = hmac.new(key, f"msg_1.{at}.".encode() + body, hashlib.sha256).digest()
    signature = "v1," + base64.b64encode(digest).decode()
    return {
        "X-Gitlab-Event": event,
        "webhook-id": "msg_1",
        "webhook-timestamp": at,
        "webhook-signature": signature,
    }


def push(ref: str = "refs/heads/main", **more: Any) -> bytes:  # noqa: ANN401 - any JSON
    """Return the body of a push."""
    return json.dumps({"ref": ref, **more}).encode()


def judge(headers: dict[str, str], body: bytes, *, secret: str = SECRET, ref: str = "main") -> Verdict:
    """Judge a hook that comes now."""
    return webhooks.judge(headers, body, secret=secret, ref=ref, now=NOW)


# who it is from


def test_github_s_own_example_is_trusted() -> None:
    """The signature that GitHub's guide prints for its secret and body."""
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    found = judge({"X-Hub-Signature-256": signature, "X-GitHub-Event": "ping"}, b"Hello, World!")
    assert found.meaning is Meaning.PING


def test_the_standard_s_own_example_is_trusted() -> None:
    """The signature that Standard Webhooks' libraries test themselves with."""
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        "x-gitlab-event": "Issue Hook",
    }
    body = b'{"test": 2432232314}'
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - the example's
    found = webhooks.judge(headers, body, secret=secret, ref="main", now=1614265330)
    assert found.meaning is Meaning.IGNORED
    assert found.authentic


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-GitHub-Event": "push"},
        {"X-Hub-Signature-256": ""},
        {"X-Hub-Signature-256": "sha256="},
        {"X-Hub-Signature-256": "sha256=" + "0" * 64},
        {"X-Hub-Signature": "sha1=" + hmac.new(SECRET.encode(), push(), hashlib.sha1).hexdigest()},
        {"X-Hub-Signature-256": hmac.new(SECRET.encode(), push(), hashlib.sha256).hexdigest()},
        github(push(), secret="another"),  # noqa: S106 - an example
        github(push("refs/heads/evil")),
        {"X-Gitlab-Token": ""},
        {"X-Gitlab-Token": SECRET + " "},
        {"X-Gitlab-Token": "\u00e9\udc80\ud800"},
        signed(push(), key=b"another"),
        {**signed(push(), key=SECRET.encode()), "webhook-id": "msg_2"},
        {**signed(push(), key=SECRET.encode()), "webhook-timestamp": str(int(NOW) + 1)},
        {"webhook-signature": "v1"},
    ],
)
def test_who_does_not_know_the_secret_is_refused(headers: dict[str, str]) -> None:
    """No signature, half a one, an old kind, another body's, another secret's."""
    found = judge({"X-GitHub-Event": "push", **headers}, push())
    assert found.meaning is Meaning.REFUSED
    assert not found.authentic
    assert SECRET not in found.why


def test_without_a_secret_nobody_is_trusted() -> None:
    """Not even who signs with nothing."""
    found = judge(github(push(), secret=""), push(), secret="")
    assert (found.meaning, found.authentic) == (Meaning.REFUSED, False)
    assert judge({"X-Gitlab-Token": ""}, push(), secret="").meaning is Meaning.REFUSED


@pytest.mark.parametrize("at", ["", "soon", "-1", "9" * 5000, str(int(NOW) - 301), str(int(NOW) + 301), "\u0661"])
def test_a_signed_hook_of_another_time_is_refused(at: str) -> None:
    """Somebody recorded it, or a clock is wrong."""
    assert judge(signed(push(), key=SECRET.encode(), at=at), push()).meaning is Meaning.REFUSED


def test_a_signing_token_s_key_is_in_base64() -> None:
    """`whsec_` and the key; several signatures may be given while keys change."""
    key = bytes(range(32))
    secret = "whsec_" + base64.b64encode(key).decode()
    headers = signed(push(), key=key)
    assert judge(headers, push(), secret=secret).meaning is Meaning.PUSH
    headers["webhook-signature"] = "v1,AAAA v1a,BBBB " + headers["webhook-signature"]
    assert judge(headers, push(), secret=secret).meaning is Meaning.PUSH


def test_one_proof_is_enough() -> None:
    """GitLab sends its token and its signature, of two secrets, if both are set."""
    headers = signed(push(), key=SECRET.encode()) | {"X-Gitlab-Token": "another"}
    assert judge(headers, push()).meaning is Meaning.PUSH
    headers = signed(push(), key=b"another") | {"X-Gitlab-Token": SECRET}
    assert judge(headers, push()).meaning is Meaning.PUSH


def test_headers_may_be_in_any_case() -> None:
    """HTTP does not care, so nor do we."""
    headers = {name.upper(): value for name, value in github(push()).items()}
    assert judge(headers, push()).meaning is Meaning.PUSH


# what it tells


@pytest.mark.parametrize(
    ("ref", "pushed", "meaning"),
    [
        ("main", "refs/heads/main", Meaning.PUSH),
        ("main", "refs/heads/other", Meaning.IGNORED),
        ("main", "refs/heads/main/sub", Meaning.IGNORED),
        ("v1", "refs/tags/v1", Meaning.PUSH),
        ("refs/heads/main", "refs/heads/main", Meaning.PUSH),
        ("refs/heads/main", "refs/tags/main", Meaning.IGNORED),
        ("1" * 40, "refs/heads/main", Meaning.IGNORED),
    ],
)
def test_only_pushes_to_what_is_followed_count(ref: str, pushed: str, meaning: Meaning) -> None:
    """By either name of the ref."""
    found = judge(github(push(pushed)), push(pushed), ref=ref)
    assert (found.meaning, found.ref) == (meaning, pushed)


@pytest.mark.parametrize("where", ["repository", "project"])
def test_who_follows_head_follows_the_default_branch(where: str) -> None:
    """Which GitHub names in one place and GitLab in another."""
    named = {where: {"default_branch": "trunk"}}
    for pushed, meaning in (("trunk", Meaning.PUSH), ("main", Meaning.IGNORED)):
        body = push(f"refs/heads/{pushed}", **named)
        assert judge({"X-Gitlab-Token": SECRET, "X-Gitlab-Event": "Push Hook"}, body, ref="HEAD").meaning is meaning
    assert judge(github(push()), push(), ref="HEAD").meaning is Meaning.PUSH  # not said: look
    assert judge(github(push("refs/tags/v1")), push("refs/tags/v1"), ref="HEAD").meaning is Meaning.IGNORED


@pytest.mark.parametrize("event", ["issues", "pull_request", "Merge Request Hook", ""])
def test_other_events_are_ignored(event: str) -> None:
    """They are genuine, and none of our business."""
    found = judge(github(push(), event=event), push())
    assert (found.meaning, found.authentic) == (Meaning.IGNORED, True)


def test_gitlab_s_tags_are_pushes() -> None:
    """They come under a name of their own."""
    headers = {"X-Gitlab-Token": SECRET, "X-Gitlab-Event": "Tag Push Hook"}
    assert judge(headers, push("refs/tags/v1"), ref="v1").meaning is Meaning.PUSH


def test_a_form_is_read_too() -> None:
    """GitHub sends one if nobody tells it otherwise."""
    body = b"payload=" + quote_plus(push(message="a + b & c")).encode()
    assert judge(github(body), body).meaning is Meaning.PUSH


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"1", b"null", b'"refs/heads/main"', b"{}", b'{"ref": 1}', b'{"ref": "main"}', b"\xff\x00",
     b"payload=", b"payload=%", b"[" * 100_000],
)  # fmt: skip
def test_a_malformed_push_is_refused(body: bytes) -> None:
    """It is genuine, so it is told what is wrong."""
    found = judge(github(body), body)
    assert (found.meaning, found.authentic) == (Meaning.REFUSED, True)
    assert "body" in found.why


def test_odd_descriptions_of_a_repository_do_no_harm() -> None:
    """Whatever stands where its default branch should be."""
    odds: tuple[Any, ...] = (None, 1, [], "x", {"default_branch": None}, {"default_branch": 7})
    for odd in odds:
        body = push(repository=odd, project=odd)
        assert judge(github(body), body, ref="HEAD").meaning in {Meaning.PUSH, Meaning.IGNORED}
