"""Revisions, and the parsing of git's output and files."""

import pytest

from kwokfleet.source import git_command, revision
from kwokfleet.source.revision import Revision

A, B = "a" * 40, "b" * 40


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Revision(A, "main"), "main@aaaaaaa"),
        (Revision(A, "main", dirty=True), "main@aaaaaaa+"),
        (Revision(A, dirty=None), "aaaaaaa"),
        (Revision("c" * 64), "ccccccc"),
        (Revision(digest="0123456789abcdef"), "sha256:0123456789ab"),
        (Revision(), "unknown"),
    ],
)
def test_a_revision_is_formatted_as_branch_and_short_commit(value: Revision, text: str) -> None:
    """A plus marks uncommitted changes; without a commit, the digest is shown."""
    assert str(value) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"# branch.oid {A}\n# branch.head main\n", Revision(A, "main")),
        (f"# branch.oid {A}\n# branch.head (detached)\n", Revision(A)),
        (f"# branch.oid {A}\n# branch.head main\n# branch.ab +1 -0\n? new.yaml\n", Revision(A, "main", dirty=True)),
        ("# branch.oid (initial)\n# branch.head main\n", None),
        ("", None),
    ],
)
def test_git_status_is_parsed(text: str, expected: Revision | None) -> None:
    """Commit, branch and dirty flag; None before the first commit."""
    assert revision.parse_status(text) == expected


@pytest.mark.parametrize(
    ("name", "commit"),
    [(A, A), (f"rev-{A}", A), ("c" * 64, "c" * 64), ("..2026_01_01", ""), ("a" * 39, ""), (A.upper(), ""), ("", "")],
)
def test_git_sync_folders_are_recognised_by_name(name: str, commit: str) -> None:
    """Both layouts of git-sync; other names have no commit."""
    assert revision.commit_of_folder(name) == commit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{A}\n", (A, "")),
        ("ref: refs/heads/main\n", ("", "refs/heads/main")),
        ("ref: refs/../../secret\n", ("", "")),
        ("ref: refs/heads/.invalid\n", ("", "")),
        ("ref: /etc/passwd\n", ("", "")),
        ("", ("", "")),
    ],
)
def test_git_head_is_parsed(text: str, expected: tuple[str, str]) -> None:
    """A commit, or a ref inside the repository."""
    assert revision.parse_head(text) == expected


def test_packed_refs_are_matched_by_full_name() -> None:
    """A prefix does not match."""
    text = f"# pack-refs with: peeled\n{A} refs/heads/main-2\n{B} refs/heads/main\n^{A}\n"
    assert revision.parse_packed_refs(text, "refs/heads/main") == B
    assert revision.parse_packed_refs(text, "refs/heads/mai") == ""


# remote refs


@pytest.mark.parametrize(
    ("ref", "text", "expected"),
    [
        ("main", f"{A}\trefs/heads/main\n", git_command.RemoteRef("refs/heads/main", A, "main")),
        ("x", f"{A}\trefs/tags/x\n{B}\trefs/heads/x\n", git_command.RemoteRef("refs/heads/x", B, "x")),
        ("v1", f"{A}\trefs/tags/v1\n{B}\trefs/tags/v1^{{}}\n", git_command.RemoteRef("refs/tags/v1", B, "v1")),
        ("HEAD", f"ref: refs/heads/trunk\tHEAD\n{A}\tHEAD\n", git_command.RemoteRef("HEAD", A, "trunk")),
        ("HEAD", f"{A}\tHEAD\n", git_command.RemoteRef("HEAD", A, "")),
        (
            "refs/pull/7/head",
            f"{A}\trefs/pull/7/head\n",
            git_command.RemoteRef("refs/pull/7/head", A, "refs/pull/7/head"),
        ),
        ("main", f"{A}\trefs/heads/feature/refs/heads/main\n", None),
        ("main", "", None),
    ],
)
def test_a_branch_has_precedence_over_a_tag(ref: str, text: str, expected: git_command.RemoteRef | None) -> None:
    """An annotated tag is its commit; HEAD is the branch it points to."""
    assert git_command.parse_ls_remote(text, ref) == expected


# URLs, refs and paths


