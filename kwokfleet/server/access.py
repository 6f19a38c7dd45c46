"""Access rules of the HTTP API (token, Host header) and the format of server-sent events."""

import hashlib
import hmac
import ipaddress
from datetime import datetime

import orjson

from kwokfleet.daemon import snapshot_json
from kwokfleet.daemon.snapshot import Event

_SCHEME = "bearer "


def is_loopback(host: str) -> bool:
    """Return whether an address or name is reachable only from this machine."""
    if host.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_loopback_name(header: str) -> bool:
    """Return whether a Host header names this machine.

    A page whose name was changed to resolve to this machine (DNS rebinding) sends its own name.
    """
    if header.startswith("["):
        name, _, port = header[1:].partition("]")
        return is_loopback(name) and (not port or port[1:].isdigit())
    return is_loopback(header.partition(":")[0])


def is_token(header: str, token: str) -> bool:
    """Return whether an Authorization header has the token, in constant time."""
    presented = header[len(_SCHEME) :].strip() if header[: len(_SCHEME)].lower() == _SCHEME else ""
    # Headers are decoded as latin-1; comparing digests hides the length too.
    digests = (hashlib.sha256(text).digest() for text in (presented.encode("latin-1"), token.encode()))
    return hmac.compare_digest(*digests) and bool(token)


# server-sent events


def start_id(started: datetime) -> str:
    """Return an id of this run of the daemon: event numbers start again with the next one."""
    return str(int(started.timestamp() * 1000))


def position(text: str, current: str) -> tuple[int, bool] | None:
    """Parse the position of a client: `17`, or an event id. Return the number, and whether it is of this run.

    None if it is invalid.
    """
    before, dash, number = text.rpartition("-")
    if not (number.isascii() and number.isdigit() and len(number) < 19) or (dash and not before.isdigit()):  # noqa: PLR2004  # of 64 bits
        return None
    return (int(number), True) if before in ("", current) else (0, False)


def event_message(event: Event, current: str) -> bytes:
    """Return an Event in wire format; without an event name, so that `onmessage` receives every kind."""
    return b"id: %s-%d\ndata: %s\n\n" % (current.encode(), event.number, orjson.dumps(snapshot_json.event_json(event)))


def missed_message(why: str) -> bytes:
    """Return the message that tells a client to read the whole state again."""
    return b"event: missed\ndata: %s\n\n" % orjson.dumps({"why": why})
