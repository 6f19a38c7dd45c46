#!/opt/kwokfleet/bin/python3 -IS
"""GIT_ASKPASS program: prints the user name or password from a mounted Secret. The image has no shell.

git passes the prompt: `Username for 'https://…': ` or `Password for 'https://…': `.
"""

import sys
from pathlib import Path

SECRET = Path("/etc/git-secret")


def main(question: str) -> int:
    """Print the value; return 1 if it is missing."""
    file = SECRET / ("username" if question.startswith("Username") else "password")
    try:
        sys.stdout.write(file.read_text(encoding="utf-8").strip() + "\n")
    except OSError as error:
        sys.stderr.write(f"{file}: {error.strerror}; mount a Secret of type kubernetes.io/basic-auth at {SECRET}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
