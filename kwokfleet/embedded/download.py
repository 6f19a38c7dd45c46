"""Official release binaries, each checked against the digest its project publishes beside it.

One try per file, short time-outs, and a host that did not answer is not asked again: on a machine
without access to these hosts this must cost seconds, because a build from source comes next.
"""

import hashlib
import http.client
import json
import shutil
import tarfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kwokfleet import settings
from kwokfleet.embedded import versions

SOCKET_TIMEOUT_S = 5
DIGEST_DEADLINE_S = 10
"""Covers the name look-up too, which no socket time-out does."""
DOWNLOAD_DEADLINE_S = 600
"""About what a build of all of them takes."""
CHUNK = 1 << 20


class UnavailableError(Exception):
    """A binary could not be had this way; the message says why. Never leaves `embedded`."""

    def __init__(self, why: str, *, silent: bool = False) -> None:
        super().__init__(why)
        self.silent = silent
        """Nobody answered: not worth asking the same host for another file."""


@dataclass(frozen=True, slots=True)
class ReleaseAsset:
    """One published file and where its digest stands."""

    url: str
    digest_url: str
    read_digest: Callable[[bytes, str], str]
    """Picks the digest of the file (second argument) out of what *digest_url* holds."""
    member: str = ""
    """The file wanted inside an archive."""

    @property
    def file_name(self) -> str:
        """The last part of the address."""
        return self.url.rsplit("/", 1)[-1]

    @property
    def hosts(self) -> frozenset[str]:
        """All hosts this asset needs."""
        return frozenset(urllib.parse.urlsplit(url).netloc for url in (self.url, self.digest_url))


def release_asset(
    binary: versions.Binary, system: str, machine: str, releases: settings.Releases
) -> ReleaseAsset | None:
    """Say where *binary* is published for this platform; None if it is not."""
    if system != "linux":  # Kubernetes publishes its servers for Linux only
        return None
    version = binary.version
    if binary.project == "kubernetes":
        url = f"{releases.kubernetes}/{version}/bin/{system}/{machine}/{binary.name}"
        return ReleaseAsset(url, f"{url}.sha256", _bare_digest)
    if binary.project == "etcd":
        folder = f"etcd-{version}-{system}-{machine}"
        base = f"{releases.etcd}/{version}"
        return ReleaseAsset(f"{base}/{folder}.tar.gz", f"{base}/SHA256SUMS", _listed_digest, f"{folder}/{binary.name}")
    # kwok's releases have no checksum file of their own; GitHub publishes each asset's digest.
    url = f"{releases.kwok}/{version}/{binary.name}-{system}-{machine}"
    return ReleaseAsset(url, f"{releases.kwok_digests}/{version}", _github_digest)


def fetch(wanted: ReleaseAsset, target: Path, report: Callable[[int, int], None]) -> None:
    """Download *wanted* to *target*, atomically; raise UnavailableError and leave nothing otherwise."""
    digest = _digest(wanted)
    part = target.with_name(f".{target.name}.download")
    try:
        actual = _save(wanted.url, part, report)
        if actual != digest:
            raise UnavailableError(f"{wanted.url} has SHA-256 {actual}, its published digest is {digest}")
        if wanted.member:
            _extract(part, wanted.member)
        part.chmod(0o755)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _digest(wanted: ReleaseAsset) -> str:
    text = _within(DIGEST_DEADLINE_S, wanted.digest_url)
    digest = wanted.read_digest(text, wanted.file_name).lower()
    if len(digest) != hashlib.sha256().digest_size * 2:
        raise UnavailableError(f"{wanted.digest_url} holds no SHA-256 digest of {wanted.file_name}")
    return digest


def _within(deadline_s: float, url: str) -> bytes:
    answer: list[bytes | UnavailableError] = []

    def ask() -> None:
        try:
            with _open(url) as body:
                answer.append(_read(body, url))
        except UnavailableError as exc:
            answer.append(exc)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(deadline_s)
    if not answer:
        raise UnavailableError(f"{url} did not answer within {deadline_s:.0f} s", silent=True)
    if isinstance(answer[0], UnavailableError):
        raise answer[0]
    return answer[0]


def _open(url: str) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"User-Agent": "kwokfleet"})  # noqa: S310 - only http(s), below
    if not url.startswith(("https://", "http://")):
        raise UnavailableError(f"{url} is not an http address")
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=SOCKET_TIMEOUT_S)  # noqa: S310 - checked above
    except urllib.error.HTTPError as exc:
        exc.close()  # it is also the response
        raise UnavailableError(f"{url} answered {exc.code} {exc.reason}") from exc
    except (OSError, http.client.HTTPException) as exc:
        raise UnavailableError(f"{url}: {getattr(exc, 'reason', exc)}", silent=True) from exc
    return response


def _read(body: http.client.HTTPResponse, url: str) -> bytes:
    try:
        return body.read(CHUNK)
    except (OSError, http.client.HTTPException) as exc:
        raise UnavailableError(f"{url} broke off: {exc}", silent=True) from exc


def _save(url: str, part: Path, report: Callable[[int, int], None]) -> str:
    hasher = hashlib.sha256()
    done = 0
    until = time.monotonic() + DOWNLOAD_DEADLINE_S
    with _open(url) as body, part.open("wb") as file:
        total = int(body.headers.get("Content-Length") or 0)
        while chunk := _read(body, url):
            file.write(chunk)
            hasher.update(chunk)
            done += len(chunk)
            report(done, total)
            if time.monotonic() > until:
                raise UnavailableError(f"{url} took longer than {DOWNLOAD_DEADLINE_S} s", silent=True)
    return hasher.hexdigest()


def _extract(archive: Path, member: str) -> None:
    inner = archive.with_suffix(".member")
    try:
        with tarfile.open(archive) as tar, _member(tar, member) as source, inner.open("wb") as file:
            shutil.copyfileobj(source, file, CHUNK)
        inner.replace(archive)
    except (tarfile.TarError, KeyError, EOFError) as exc:
        raise UnavailableError(f"{archive.name} holds no {member}: {exc}") from exc
    finally:
        inner.unlink(missing_ok=True)


def _member(tar: tarfile.TarFile, member: str) -> BinaryIO:
    file = tar.extractfile(member)
    if file is None:
        raise KeyError(member)
    return file  # type: ignore[return-value]  # typeshed says IO[bytes], which BinaryIO is


def _bare_digest(text: bytes, _file_name: str) -> str:
    return text.decode(errors="replace").split()[0] if text.strip() else ""


def _listed_digest(text: bytes, file_name: str) -> str:
    for line in text.decode(errors="replace").splitlines():
        match line.split():
            case [digest, name] if name.lstrip("*") == file_name:
                return digest
    return ""


def _github_digest(text: bytes, file_name: str) -> str:
    try:
        assets = json.loads(text)["assets"]
        digests = {each["name"]: each.get("digest") or "" for each in assets}
    except (ValueError, KeyError, TypeError):
        return ""
    return digests.get(file_name, "").removeprefix("sha256:")
