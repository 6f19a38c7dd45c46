"""Command lines, environment and output of git; `git_repository` runs it.

URLs and refs are user input on a command line. Anything that git may interpret as an option or as a
program to run is rejected. Credentials are removed from displayed URLs.
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
_REDIRECTING = {
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_CEILING_DIRECTORIES",
}  # fmt: skip
"""Variables that redirect git to another repository, as in a git hook."""
_TRACING = ("GIT_TRACE", "GIT_CURL_VERBOSE")
"""Variables that let git print what it sends, including passwords."""


def command(program: str, *arguments: str) -> list[str]:
    """Return a git command line without hooks and background maintenance."""
    return [program, *(word for option in _OPTIONS for word in ("-c", option)), *arguments]


def environment(inherited: Mapping[str, str], own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of git: configured credentials stay, prompts are off."""
    allowed = {name: value for name, value in inherited.items() if name not in _REDIRECTING}
    allowed = {name: value for name, value in allowed.items() if not name.startswith(_TRACING)}
    return allowed | {
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_ALLOW_PROTOCOL": ":".join(SCHEMES),
        **(own or {}),
    }


def url_error(url: str) -> str:
    """Return why the URL of a repository is invalid; empty if it is valid."""
    if not url.strip():
        return "is empty"
    if url.startswith("-"):
        return "must not start with a dash"
    if any(ord(letter) < ord(" ") or ord(letter) == 0x7F for letter in url):  # noqa: PLR2004 - DEL
        return "contains a control character"
    if _HELPER.match(url):
        return "must not name a remote helper (`…::`)"
    scheme = _SCHEME.match(url)
    if scheme and scheme[1].lower() not in SCHEMES:
        return f"has the unknown scheme {scheme[1]}; use one of {', '.join(SCHEMES)}"
    return ""


def ref_error(ref: str) -> str:
    """Return why a branch, tag or commit is invalid; empty if it is valid."""
    if not ref:
        return "is empty"
    if ref.startswith("-"):
        return "must not start with a dash"
    if len(ref) > MAX_REF or BAD_IN_REF.search(ref) or ref == "@":
        return "is not a valid git ref"
    return ""


def path_error(path: str) -> str:
    """Return why a path inside a repository is invalid; empty if it is valid."""
    parts = path.split("/")
    if path.startswith("/"):
        return "must be relative to the root of the repository"
    if ".." in parts:
        return "must not leave the repository"
    if ".git" in (part.lower() for part in parts):
        return "must not contain .git"
    if any(ord(letter) < ord(" ") for letter in path):
        return "contains a control character"
    return ""


def normalize_path(path: str) -> str:
    """Return a path inside a repository as git writes it: `fleets` for `./fleets/`, empty for the root."""
    return "/".join(part for part in path.split("/") if part not in ("", "."))


@dataclass(frozen=True, slots=True)
class RemoteRef:
    """A ref of a remote repository."""

    ref: str
    """To be fetched: `refs/heads/main`, or a commit."""
    commit: str
    branch: str
    """Short name, for display."""


def ls_remote_patterns(ref: str) -> tuple[str, ...]:
    """Return the patterns for `git ls-remote` to resolve *ref*."""
    if ref == "HEAD" or ref.startswith("refs/"):
        return (ref, f"{ref}^{{}}")
    return (f"refs/heads/{ref}", f"refs/tags/{ref}", f"refs/tags/{ref}^{{}}")


def parse_ls_remote(text: str, ref: str) -> RemoteRef | None:
    """Find *ref* in the output of `git ls-remote --symref`, a branch before a tag; None if there is none."""
    commits, targets = dict[str, str](), dict[str, str]()
    for line in text.splitlines():
        value, _, name = line.partition("\t")
        if value.startswith("ref: "):
            targets[name] = value.removeprefix("ref: ")
        elif is_commit(value):
            commits[name] = value
    for name in ls_remote_patterns(ref):
        if name in commits and not name.endswith("^{}"):
            target = targets.get(name, name)
            branch = "" if target == "HEAD" else short_ref(target)
            return RemoteRef(name, commits.get(f"{name}^{{}}", commits[name]), branch)
    return None


def redact(text: str) -> str:
    """Return a text whose URLs have no user, password and query."""
    return _QUERY.sub("", _USERINFO.sub("", text)) if "://" in text else text


_HINTS = (
    ("dubious ownership", "allow it: git config --global --add safe.directory FOLDER"),
    ("Host key verification failed", "add the server to ~/.ssh/known_hosts: ssh-keyscan HOST"),
    ("Permission denied (", "load a key with read access into the ssh agent, or set GIT_SSH_COMMAND"),
    ("terminal prompts disabled", "configure credentials: a git credential helper, or GIT_ASKPASS"),
    ("could not read Username", "configure credentials: a git credential helper, or GIT_ASKPASS"),
    ("could not read Password", "configure credentials: a git credential helper, or GIT_ASKPASS"),
    ("Authentication failed", "check git's credentials and their read access"),
    ("transport '", "use an https or ssh URL"),
    ("not our ref", "check that the commit exists; some servers serve only branches and tags"),
    ("couldn't find remote ref", "list branches and tags: git ls-remote URL"),
    ("No space left", "free disk space"),
    ("Could not resolve host", "check the host name and the network"),
    ("does not appear to be a git repository", "check the URL"),
    ("does not exist", "check the URL"),
    ("not found", "check the URL and the read access of git's credentials"),
)


def error_hint(stderr: str) -> str:
    """Return the next step for an error of git."""
    return next((hint for pattern, hint in _HINTS if pattern in stderr), "try `git ls-remote URL` by hand")


def error_summary(stderr: str) -> str:
    """Return the first error line of git, without credentials."""
    lines = [line.strip() for line in redact(stderr).splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:"))]
    return (fatal or lines or ["no error output"])[0].removeprefix("fatal: ").removeprefix("error: ")
