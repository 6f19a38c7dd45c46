"""Draws the README's picture from a real terminal: `.venv/bin/python docs/images/draw.py`.

Runs the commands in a pseudo-terminal, so the picture is exact.
"""

import os
import pty
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

COMMANDS = ("cluster up", "cluster status", "cluster kubectl get namespaces")
WIDTH = 92
HERE = Path(__file__).parent
PROGRAM = str(Path(sys.executable).with_name("kwokfleet"))


def seen(arguments: list[str], environment: dict[str, str]) -> str:
    """Run kwokfleet in a pseudo-terminal; return the final screen."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.execve(PROGRAM, [PROGRAM, *arguments], environment)  # noqa: S606 - no shell wanted
    data = b""
    try:
        while chunk := os.read(descriptor, 1 << 16):
            data += chunk
    except OSError:  # Linux reports the end of the process as an error
        pass
    os.waitpid(pid, 0)
    text = data.decode().replace("\r\n", "\n")
    # The live table redraws itself by moving up: keep what follows the last such move.
    return re.split(r"\x1b\[1A\x1b\[2K(?!\x1b\[1A)", text)[-1].replace("\x1b[?25l", "").replace("\x1b[?25h", "")


def main() -> None:
    """Run the commands in a new cluster and write the picture."""
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"), force_terminal=True)  # noqa: PTH123, SIM115 - nowhere
    with tempfile.TemporaryDirectory() as folder:
        data = f"{folder}/kwokfleet"
        path = f"{Path(PROGRAM).parent}:{os.environ['PATH']}"
        terminal = {"TERM": "xterm-256color", "COLUMNS": str(WIDTH)}
        environment = os.environ | terminal | {"KWOKFLEET_DATA_DIR": data, "PATH": path}
        for command in COMMANDS:
            console.print(Text(f"$ kwokfleet {command}", style="bold"))
            shown = seen(command.split(), environment).replace(data, "~/.local/share/kwokfleet")
            console.print(Text.from_ansi(shown.strip("\r\n")))
            console.print()
        seen(["cluster", "down"], environment)
    svg = console.export_svg(title="kwokfleet")
    # No external fonts: use the reader's fixed-width font.
    svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)
    (HERE / "cluster-up.svg").write_text(svg)


if __name__ == "__main__":
    main()
