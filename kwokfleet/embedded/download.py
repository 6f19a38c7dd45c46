"""Downloads official release binaries, and verifies the digest that each project publishes.

One attempt per file, short timeouts, and no second request to a host that did not answer. On a machine without
access to these hosts this takes seconds; a build from source follows.
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

from kwokfleet import settings
from kwokfleet.embedded import versions

SOCKET_TIMEOUT_S = 5
DIGEST_DEADLINE_S = 10
"""Includes the DNS lookup, which socket timeouts do not cover."""
DOWNLOAD_DEADLINE_S = 600
"""About the duration of a build of all binaries."""
CHUNK = 1 << 20


class UnavailableError(Exception):
    """A binary cannot be downloaded. Caught inside `embedded`: a build follows."""

    def __init__(self, reason: str, *, unreachable: bool = False) -> None:
        super().__init__(reason)
        self.unreachable = unreachable
        """The host did not answer: it is not asked for another file."""


@dataclass(frozen=True, slots=True)
class ReleaseAsset:
    """A published file and the address of its digest."""

    url: str
    digest_url: str
    read_digest: Callable[[bytes, str], str]
    """Extracts the digest of a file (second argument) from the contents of *digest_url*."""
    member: str = ""
    """Path of the binary inside an archive."""

    @property
    def file_name(self) -> str:
        """Last part of the URL."""
        return self.url.rsplit("/", 1)[-1]

    @property
    def hosts(self) -> frozenset[str]:
        """Hosts of both URLs."""
        return frozenset(urllib.parse.urlsplit(url).netloc for url in (self.url, self.digest_url))


def release_asset(
    binary: versions.Binary, system: str, machine: str, releases: settings.Releases
) -> ReleaseAsset | None:
    """Return the release asset of *binary* for a platform; None if there is none."""
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
    # kwok publishes no checksum file; GitHub publishes the digest of each asset.
    url = f"{releases.kwok}/{version}/{binary.name}-{system}-{machine}"
    return ReleaseAsset(url, f"{releases.kwok_digests}/{version}", _github_digest)


def fetch(asset: ReleaseAsset, target: Path, report: Callable[[int, int], None]) -> None:
    """Download *asset* to *target*, atomically; raise UnavailableError if that fails."""
    digest = _digest(asset)
    part = target.with_name(f".{target.name}.download")
    try:
        actual = _save(asset.url, part, report)
        if actual != digest:
            raise UnavailableError(f"{asset.url} has SHA-256 {actual}; its published digest is {digest}")
        if asset.member:
            _extract(part, asset.member)
        part.chmod(0o755)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _digest(asset: ReleaseAsset) -> str:
    text = _within(DIGEST_DEADLINE_S, asset.digest_url)
    digest = asset.read_digest(text, asset.file_name).lower()
    if len(digest) != hashlib.sha256().digest_size * 2:
        raise UnavailableError(f"{asset.digest_url} has no SHA-256 digest of {asset.file_name}")
    return digest


def _within(deadline_s: float, url: str) -> bytes:
    result: list[bytes | UnavailableError] = []

    def request() -> None:
        try:
            with _open(url) as body:
                result.append(_read(body, url))
        except UnavailableError as exc:
            result.append(exc)

    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(deadline_s)
    if not result:
        raise UnavailableError(f"{url} did not answer within {deadline_s:.0f} s", unreachable=True)
    if isinstance(result[0], UnavailableError):
        raise result[0]
    return result[0]


def _open(url: str) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"User-Agent": "kwokfleet"})  # noqa: S310 - only http(s), below
    if not url.startswith(("https://", "http://")):
        raise UnavailableError(f"{url} is not an HTTP URL")
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=SOCKET_TIMEOUT_S)  # noqa: S310 - checked above
    except urllib.error.HTTPError as exc:
        exc.close()  # it is also the response
        raise UnavailableError(f"{url} answered {exc.code} {exc.reason}") from exc
    except (OSError, http.client.HTTPException) as exc:
        raise UnavailableError(f"{url}: {getattr(exc, 'reason', exc)}", unreachable=True) from exc
    return response


def _read(body: http.client.HTTPResponse, url: str) -> bytes:
    try:
        return body.read(CHUNK)
    except (OSError, http.client.HTTPException) as exc:
        raise UnavailableError(f"{url} ended early: {exc}", unreachable=True) from exc


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
                raise UnavailableError(f"{url} took longer than {DOWNLOAD_DEADLINE_S} s", unreachable=True)
    return hasher.hexdigest()


def _extract(archive: Path, member: str) -> None:
    inner = archive.with_suffix(".member")
    try:
        with tarfile.open(archive) as tar, inner.open("wb") as file:
            source = tar.extractfile(member)
            if source is None:
                raise KeyError(member)  # noqa: TRY301  # a folder, handled like a missing file
            shutil.copyfileobj(source, file, CHUNK)
        inner.replace(archive)
    except (tarfile.TarError, KeyError, EOFError) as exc:
        raise UnavailableError(f"{archive.name} does not contain {member}: {exc}") from exc
    finally:
        inner.unlink(missing_ok=True)


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
        digests = {asset["name"]: asset.get("digest") or "" for asset in assets}
    except (ValueError, KeyError, TypeError):
        return ""
    return digests.get(file_name, "").removeprefix("sha256:")