@pytest.mark.parametrize(
    "url",
    [
        "https://host/a.git",
        "ssh://git@host:22/a",
        "git@host:a/b.git",
        "/srv/git/a.git",
        "file:///srv/a",
        "git://host/a",
    ],
)
def test_common_urls_are_accepted(url: str) -> None:
    """All protocols that git supports without a helper."""
    assert git_command.url_error(url) == ""


@pytest.mark.parametrize(
    "url",
    [
        "",
        " ",
        "-u./x",
        "--upload-pack=touch /tmp/x",
        "ext::sh -c x",
        "fd::3",
        "ftp://host/a",
        "https://host/\nx",
        "a\x7f",
    ],
)
def test_urls_that_run_commands_are_rejected(url: str) -> None:
    """Options, helpers, other protocols, line breaks."""
    assert git_command.url_error(url)


@pytest.mark.parametrize("ref", ["main", "feature/x-1", "v1.2.3", "HEAD", "refs/pull/7/head", A])
def test_common_refs_are_accepted(ref: str) -> None:
    """Branches, tags, commits."""
    assert git_command.ref_error(ref) == ""


@pytest.mark.parametrize(
    "ref",
    ["", "-x", "--upload-pack=x", "a b", "a..b", "a:b", "a^", "a~1", "a*", "@{-1}", "@", "/a", "a/", "a.lock",
     ".a", "a/.b", "a\n", "x" * 300],
)  # fmt: skip
def test_refs_with_another_meaning_to_git_are_rejected(ref: str) -> None:
    """Options, ranges, refspecs, patterns."""
    assert git_command.ref_error(ref)


@pytest.mark.parametrize(("path", "inside"), [("", ""), (".", ""), ("./a/", "a"), ("a//b", "a/b"), ("a/..b", "a/..b")])
def test_paths_in_the_repository_are_normalized(path: str, inside: str) -> None:
    """The root is the empty path."""
    assert git_command.path_error(path) == ""
    assert git_command.normalize_path(path) == inside


@pytest.mark.parametrize("path", ["/etc", "..", "a/../..", "../x", ".git/hooks", "a/.GIT", "a\0b"])
def test_paths_outside_the_repository_are_rejected(path: str) -> None:
    """The .git folder is rejected too."""
    assert git_command.path_error(path)


# messages and environment


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("https://me:p@ss@host/a.git", "https://host/a.git"),
        ("https://token@host/a.git?key=1", "https://host/a.git"),
        ("fatal: no 'https://me:pw@host/a': x", "fatal: no 'https://host/a': x"),
        ("http://a:b@c/d and http://e:f@g/h", "http://c/d and http://g/h"),
        ("git@host:a/b.git", "git@host:a/b.git"),
        ("why? no", "why? no"),
    ],
)
def test_passwords_are_redacted(text: str, redacted: str) -> None:
    """In every URL, anywhere in a text."""
    assert git_command.redact(text) == redacted


def test_an_error_is_summarized_by_its_most_specific_line() -> None:
    """Without passwords, and with a hint."""
    stderr = "warning: x\nremote: hm\nfatal: Authentication failed for 'https://me:pw@host/a'\n"
    assert git_command.error_summary(stderr) == "Authentication failed for 'https://host/a'"
    assert "credentials" in git_command.error_hint(stderr)
    assert git_command.error_summary("") == "no error output"
    assert git_command.error_hint("something new")


def test_git_environment_keeps_credentials_and_drops_locations() -> None:
    """Variables that redirect git, prompt or print secrets are removed."""
    inherited = {"GIT_DIR": "/x", "GIT_INDEX_FILE": "/y", "GIT_TRACE_CURL": "1", "GIT_ASKPASS": "/ask",
                 "GIT_SSH_COMMAND": "ssh -i k", "SSH_AUTH_SOCK": "/s", "GIT_TERMINAL_PROMPT": "1"}  # fmt: skip
    environment = git_command.environment(inherited, {"GIT_DIR": "/ours"})
    assert environment["GIT_DIR"] == "/ours"
    assert {"GIT_INDEX_FILE", "GIT_TRACE_CURL"}.isdisjoint(environment)
    assert (environment["GIT_ASKPASS"], environment["GIT_SSH_COMMAND"], environment["SSH_AUTH_SOCK"]) == (
        "/ask",
        "ssh -i k",
        "/s",
    )
    assert environment["GIT_TERMINAL_PROMPT"] == "0"
    assert "ext" not in environment["GIT_ALLOW_PROTOCOL"].split(":")
