"""Revisions, and git as far as it needs no running."""

import pytest

from kwokfleet.source import git_command, revision
from kwokfleet.source.revision import Revision

A, B = "a" * 40, "b" * 40


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (Revision(A, "main"), "main@aaaaaaa"),
        (Revision(A, "main", dirty=True), "main@aaaaaaa+"),
        (Revision(A, dirty=None), "aaaaaaa"),
        (Revision("c" * 64), "ccccccc"),
        (Revision(digest="0123456789abcdef"), "sha256:0123456789ab"),
        (Revision(), "unknown"),
    ],
)
def test_a_revision_is_shown_shortly(given: Revision, shown: str) -> None:
    """Branch and commit, as git shows them; a plus for files that differ; a digest where there is no commit."""
    assert str(given) == shown


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"# branch.oid {A}\n# branch.head main\n", Revision(A, "main")),
        (f"# branch.oid {A}\n# branch.head (detached)\n", Revision(A)),
        (f"# branch.oid {A}\n# branch.head main\n# branch.ab +1 -0\n? new.yaml\n", Revision(A, "main", dirty=True)),
        ("# branch.oid (initial)\n# branch.head main\n", None),
        ("", None),
    ],
)
def test_git_s_status_is_read(text: str, found: Revision | None) -> None:
    """Commit, branch and whether something differs; None before the first commit."""
    assert revision.parse_status(text) == found


@pytest.mark.parametrize(
    ("name", "commit"),
    [(A, A), (f"rev-{A}", A), ("c" * 64, "c" * 64), ("..2026_01_01", ""), ("a" * 39, ""), (A.upper(), ""), ("", "")],
)
def test_git_sync_s_folders_are_known_by_their_names(name: str, commit: str) -> None:
    """Of both its layouts, and nobody else's."""
    assert revision.commit_of_folder(name) == commit


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{A}\n", (A, "")),
        ("ref: refs/heads/main\n", ("", "refs/heads/main")),
        ("ref: refs/../../secret\n", ("", "")),
        ("ref: refs/heads/.invalid\n", ("", "")),
        ("ref: /etc/passwd\n", ("", "")),
        ("", ("", "")),
    ],
)
def test_git_s_head_is_read(text: str, found: tuple[str, str]) -> None:
    """A commit, or a ref that cannot lead anywhere else."""
    assert revision.parse_head(text) == found


def test_packed_refs_are_found_by_their_whole_name() -> None:
    """Not by a part of it."""
    text = f"# pack-refs with: peeled\n{A} refs/heads/main-2\n{B} refs/heads/main\n^{A}\n"
    assert revision.parse_packed_refs(text, "refs/heads/main") == B
    assert revision.parse_packed_refs(text, "refs/heads/mai") == ""


# what a name stands for elsewhere


@pytest.mark.parametrize(
    ("ref", "text", "found"),
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
def test_a_name_stands_for_a_branch_before_a_tag(ref: str, text: str, found: git_command.RemoteRef | None) -> None:
    """A tag with a message stands for the commit it is on; HEAD for the branch it names."""
    assert git_command.parse_ls_remote(text, ref) == found


# what people give


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
def test_usual_addresses_are_taken(url: str) -> None:
    """Of all the kinds that git knows by itself."""
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
def test_addresses_that_run_something_are_refused(url: str) -> None:
    """Options, helpers, other protocols, lines."""
    assert git_command.url_error(url)


@pytest.mark.parametrize("ref", ["main", "feature/x-1", "v1.2.3", "HEAD", "refs/pull/7/head", A])
def test_usual_refs_are_taken(ref: str) -> None:
    """Branches, tags, commits."""
    assert git_command.ref_error(ref) == ""


@pytest.mark.parametrize(
    "ref",
    ["", "-x", "--upload-pack=x", "a b", "a..b", "a:b", "a^", "a~1", "a*", "@{-1}", "@", "/a", "a/", "a.lock",
     ".a", "a/.b", "a\n", "x" * 300],
)  # fmt: skip
def test_refs_that_git_would_take_for_something_else_are_refused(ref: str) -> None:
    """Options, ranges, refspecs, patterns."""
    assert git_command.ref_error(ref)


@pytest.mark.parametrize(("path", "inside"), [("", ""), (".", ""), ("./a/", "a"), ("a//b", "a/b"), ("a/..b", "a/..b")])
def test_paths_inside_are_made_plain(path: str, inside: str) -> None:
    """The top is nothing at all."""
    assert git_command.path_error(path) == ""
    assert git_command.normalize_path(path) == inside


@pytest.mark.parametrize("path", ["/etc", "..", "a/../..", "../x", ".git/hooks", "a/.GIT", "a\0b"])
def test_paths_that_lead_out_are_refused(path: str) -> None:
    """Also into git's own folder."""
    assert git_command.path_error(path)


# what is shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:p@ss@host/a.git", "https://host/a.git"),
        ("https://token@host/a.git?key=1", "https://host/a.git"),
        ("fatal: no 'https://me:pw@host/a': x", "fatal: no 'https://host/a': x"),
        ("http://a:b@c/d and http://e:f@g/h", "http://c/d and http://g/h"),
        ("git@host:a/b.git", "git@host:a/b.git"),
        ("why? no", "why? no"),
    ],
)
def test_no_password_is_shown(text: str, shown: str) -> None:
    """Of no address, wherever in a text it stands."""
    assert git_command.redact(text) == shown


def test_the_gist_of_an_error_is_its_telling_line() -> None:
    """Without passwords, and with something to do."""
    said = "warning: x\nremote: hm\nfatal: Authentication failed for 'https://me:pw@host/a'\n"
    assert git_command.error_summary(said) == "Authentication failed for 'https://host/a'"
    assert "credentials" in git_command.error_hint(said)
    assert git_command.error_summary("") == "no error output"
    assert git_command.error_hint("something new")


def test_git_is_run_with_its_own_credentials_and_nobody_else_s_place() -> None:
    """What helps to log in stays; what would have it work elsewhere, ask or print secrets goes."""
    inherited = {"GIT_DIR": "/x", "GIT_INDEX_FILE": "/y", "GIT_TRACE_CURL": "1", "GIT_ASKPASS": "/ask",
                 "GIT_SSH_COMMAND": "ssh -i k", "SSH_AUTH_SOCK": "/s", "GIT_TERMINAL_PROMPT": "1"}  # fmt: skip
    made = git_command.environment(inherited, {"GIT_DIR": "/ours"})
    assert made["GIT_DIR"] == "/ours"
    assert {"GIT_INDEX_FILE", "GIT_TRACE_CURL"}.isdisjoint(made)
    assert (made["GIT_ASKPASS"], made["GIT_SSH_COMMAND"], made["SSH_AUTH_SOCK"]) == ("/ask", "ssh -i k", "/s")
    assert made["GIT_TERMINAL_PROMPT"] == "0"
    assert "ext" not in made["GIT_ALLOW_PROTOCOL"].split(":")
