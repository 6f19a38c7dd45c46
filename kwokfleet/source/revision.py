"""The revision of a file tree: a git commit, or a digest of the contents.

Parses the output of git and the contents of git's files. `revision_lookup` runs git and reads the files.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

SHORT = 7
"""Digits of an abbreviated commit, as in git."""
SHORT_DIGEST = 12

_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_CHECKOUT = re.compile(rf"(?:rev-)?({_SHA.pattern})")
BAD_IN_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|//|@\{|\.lock(?:/|$)|/$|\.$|^/|(?:^|/)\.")
"""Invalid in the name of a branch or tag."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A state of the files."""

    commit: str = ""
    """The full hash; empty outside of a git checkout."""
    branch: str = ""
    """The branch or tag of the commit, if known."""
    dirty: bool | None = False
    """Whether the files differ from the commit; None if unknown."""
    digest: str = ""
    """Digest of the contents, used without a commit."""

    def __str__(self) -> str:
        """Return `main@1a2b3c4`, with a `+` if the files differ from the commit; without a commit, `sha256:…`."""
        if not self.commit:
            return f"sha256:{self.digest[:SHORT_DIGEST]}" if self.digest else "unknown"
        short = self.commit[:SHORT] + ("+" if self.dirty else "")
        return f"{self.branch}@{short}" if self.branch else short


def is_commit(text: str) -> bool:
    """Return whether *text* is a full commit hash."""
    return _SHA.fullmatch(text) is not None


def commit_of_folder(name: str) -> str:
    """Return the commit in the name of a git-sync folder; empty for other names."""
    match = _CHECKOUT.fullmatch(name)
    return match[1] if match else ""


# output of git


def parse_status(text: str) -> Revision | None:
    """Parse `git status --porcelain=v2 --branch`; None before the first commit."""
    headers = dict(line[2:].split(" ", 1) for line in text.splitlines() if line.startswith("# branch."))
    commit = headers.get("branch.oid", "")
    if not is_commit(commit):
        return None
    head = headers.get("branch.head", "")
    changed = any(line and not line.startswith("#") for line in text.splitlines())
    return Revision(commit, "" if head == "(detached)" else head, dirty=changed)


def short_ref(ref: str) -> str:
    """Return the short name of a ref: `main` for `refs/heads/main`."""
    return ref.removeprefix("refs/heads/").removeprefix("refs/tags/")


# git's files, for when git itself cannot be run


def parse_head(text: str) -> tuple[str, str]:
    """Parse `.git/HEAD`: return the commit or the ref; the other one is empty."""
    line = text.strip()
    if line.startswith("ref: "):
        ref = line.removeprefix("ref: ").strip()
        return "", ref if ref.startswith("refs/") and not BAD_IN_REF.search(ref) else ""
    return (line, "") if is_commit(line) else ("", "")


def parse_packed_refs(text: str, ref: str) -> str:
    """Return a ref's commit in `.git/packed-refs`; empty if it has none."""
    for line in text.splitlines():
        commit, _, name = line.partition(" ")
        if name == ref and is_commit(commit):
            return commit
    return ""


def tree_digest(files: Iterable[tuple[str, str]]) -> str:
    """Return the digest of a tree, from relative paths and file digests: independent of its location."""
    return hashlib.sha256("".join(f"{path}\0{digest}\n" for path, digest in sorted(files)).encode()).hexdigest()
