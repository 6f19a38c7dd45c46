"""Which state of the files is meant: a git commit, or what the contents hash to.

What `git status` prints and what git's files hold is read here; who runs git or opens files is at the edge.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

SHORT = 7
"""Digits of a commit that people are shown, as git shows them."""
SHORT_DIGEST = 12

_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_CHECKOUT = re.compile(rf"(?:rev-)?({_SHA.pattern})")
BAD_IN_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|//|@\{|\.lock(?:/|$)|/$|\.$|^/|(?:^|/)\.")
"""What git allows in no name of a branch or tag."""


@dataclass(frozen=True, slots=True)
class Revision:
    """One state of the files."""

    commit: str = ""
    """The whole hash; empty if the files are in no git checkout."""
    branch: str = ""
    """The branch or tag that led there, if one did."""
    dirty: bool | None = False
    """Whether the files differ from the commit; None if nobody could tell."""
    digest: str = ""
    """Of the contents: what there is to go by without a commit."""

    def __str__(self) -> str:
        """Return it as people are shown it: `main@1a2b3c4`, with a `+` if the files differ; else `sha256:…`."""
        if not self.commit:
            return f"sha256:{self.digest[:SHORT_DIGEST]}" if self.digest else "unknown"
        return f"{self.branch}@{self.short}" if self.branch else self.short

    @property
    def short(self) -> str:
        """The commit in a few digits."""
        return self.commit[:SHORT] + ("+" if self.dirty else "")


def is_commit(text: str) -> bool:
    """Return whether *text* is the whole hash of a commit."""
    return _SHA.fullmatch(text) is not None


def commit_of_folder(name: str) -> str:
    """Return the commit that a folder is named after, as git-sync does it; empty if it is not."""
    found = _CHECKOUT.fullmatch(name)
    return found[1] if found else ""


# what git prints


def parse_status(text: str) -> Revision | None:
    """Read `git status --porcelain=v2 --branch`; None if there is no commit yet."""
    headers = dict(line[2:].split(" ", 1) for line in text.splitlines() if line.startswith("# branch."))
    commit = headers.get("branch.oid", "")
    if not is_commit(commit):
        return None
    head = headers.get("branch.head", "")
    changed = any(line and not line.startswith("#") for line in text.splitlines())
    return Revision(commit, "" if head == "(detached)" else head, dirty=changed)


def short_ref(ref: str) -> str:
    """Return a ref as people call it: `main` for `refs/heads/main`."""
    return ref.removeprefix("refs/heads/").removeprefix("refs/tags/")


# what git's files hold, for when the program may not look


def parse_head(text: str) -> tuple[str, str]:
    """Read `.git/HEAD`: the commit, or the ref where it stands; the other one is empty."""
    line = text.strip()
    if line.startswith("ref: "):
        ref = line.removeprefix("ref: ").strip()
        return "", ref if ref.startswith("refs/") and not BAD_IN_REF.search(ref) else ""
    return (line, "") if is_commit(line) else ("", "")


def parse_packed_refs(text: str, ref: str) -> str:
    """Find a ref's commit in `.git/packed-refs`; empty if it is not there."""
    for line in text.splitlines():
        commit, _, name = line.partition(" ")
        if name == ref and is_commit(commit):
            return commit
    return ""


def tree_digest(files: Iterable[tuple[str, str]]) -> str:
    """Return the digest of a tree, from paths below its root and digests of files: the same wherever it lies."""
    return hashlib.sha256("".join(f"{path}\0{digest}\n" for path, digest in sorted(files)).encode()).hexdigest()
