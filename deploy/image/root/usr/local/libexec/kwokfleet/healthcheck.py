#!/opt/kwokfleet/bin/python3 -IS
"""Health check of a daemon: `healthcheck.py http://127.0.0.1:8265/healthz`. Exits with 0 if healthy, else 1.

For container engines with command health checks; the image has no curl and no shell.
"""

import sys
import urllib.error
import urllib.request

TIMEOUT_S = 4


def main(url: str) -> int:
    """Print the response; return 0 if its status is 200."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310  # the image's own address
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
