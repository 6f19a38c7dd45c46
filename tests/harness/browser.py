"""Headless Chromium, controlled by the DevTools protocol over two pipes.

Messages are JSON; each ends with a zero byte.
"""

import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAM_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chrome-headless-shell")
OPTIONS = ("--headless", "--no-sandbox", "--no-zygote", "--single-process", "--disable-gpu", "--remote-debugging-pipe")
READ_BYTES = 1 << 16


def find_program() -> str | None:
    """Return $KWOKFLEET_TEST_BROWSER, or Chromium from PATH."""
    return os.environ.get("KWOKFLEET_TEST_BROWSER") or next(filter(None, map(shutil.which, PROGRAM_NAMES)), None)


@dataclass
class Tab:
    """One open page."""

    to_browser: int
    from_browser: int
    session: str = ""
    requested_urls: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """Console errors and exceptions of the page, including violations of its content security policy."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _rest: bytes = b""

    def call(self, method: str, **parameters: Any) -> Any:  # noqa: ANN401  # any JSON
        """Call a DevTools method; return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            received = self._next()
            if received.get("id") == number:
                assert "error" not in received, received
                return received["result"]

    def open(self, file: Path) -> None:
        """Open a file and wait for its load event."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=file.as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def value(self, expression: str) -> Any:  # noqa: ANN401  # any JSON
        """Evaluate an expression in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def point(self, selector: str) -> None:
        """Move the pointer to the centre of an element."""
        center = self.value(
            f"(() => {{ const it = document.querySelector({json.dumps(selector)}); it.scrollIntoView();"
            " const box = it.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=center[0], y=center[1])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            read = os.read(self.from_browser, READ_BYTES)
            assert read, "the browser has exited"
            self._rest += read
        text, _, self._rest = self._rest.partition(b"\0")
        received: dict[str, Any] = json.loads(text)
        self._record(received)
        return received

    def _record(self, received: dict[str, Any]) -> None:
        params = received.get("params", {})
        match received.get("method"):
            case "Network.requestWillBeSent":
                self.requested_urls.append(params["request"]["url"])
            case "Log.entryAdded":
                self.errors.append(params["entry"]["text"])
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"]))


@contextmanager
def open_tab(program: str, file: Path, profile: Path) -> Iterator[Tab]:
    """Open a file in a new browser."""
    (browser_reads, we_write), (we_read, browser_writes) = os.pipe(), os.pipe()
    redirections = f'exec 3<&{browser_reads} 4>&{browser_writes}; exec "$@"'  # it reads from 3 and writes to 4
    command = ["bash", "-c", redirections, "browser", program, *OPTIONS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(command, pass_fds=(browser_reads, browser_writes), stderr=subprocess.DEVNULL)
    for descriptor in (browser_reads, browser_writes):
        os.close(descriptor)
    try:
        tab = Tab(we_write, we_read)
        tab.open(file)
        yield tab
    finally:
        process.kill()
        process.wait()
        for descriptor in (we_write, we_read):
            os.close(descriptor)
