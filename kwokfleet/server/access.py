"""What the HTTP API goes by, as far as values tell: who may ask, under which name, and how events are written down."""

import hashlib
import hmac
import ipaddress
from datetime import datetime

import orjson

from kwokfleet.daemon import snapshot_json
from kwokfleet.daemon.snapshot import Event

_SCHEME = "bearer "


def is_loopback(host: str) -> bool:
    """Return whether an address or name is reached from this machine alone."""
    if host.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_loopback_name(header: str) -> bool:
    """Return whether a Host header names this machine.

    A page from elsewhere whose name was made to point here (DNS rebinding) sends its own name.
    """
    if header.startswith("["):
        name, _, port = header[1:].partition("]")
        return is_loopback(name) and (not port or port[1:].isdigit())
    return is_loopback(header.partition(":")[0])


def is_token(header: str, token: str) -> bool:
    """Return whether an Authorization header holds the token; how long that takes tells nothing about it."""
    given = header[len(_SCHEME) :].strip() if header[: len(_SCHEME)].lower() == _SCHEME else ""
    # Headers arrive as latin-1, whatever their bytes were; digests hide the length too.
    same = hmac.compare_digest(_digest(given.encode("latin-1")), _digest(token.encode()))
    return same and bool(token)


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


# ----------------------------------------------------------------------------------------
# server-sent events


def life(started: datetime) -> str:
    """Return what tells the numbers of one run of the daemon from those of the next."""
    return str(int(started.timestamp() * 1000))


def position(text: str, current: str) -> tuple[int, bool] | None:
    """Read where a client was: `17`, or an id as it was sent. Return the number, and whether it is of this life.

    None if it is neither.
    """
    before, dash, number = text.rpartition("-")
    if not (number.isascii() and number.isdigit() and len(number) < 19) or (dash and not before.isdigit()):  # noqa: PLR2004  # of 64 bits
        return None
    return (int(number), True) if before in ("", current) else (0, False)


def sent(event: Event, current: str) -> bytes:
    """Return an Event as it is sent; without a name, so that `onmessage` gets every kind."""
    return b"id: %s-%d\ndata: %s\n\n" % (current.encode(), event.number, orjson.dumps(snapshot_json.event_json(event)))


def missed(why: str) -> bytes:
    """Return the word to a client that it should look at the whole state again."""
    return b"event: missed\ndata: %s\n\n" % orjson.dumps({"why": why})
