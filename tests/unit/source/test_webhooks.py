"""Webhooks of git hosts."""

import base64
import hashlib
import hmac
import json
from http import HTTPStatus
from typing import Any
from urllib.parse import quote_plus

import pytest

from kwokfleet.source import webhooks

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


def evaluate(headers: dict[str, str], body: bytes, *, secret: str = SECRET, ref: str = "main") -> webhooks.Decision:
    """Evaluate a webhook that arrives now."""
    return webhooks.evaluate(headers, body, secret=secret, ref=ref, now=NOW)


# authentication


def test_github_example_is_authentic() -> None:
    """The signature in GitHub's guide matches its secret and body."""
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    decision = evaluate({"X-Hub-Signature-256": signature, "X-GitHub-Event": "ping"}, b"Hello, World!")
    assert decision == (HTTPStatus.OK, "the webhook works")


def test_standard_webhooks_example_is_authentic() -> None:
    """The signature that the Standard Webhooks libraries use in their tests."""
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        "x-gitlab-event": "Issue Hook",
    }
    body = b'{"test": 2432232314}'
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - the example's
    status, _ = webhooks.evaluate(headers, body, secret=secret, ref="main", now=1614265330)
    assert status is HTTPStatus.OK


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
def test_wrong_signature_is_rejected(headers: dict[str, str]) -> None:
    """A missing, partial or SHA-1 signature, or one of another body or secret."""
    status, reason = evaluate({"X-GitHub-Event": "push", **headers}, push())
    assert status is HTTPStatus.UNAUTHORIZED
    assert SECRET not in reason


def test_without_a_secret_every_webhook_is_rejected() -> None:
    """An empty secret never authenticates."""
    assert evaluate(github(push(), secret=""), push(), secret="")[0] is HTTPStatus.UNAUTHORIZED
    assert evaluate({"X-Gitlab-Token": ""}, push(), secret="")[0] is HTTPStatus.UNAUTHORIZED


@pytest.mark.parametrize("at", ["", "soon", "-1", "9" * 5000, str(int(NOW) - 301), str(int(NOW) + 301), "\u0661"])
def test_old_signed_webhook_is_rejected(at: str) -> None:
    """It may be a replay."""
    assert evaluate(signed(push(), key=SECRET.encode(), at=at), push())[0] is HTTPStatus.UNAUTHORIZED


def test_key_of_a_signing_token_is_base64() -> None:
    """`whsec_` and the key; several signatures may be sent during a key rotation."""
    key = bytes(range(32))
    secret = "whsec_" + base64.b64encode(key).decode()
    headers = signed(push(), key=key)
    assert evaluate(headers, push(), secret=secret)[0] is HTTPStatus.ACCEPTED
    headers["webhook-signature"] = "v1,AAAA v1a,BBBB " + headers["webhook-signature"]
    assert evaluate(headers, push(), secret=secret)[0] is HTTPStatus.ACCEPTED


def test_one_valid_proof_is_enough() -> None:
    """GitLab sends a token and a signature, with two secrets, if both are set."""
    headers = signed(push(), key=SECRET.encode()) | {"X-Gitlab-Token": "another"}
    assert evaluate(headers, push())[0] is HTTPStatus.ACCEPTED
    headers = signed(push(), key=b"another") | {"X-Gitlab-Token": SECRET}
    assert evaluate(headers, push())[0] is HTTPStatus.ACCEPTED


def test_headers_may_be_in_any_case() -> None:
    """HTTP header names are case-insensitive."""
    headers = {name.upper(): value for name, value in github(push()).items()}
    assert evaluate(headers, push())[0] is HTTPStatus.ACCEPTED


# pushes


@pytest.mark.parametrize(
    ("ref", "pushed", "expected"),
    [
        ("main", "refs/heads/main", HTTPStatus.ACCEPTED),
        ("main", "refs/heads/other", HTTPStatus.OK),
        ("main", "refs/heads/main/sub", HTTPStatus.OK),
        ("v1", "refs/tags/v1", HTTPStatus.ACCEPTED),
        ("refs/heads/main", "refs/heads/main", HTTPStatus.ACCEPTED),
        ("refs/heads/main", "refs/tags/main", HTTPStatus.OK),
        ("1" * 40, "refs/heads/main", HTTPStatus.OK),
    ],
)
def test_only_pushes_to_the_ref_trigger_a_fetch(ref: str, pushed: str, expected: HTTPStatus) -> None:
    """The ref may be short or full."""
    status, reason = evaluate(github(push(pushed)), push(pushed), ref=ref)
    assert status is expected
    assert pushed in reason


@pytest.mark.parametrize("where", ["repository", "project"])
def test_head_means_the_default_branch(where: str) -> None:
    """GitHub names it in `repository`, GitLab in `project`."""
    named = {where: {"default_branch": "trunk"}}
    for pushed, expected in (("trunk", HTTPStatus.ACCEPTED), ("main", HTTPStatus.OK)):
        body = push(f"refs/heads/{pushed}", **named)
        assert evaluate({"X-Gitlab-Token": SECRET, "X-Gitlab-Event": "Push Hook"}, body, ref="HEAD")[0] is expected
    assert (
        evaluate(github(push()), push(), ref="HEAD")[0] is HTTPStatus.ACCEPTED
    )  # no default branch in the body: fetch
    assert evaluate(github(push("refs/tags/v1")), push("refs/tags/v1"), ref="HEAD")[0] is HTTPStatus.OK


@pytest.mark.parametrize("event", ["issues", "pull_request", "Merge Request Hook", ""])
def test_other_events_are_ignored(event: str) -> None:
    """They are authentic, but not pushes."""
    assert evaluate(github(push(), event=event), push())[0] is HTTPStatus.OK


def test_gitlab_tag_push_is_a_push() -> None:
    """GitLab has a separate event for tags."""
    headers = {"X-Gitlab-Token": SECRET, "X-Gitlab-Event": "Tag Push Hook"}
    assert evaluate(headers, push("refs/tags/v1"), ref="v1")[0] is HTTPStatus.ACCEPTED


def test_form_body_is_parsed() -> None:
    """GitHub sends a form by default."""
    body = b"payload=" + quote_plus(push(message="a + b & c")).encode()
    assert evaluate(github(body), body)[0] is HTTPStatus.ACCEPTED


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"1", b"null", b'"refs/heads/main"', b"{}", b'{"ref": 1}', b'{"ref": "main"}', b"\xff\x00",
     b"payload=", b"payload=%", b"[" * 100_000],
)  # fmt: skip
def test_malformed_push_is_rejected(body: bytes) -> None:
    """It is authentic; the reason names the body."""
    status, reason = evaluate(github(body), body)
    assert status is HTTPStatus.BAD_REQUEST
    assert "body" in reason


def test_invalid_repository_values_are_tolerated() -> None:
    """Any JSON may be in place of the default branch."""
    odds: tuple[Any, ...] = (None, 1, [], "x", {"default_branch": None}, {"default_branch": 7})
    for odd in odds:
        body = push(repository=odd, project=odd)
        assert evaluate(github(body), body, ref="HEAD")[0] in {HTTPStatus.ACCEPTED, HTTPStatus.OK}
