"""A real browser without a screen, where there is one: Chromium, spoken to over two pipes.

Its DevTools protocol is one JSON message after the other, each ended by a zero byte.
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
    """Return the browser: $KWOKFLEET_TEST_BROWSER, or Chromium as it is usually called."""
    return os.environ.get("KWOKFLEET_TEST_BROWSER") or next(filter(None, map(shutil.which, PROGRAM_NAMES)), None)


@dataclass
class Tab:
    """One page that is open."""

    to_browser: int
    from_browser: int
    session: str = ""
    asked: list[str] = field(default_factory=list)
    """The addresses that were asked for."""
    complaints: list[str] = field(default_factory=list)
    """What the page, its policy or its script complained about."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _rest: bytes = b""

    def call(self, method: str, **parameters: Any) -> Any:  # noqa: ANN401  # any JSON
        """Ask the browser for something, and return its answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._next()
            if heard.get("id") == number:
                assert "error" not in heard, heard
                return heard["result"]

    def open(self, file: Path) -> None:
        """Show a file, and wait until its script has run."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=file.as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def value(self, expression: str) -> Any:  # noqa: ANN401  # any JSON
        """Return what an expression is in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def point(self, selector: str) -> None:
        """Move the pointer into the middle of an element."""
        place = self.value(
            f"(() => {{ const it = document.querySelector({json.dumps(selector)}); it.scrollIntoView();"
            " const box = it.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            read = os.read(self.from_browser, READ_BYTES)
            assert read, "the browser has gone"
            self._rest += read
        text, _, self._rest = self._rest.partition(b"\0")
        heard: dict[str, Any] = json.loads(text)
        self._note(heard)
        return heard

    def _note(self, heard: dict[str, Any]) -> None:
        given = heard.get("params", {})
        match heard.get("method"):
            case "Network.requestWillBeSent":
                self.asked.append(given["request"]["url"])
            case "Log.entryAdded":
                self.complaints.append(given["entry"]["text"])
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(given["exceptionDetails"]))


@contextmanager
def open_tab(program: str, file: Path, profile: Path) -> Iterator[Tab]:
    """Open a file in a browser of its own."""
    (browser_reads, we_write), (we_read, browser_writes) = os.pipe(), os.pipe()
    wires = f'exec 3<&{browser_reads} 4>&{browser_writes}; exec "$@"'  # it listens on 3 and answers on 4
    command = ["bash", "-c", wires, "browser", program, *OPTIONS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(command, pass_fds=(browser_reads, browser_writes), stderr=subprocess.DEVNULL)
    for each in (browser_reads, browser_writes):
        os.close(each)
    try:
        tab = Tab(we_write, we_read)
        tab.open(file)
        yield tab
    finally:
        process.kill()
        process.wait()
        for each in (we_write, we_read):
            os.close(each)
