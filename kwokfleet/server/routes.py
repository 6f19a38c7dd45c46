"""Routes of the HTTP API.

Reads need no token; writes need it, except the git webhook, which is signed. Every call to the daemon runs in a
thread with a deadline, so that a daemon that hangs fails its probes instead of blocking them.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from kwokfleet import errors
from kwokfleet.daemon import snapshot_json
from kwokfleet.daemon.trigger import PassReason
from kwokfleet.server import access, thread_pool
from kwokfleet.server.daemon_api import DaemonApi
from kwokfleet.server.sse import Streams

Value = TypeVar("Value")
Page = Callable[[str], tuple[bytes, str]]
"""Returns the metrics for an Accept header, and their content type."""

_QUICK_THREADS, _SLOW_THREADS = 4, 4
_DEFAULT_RESULTS, _MAX_RESULTS = 50, 1000
"""Length of a list of Results: default and maximum."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Size and time limits of a request."""

    api_body: int = 64 * 1024
    hook_body: int = 1024 * 1024
    body_s: float = 10.0
    """Time limit for the whole body."""
    quick_s: float = 5.0
    """Time limit of a call that reads memory."""
    slow_s: float = 60.0
    """Time limit of a call that plans or writes."""


class ErrorResponse(HTTPException):  # a response, not a failure
    """A response with an error, and what to do next."""

    def __init__(self, status: HTTPStatus, what: str, hint: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, what, headers)
        self.hint = hint


