"""The git program, as far as it needs no running: how to call it, what to ask for, what its answers mean.

Addresses and names come from people and end up on a command line: what git might take for an
option or a program to run is refused here, and what is shown of an address is without passwords.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kwokfleet.source.revision import BAD_IN_REF, is_commit, short_ref

SCHEMES = ("file", "git", "http", "https", "ssh")
MAX_REF = 255

_USERINFO = re.compile(r"(?<=://)[^/\s]*@")
_QUERY = re.compile(r"(?<=\w)\?[^\s'\"]*")
_HELPER = re.compile(r"[A-Za-z0-9+.-]+::")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

_OPTIONS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "gc.autoDetach=false",
    "gc.auto=200",
    "gc.autoPackLimit=20",
    "maintenance.auto=false",
    "protocol.version=2",
    "submodule.recurse=false",
)
_ELSEWHERE = {
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_CEILING_DIRECTORIES",
}  # fmt: skip
"""Variables that would have git work somewhere else, as when we are started from one of its hooks."""
_TALKATIVE = ("GIT_TRACE", "GIT_CURL_VERBOSE")
"""Variables that would have git print what it sends, passwords too."""


# how to call it


def command(program: str, *arguments: str) -> list[str]:
    """Return the command line that runs git without hooks and without work behind our back."""
    return [program, *(word for option in _OPTIONS for word in ("-c", option)), *arguments]


def environment(inherited: Mapping[str, str], own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment that git is run in: what it knows of credentials stays, nobody is asked for them."""
    kept = {name: value for name, value in inherited.items() if name not in _ELSEWHERE}
    kept = {name: value for name, value in kept.items() if not name.startswith(_TALKATIVE)}
    return kept | {
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_ALLOW_PROTOCOL": ":".join(SCHEMES),
        **(own or {}),
    }


# what to ask for


def url_error(url: str) -> str:
    """Return what is wrong with the address of a repository; empty if nothing is."""
    if not url.strip():
        return "is empty"
    if url.startswith("-"):
        return "begins with a dash: git would take it for an option"
    if any(ord(letter) < ord(" ") or ord(letter) == 0x7F for letter in url):  # noqa: PLR2004 - DEL
        return "holds a control character"
    if _HELPER.match(url):
        return "names a program to run (`…::`)"
    scheme = _SCHEME.match(url)
    if scheme and scheme[1].lower() not in SCHEMES:
        return f"is of kind {scheme[1]}; known are {', '.join(SCHEMES)}"
    return ""


def ref_error(ref: str) -> str:
    """Return what is wrong with the name of a branch, tag or commit; empty if nothing is."""
    if not ref:
        return "is empty"
    if ref.startswith("-"):
        return "begins with a dash: git would take it for an option"
    if len(ref) > MAX_REF or BAD_IN_REF.search(ref) or ref == "@":
        return "is no name that git allows"
    return ""


def path_error(path: str) -> str:
    """Return what is wrong with a path inside a repository; empty if nothing is."""
    parts = path.split("/")
    if path.startswith("/"):
        return "must be relative to the top of the repository"
    if ".." in parts:
        return "leads out of the repository"
    if ".git" in (part.lower() for part in parts):
        return "leads into git's own folder"
    if any(ord(letter) < ord(" ") for letter in path):
        return "holds a control character"
    return ""


def normalize_path(path: str) -> str:
    """Return a path inside a repository as git writes it: `fleets` for `./fleets/`, nothing for the top."""
    return "/".join(part for part in path.split("/") if part not in ("", "."))


# what it answers


@dataclass(frozen=True, slots=True)
class RemoteRef:
    """What a name stands for in a repository elsewhere."""

    ref: str
    """To be asked for: `refs/heads/main`, or a commit."""
    commit: str
    branch: str
    """As people know it."""


def ls_remote_patterns(ref: str) -> tuple[str, ...]:
    """Return what to ask `git ls-remote` for, to learn what *ref* stands for."""
    if ref == "HEAD" or ref.startswith("refs/"):
        return (ref, f"{ref}^{{}}")
    return (f"refs/heads/{ref}", f"refs/tags/{ref}", f"refs/tags/{ref}^{{}}")


def parse_ls_remote(text: str, ref: str) -> RemoteRef | None:
    """Find *ref* in what `git ls-remote --symref` printed; a branch before a tag; None if it is not there."""
    found, points_at = dict[str, str](), dict[str, str]()
    for line in text.splitlines():
        what, _, name = line.partition("\t")
        if what.startswith("ref: "):
            points_at[name] = what.removeprefix("ref: ")
        elif is_commit(what):
            found[name] = what
    for name in ls_remote_patterns(ref):
        if name in found and not name.endswith("^{}"):
            shown = points_at.get(name, name)
            return RemoteRef(name, found.get(f"{name}^{{}}", found[name]), short_ref(shown) if shown != "HEAD" else "")
    return None


def redact(text: str) -> str:
    """Return a text without what only its owner may know: user and password of addresses, and their queries."""
    return _QUERY.sub("", _USERINFO.sub("", text)) if "://" in text else text


_ADVICE = (
    ("dubious ownership", "let git read it: git config --global --add safe.directory FOLDER"),
    ("Host key verification failed", "add the server to ~/.ssh/known_hosts: ssh-keyscan HOST"),
    ("Permission denied (", "see that the ssh agent holds a key that may read it, or set GIT_SSH_COMMAND"),
    ("terminal prompts disabled", "give git credentials: a credential helper, or GIT_ASKPASS"),
    ("could not read Username", "give git credentials: a credential helper, or GIT_ASKPASS"),
    ("could not read Password", "give git credentials: a credential helper, or GIT_ASKPASS"),
    ("Authentication failed", "see that git's credentials are right and may read it"),
    ("transport '", "use an address of another kind: https or ssh"),
    ("not our ref", "see that the commit is in that repository; some servers give out only branches and tags"),
    ("couldn't find remote ref", "see which branches and tags there are: git ls-remote URL"),
    ("No space left", "make room on the disk"),
    ("Could not resolve host", "see the name in the address, and the network"),
    ("does not appear to be a git repository", "see the address"),
    ("does not exist", "see the address"),
    ("not found", "see the address, and whether git's credentials may read it"),
)


def error_hint(said: str) -> str:
    """Return what to do about an error that git printed."""
    return next((hint for sign, hint in _ADVICE if sign in said), "see whether `git ls-remote URL` works by hand")


def error_summary(said: str) -> str:
    """Return the line of git's errors that says most, fit to be shown."""
    lines = [line.strip() for line in redact(said).splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("fatal:", "error:"))]
    return (telling or lines or ["it said nothing"])[0].removeprefix("fatal: ").removeprefix("error: ")
