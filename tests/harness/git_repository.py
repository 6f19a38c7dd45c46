"""Git repositories on disk."""

import os
import subprocess
from pathlib import Path

from kwokfleet.source import git_command

_WHO = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@example.org", "GIT_CONFIG_GLOBAL": "/dev/null"}  # fmt: skip


class Repository:
    """A repository with a worktree, on branch `main`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    @property
    def url(self) -> str:
        """Its file URL."""
        return f"file://{self.root}"

    def git(self, *arguments: str) -> str:
        """Run git in the repository."""
        environment = git_command.environment(os.environ, _WHO)
        command = git_command.command("git", *arguments)
        done = subprocess.run(command, cwd=self.root, env=environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def write(self, **files: str) -> None:
        """Write files; `__` in a name stands for `/`, and `.yaml` is added."""
        for name, text in files.items():
            path = self.root / f"{name.replace('__', '/')}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def commit(self, **files: str) -> str:
        """Write files and commit everything; return the commit."""
        self.write(**files)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message=change")
        return self.git("rev-parse", "HEAD")