class Routes:
    """The API of one daemon."""

    def __init__(self, daemon: DaemonApi, page: Page, streams: Streams, token: str, limits: RequestLimits) -> None:
        self._daemon, self._page, self._streams, self._token, self._limits = daemon, page, streams, token, limits
        self._quick_pool = thread_pool.ThreadPool("quick", _QUICK_THREADS)
        self._slow_pool = thread_pool.ThreadPool("slow", _SLOW_THREADS)
        self.app = Starlette(
            routes=[
                Route(route.partition(" ")[2], endpoint, methods=[route.partition(" ")[0]])
                for route, endpoint, _ in (("GET /", self._index, ""), *self._routes())
            ],
            exception_handlers={HTTPException: _refused, Exception: _failed},
        )
        self.app.router.redirect_slashes = False

    def close(self) -> None:
        """Close the thread pools; call it after the server has stopped."""
        for pool in (self._quick_pool, self._slow_pool):
            pool.close()

    def _routes(self) -> list[tuple[str, Any, str]]:
        """Return the method and path, the endpoint and the description of each route."""
        filters = "?fleet=NAME, ?wave=NAME, ?limit=NUMBER"
        fleet_body = '{"fleet": NAME}, or no body for the whole daemon (token)'
        result = partial(self._result_file, file="result.json", kind="application/json")
        pods = partial(self._result_file, file="pods.ndjson", kind="application/x-ndjson")
        return [
            ("GET /healthz", self._healthz, "200 while the worker makes progress, 503 when it hangs"),
            ("GET /readyz", self._readyz, "200 if synced and kwok runs, or on standby; ?verbose lists each part"),
            ("GET /metrics", self._metrics, "Prometheus metrics"),
            ("GET /api/v1/status", self._status, "everything below in one document"),
            ("GET /api/v1/fleets", self._part, "each Fleet: nodes, pools, conditions, withheld changes, schedule"),
            ("GET /api/v1/fleets/{name}", self._fleet, "one Fleet"),
            ("GET /api/v1/fleets/{name}/pools", partial(self._fleet, pools=True), "pools of a Fleet"),
            ("GET /api/v1/nodes", self._list, "nodes; ?fleet=NAME"),
            ("GET /api/v1/stages", self._list, "managed Stages; ?fleet=NAME"),
            ("GET /api/v1/waves", self._list, "Waves, with their last Run; ?fleet=NAME"),
            ("GET /api/v1/runs", self._list, "Runs and their progress; ?fleet=NAME"),
            ("GET /api/v1/results", self._results, f"Results of Runs, latest first; {filters}"),
            ("GET /api/v1/results/{fleet}/{wave}/{run}", result, "the Result of a Run"),
            ("GET /api/v1/results/{fleet}/{wave}/{run}/pods", pods, "pods of a Run, one JSON object per line"),
            ("GET /api/v1/plan", self._plan, "the current Plan"),
            ("GET /api/v1/source", self._part, "source of the files: revision and problems"),
            ("GET /api/v1/kwok", self._part, "kwok shards"),
            ("GET /api/v1/passes", self._part, "last passes, newest last"),
            ("GET /api/v1/events", self._events, "event log as server-sent events; ?after=NUMBER or Last-Event-ID"),
            ("POST /api/v1/sync", self._sync, "request a pass (token)"),
            ("POST /api/v1/suspend", partial(self._suspend, on=True), fleet_body),
            ("POST /api/v1/resume", partial(self._suspend, on=False), fleet_body),
            ("POST /api/v1/approve", self._approve, '{"digest": DIGEST} (token)'),
            ("POST /hooks/git", self._pushed, "webhook of GitHub or GitLab (signed)"),
        ]

    # calls to the daemon

    async def _quick(self, call: Callable[..., Value], *arguments: object) -> Value:
        return await _within(self._limits.quick_s, self._quick_pool, call, *arguments)

    async def _slow(self, call: Callable[..., Value], *arguments: object) -> Value:
        return await _within(self._limits.slow_s, self._slow_pool, call, *arguments)

    # reads

    async def _index(self, _: Request) -> Response:
        width = max(len(route) for route, _, _ in self._routes())
        lines = [f"{route.ljust(width)}  {about}\n" for route, _, about in self._routes()]
        return PlainTextResponse("kwokfleet\n\n" + "".join(lines))

    async def _healthz(self, _: Request) -> Response:
        alive, cause = await self._quick(self._daemon.liveness)
        return _probe_response("ok" if alive else snapshot_json.without_userinfo(cause), passed=alive)

    async def _readyz(self, request: Request) -> Response:
        ready, sentences = await self._quick(self._daemon.readiness)
        state = "ready" if ready else "not ready"
        verbose = "verbose" in request.query_params
        lines = [state, *map(snapshot_json.without_userinfo, sentences)] if verbose or not ready else [state]
        return _probe_response("\n".join(lines), passed=ready)

    async def _metrics(self, request: Request) -> Response:
        content, kind = await self._quick(self._page, request.headers.get("accept", ""))
        return Response(content, headers={"content-type": kind})

    async def _document(self) -> dict[str, Any]:
        return snapshot_json.to_json(await self._quick(self._daemon.snapshot))

    async def _status(self, _: Request) -> Response:
        return _json(await self._document())

    async def _part(self, request: Request) -> Response:
        """Return the part of the status document that the path names."""
        return _json((await self._document())[request.url.path.rpartition("/")[2]])

    async def _fleet(self, request: Request, *, pools: bool = False) -> Response:
        name = request.path_params["name"]
        for fleet in (await self._document())["fleets"]:
            if fleet["name"] == name:
                return _json(fleet["pools"] if pools else fleet)
        raise _no_fleet(name)

    async def _list(self, request: Request) -> Response:
        resource = request.url.path.rpartition("/")[2]
        return _json(await self._slow(self._daemon.list_objects, resource, request.query_params.get("fleet", "")))

    async def _results(self, request: Request) -> Response:
        query = request.query_params
        limit = query.get("limit", str(_DEFAULT_RESULTS))
        if not limit.isascii() or not limit.isdigit() or not 0 < int(limit) <= _MAX_RESULTS:
            what = f"limit: must be a number from 1 to {_MAX_RESULTS}, got {limit}"
            raise ErrorResponse(HTTPStatus.BAD_REQUEST, what, f"without it, {_DEFAULT_RESULTS} are listed")
        names = query.get("fleet", ""), query.get("wave", "")
        return _json(await self._slow(self._daemon.results, *names, int(limit)))

    async def _result_file(self, request: Request, file: str, kind: str) -> Response:
        """Send a stored file as it is; one with pods may be long."""
        names = [request.path_params[name] for name in ("fleet", "wave", "run")]
        path = await self._slow(self._daemon.result_file, *names, file)
        if not path:
            hint = "GET /api/v1/results lists Results; pods are stored when a Run ends"
            raise ErrorResponse(HTTPStatus.NOT_FOUND, f"{file} of Run {'/'.join(names)} not found", hint)
        return FileResponse(path, media_type=kind)

    async def _plan(self, _: Request) -> Response:
        return Response(await self._slow(self._daemon.plan), media_type="application/json")

    # writes

    async def _sync(self, request: Request) -> Response:
        await self._authorized_body(request, ())
        await self._quick(self._daemon.request_pass, PassReason.HTTP)
        return _json({"asked": True}, HTTPStatus.ACCEPTED)

    async def _suspend(self, request: Request, *, on: bool) -> Response:
        fleet = (await self._authorized_body(request, ("fleet",))).get("fleet", "")
        state = await self._quick(self._daemon.snapshot)
        if fleet and fleet not in {known.name for known in state.fleets}:
            raise _no_fleet(fleet)
        await self._slow(self._daemon.suspend, fleet, on)
        return _json({"fleet": fleet, "suspended": on})

    async def _approve(self, request: Request) -> Response:
        digest = (await self._authorized_body(request, ("digest",))).get("digest")
        if not digest:
            raise ErrorResponse(HTTPStatus.UNPROCESSABLE_ENTITY, "digest is missing", 'send {"digest": "..."}')
        if not await self._slow(self._daemon.approve, digest):
            hint = "GET /api/v1/plan shows withheld changes with their digests; a changed Plan has a new digest"
            raise ErrorResponse(HTTPStatus.NOT_FOUND, "no withheld Plan has this digest", hint)
        return _json({"approved": digest})

    async def _authorized_body(self, request: Request, names: tuple[str, ...]) -> dict[str, str]:
        """Return the body of a write, if its token is valid and this daemon leads."""
        self._check_token(request)
        fields = _parse_body(request, await self._body(request, self._limits.api_body), names)
        state = await self._quick(self._daemon.snapshot)
        if not state.leading:
            hint = f"send it to the leader: {state.leader}" if state.leader else "no daemon leads now: try again"
            raise ErrorResponse(HTTPStatus.SERVICE_UNAVAILABLE, "this daemon is on standby", hint)
        return fields

    def _check_token(self, request: Request) -> None:
        if not self._token:
            hint = "start the daemon with --token-file FILE, or KWOKFLEET_TOKEN in its environment"
            raise ErrorResponse(HTTPStatus.FORBIDDEN, "writes over HTTP are disabled: no token is configured", hint)
        if not access.is_token(request.headers.get("authorization", ""), self._token):
            challenge = {"www-authenticate": 'Bearer realm="kwokfleet"'}
            hint = "send the header Authorization: Bearer TOKEN, with the daemon's token"
            raise ErrorResponse(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong", hint, challenge)

    async def _pushed(self, request: Request) -> Response:
        body = await self._body(request, self._limits.hook_body)
        status, message = await self._slow(self._daemon.handle_push, dict(request.headers), body)
        message = snapshot_json.without_userinfo(message)
        accepted = status < HTTPStatus.BAD_REQUEST
        return _json({"message": message} if accepted else {"error": message, "hint": ""}, status)

    async def _body(self, request: Request, limit: int) -> bytes:
        """Read the body within the limits of size and time."""
        what = f"the body is longer than {limit} bytes"
        too_long = ErrorResponse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, what, "send less")
        if int(request.headers.get("content-length", "0")) > limit:
            raise too_long
        received = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_s):
                async for part in request.stream():
                    received += part
                    if len(received) > limit:
                        raise too_long
        except TimeoutError:
            what = f"the body did not arrive within {self._limits.body_s:g} s"
            raise ErrorResponse(HTTPStatus.REQUEST_TIMEOUT, what, "send it at once") from None
        except ClientDisconnect:
            raise ErrorResponse(HTTPStatus.BAD_REQUEST, "the body ended early") from None
        return bytes(received)

    async def _events(self, request: Request) -> Response:
        state = await self._quick(self._daemon.snapshot)
        start_id = access.start_id(state.started)
        after, last_id = request.query_params.get("after"), request.headers.get("last-event-id")
        position = access.position(last_id or after or str(state.newest_event), start_id)
        if position is None:
            what = "Last-Event-ID is not an id of this API" if last_id else "after is not the number of an event"
            hint = "leave it out to start now, or use 0 for all events that are kept"
            raise ErrorResponse(HTTPStatus.BAD_REQUEST, what, hint)
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        stream = self._streams.open_stream(*position, start_id)
        if stream is None:
            what = "too many clients follow the event log"
            raise ErrorResponse(HTTPStatus.SERVICE_UNAVAILABLE, what, "try again", {"retry-after": "5"})
        return stream


