#!/opt/kwokfleet/bin/python3 -IS
"""Ask a daemon whether it works: `healthcheck.py http://127.0.0.1:8265/healthz`. 0: it does, 1: it does not.

For container engines that run a command to find out; the image has no curl and no shell.
"""

import sys
import urllib.error
import urllib.request

ANSWER_S = 4


def main(url: str) -> int:
    """Return 0 if the answer is 200; say what it is."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:  # noqa: S310  # the image's own address
            said, code = answer.read(), 0
    except urllib.error.HTTPError as refused:
        with refused:
            said, code = refused.read(), 1
    except OSError as error:
        said, code = str(error).encode(), 1
    sys.stdout.write(said.decode(errors="replace").strip() + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