async def _within(deadline_s: float, pool: thread_pool.ThreadPool, call: Callable[..., Value], *args: object) -> Value:
    """Call the daemon in a thread; raise if it does not answer in time."""
    try:
        async with asyncio.timeout(deadline_s):
            return await pool.run(call, *args)
    except TimeoutError:
        what = f"the daemon did not answer within {deadline_s:g} s"
        hint = "try again; if it persists, see the daemon's log"
        raise ErrorResponse(HTTPStatus.SERVICE_UNAVAILABLE, what, hint) from None
    except errors.KwokfleetError as error:
        invalid = isinstance(error, errors.InputError)
        status = HTTPStatus.UNPROCESSABLE_ENTITY if invalid else HTTPStatus.SERVICE_UNAVAILABLE
        raise ErrorResponse(status, str(error), error.hint) from error


def _parse_body(request: Request, body: bytes, names: tuple[str, ...]) -> dict[str, str]:
    """Return the fields of a JSON body; only *names* with text values are allowed."""
    if not body:
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        what = f"Content-Type must be application/json, got {kind or 'none'}"
        raise ErrorResponse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, what, "send Content-Type: application/json")
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        what = f"the body is not valid JSON: line {error.lineno}, column {error.colno}"
        raise ErrorResponse(HTTPStatus.BAD_REQUEST, what, "send a JSON object") from None
    if not isinstance(fields, dict) or any(name not in names or not isinstance(fields[name], str) for name in fields):
        hint = "send {" + ", ".join(f'"{name}": "..."' for name in names) + "}"
        raise ErrorResponse(HTTPStatus.UNPROCESSABLE_ENTITY, "the body has unknown fields or values", hint)
    return fields


def _no_fleet(name: str) -> ErrorResponse:
    return ErrorResponse(HTTPStatus.NOT_FOUND, f"Fleet {name!r} not found", "GET /api/v1/fleets lists all Fleets")


def _json(document: object, status: int = HTTPStatus.OK) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")


def _probe_response(text: str, *, passed: bool) -> Response:
    return PlainTextResponse(f"{text}\n", HTTPStatus.OK if passed else HTTPStatus.SERVICE_UNAVAILABLE)


def _error(status: int, what: str, hint: str, headers: Mapping[str, str] | None = None) -> Response:
    clean = snapshot_json.without_userinfo
    response = _json({"error": clean(what), "hint": clean(hint)}, status)
    response.headers.update(headers or {})
    return response


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  # for mypy: registered for this type only
    what, hint = "path not found", "GET / lists all paths"
    if isinstance(error, ErrorResponse):
        what, hint = error.detail, error.hint
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "")
        what, hint = f"{request.method} is not allowed for this path", f"use {allowed}"
    return _error(error.status_code, what, hint, error.headers)


async def _failed(_: Request, __: Exception) -> Response:
    return _error(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug in kwokfleet", "see the daemon's log")
