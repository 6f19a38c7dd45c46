"""The HTTP API of a running daemon: what it shows, and the few things that may be asked of it.

Reading needs nothing; whatever changes something needs the token, except the hook, which has a signature
of its own. Every call to the daemon runs in a thread and has a deadline: a daemon that hangs makes
the probes say so, instead of hanging with it.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
_RESULTS, _MOST_RESULTS = 50, 1000
"""How many a list shows, unless it is asked for others; and at most."""
_RESULT = "/api/v1/results/{fleet}/{wave}/{run}"
_ABOUT = {
    "GET /healthz": "200 while the daemon works, 503 when it hangs",
    "GET /readyz": "200 once it has synced, kwok lives and it leads or stands by; ?verbose tells each",
    "GET /metrics": "Prometheus",
    "GET /api/v1/status": "everything below in one document",
    "GET /api/v1/fleets": "each Fleet: nodes, pools, conditions, what is withheld, what is due",
    "GET /api/v1/fleets/{name}": "one of them",
    "GET /api/v1/fleets/{name}/pools": "its pools",
    "GET /api/v1/nodes": "each node; ?fleet=NAME only one Fleet's",
    "GET /api/v1/stages": "each Stage of ours; ?fleet=NAME",
    "GET /api/v1/waves": "each Wave and its Runs counted; ?fleet=NAME",
    "GET /api/v1/runs": "each Run, and how far it got; ?fleet=NAME",
    "GET /api/v1/results": "what was measured of each Run, the latest first; ?fleet=NAME, ?wave=NAME, ?limit=NUMBER",
    "GET /api/v1/results/{fleet}/{wave}/{run}": "all that was measured of one",
    "GET /api/v1/results/{fleet}/{wave}/{run}/pods": "its pods, a line of JSON each",
    "GET /api/v1/plan": "what differs now",
    "GET /api/v1/source": "where the files come from, their revision and problems",
    "GET /api/v1/kwok": "the kwok processes",
    "GET /api/v1/passes": "the last passes, newest last",
    "GET /api/v1/events": "changes as server-sent events; ?after=NUMBER or Last-Event-ID",
    "POST /api/v1/sync": "a pass now (token)",
    "POST /api/v1/suspend": '{"fleet": NAME}, or nothing for all (token)',
    "POST /api/v1/resume": '{"fleet": NAME}, or nothing for all (token)',
    "POST /api/v1/approve": '{"digest": DIGEST} (token)',
    "POST /hooks/git": "a push, as GitHub and GitLab tell of it (their signature)",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may cost."""

    api_body: int = 64 * 1024
    hook_body: int = 1024 * 1024
    body_s: float = 10.0
    """For the whole body to arrive."""
    quick_s: float = 5.0
    """For an answer out of the daemon's memory."""
    slow_s: float = 60.0
    """For a plan, or for what has to be written."""


class Refusal(Exception):  # noqa: N818  # an answer, not an accident
    """What is answered instead."""

    def __init__(self, status: HTTPStatus, what: str, hint: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(what)
        self.status, self.what, self.hint, self.headers = status, what, hint, headers


class Routes:
    """The API of one daemon."""

    def __init__(self, daemon: DaemonApi, page: Page, streams: Streams, token: str, limits: Limits) -> None:
        self._daemon, self._page, self._streams, self._token, self._limits = daemon, page, streams, token, limits
        self._quick_pool = thread_pool.Pool("quick", _QUICK_THREADS)
        self._slow_pool = thread_pool.Pool("slow", _SLOW_THREADS)
        self.app = Starlette(
            routes=[Route(path, endpoint, methods=[method]) for method, path, endpoint in self._routes()],
            exception_handlers={Refusal: _refused, HTTPException: _refused_by_router, Exception: _failed},
        )
        self.app.router.redirect_slashes = False

    def close(self) -> None:
        """Let go of the threads; call it after the server has stopped."""
        for pool in (self._quick_pool, self._slow_pool):
            pool.close()

    def _routes(self) -> list[tuple[str, str, Any]]:
        return [
            ("GET", "/", self._index),
            ("GET", "/healthz", self._healthz),
            ("GET", "/readyz", self._readyz),
            ("GET", "/metrics", self._metrics),
            ("GET", "/api/v1/status", self._status),
            ("GET", "/api/v1/fleets", self._part),
            ("GET", "/api/v1/fleets/{name}", self._fleet),
            ("GET", "/api/v1/fleets/{name}/pools", self._pools),
            *(("GET", f"/api/v1/{thing}", self._listed) for thing in ("nodes", "stages", "waves", "runs")),
            ("GET", "/api/v1/results", self._results),
            ("GET", _RESULT, self._result),
            ("GET", f"{_RESULT}/pods", self._pods),
            ("GET", "/api/v1/plan", self._plan),
            ("GET", "/api/v1/source", self._part),
            ("GET", "/api/v1/kwok", self._part),
            ("GET", "/api/v1/passes", self._part),
            ("GET", "/api/v1/events", self._events),
            ("POST", "/api/v1/sync", self._sync),
            ("POST", "/api/v1/suspend", self._suspend),
            ("POST", "/api/v1/resume", self._resume),
            ("POST", "/api/v1/approve", self._approve),
            ("POST", "/hooks/git", self._pushed),
        ]

    # calls to the daemon

    async def _quick(self, call: Callable[..., Value], *given: object) -> Value:
        return await _within(self._limits.quick_s, self._quick_pool, call, *given)

    async def _slow(self, call: Callable[..., Value], *given: object) -> Value:
        return await _within(self._limits.slow_s, self._slow_pool, call, *given)

    # reading

    async def _index(self, _: Request) -> Response:
        width = max(map(len, _ABOUT))
        lines = [f"{what.ljust(width)}  {about}\n" for what, about in _ABOUT.items()]
        return PlainTextResponse("kwokfleet\n\n" + "".join(lines))

    async def _healthz(self, _: Request) -> Response:
        good, why = await self._quick(self._daemon.liveness)
        return _probed("ok" if good else snapshot_json.without_userinfo(why), good=good)

    async def _readyz(self, request: Request) -> Response:
        good, reasons = await self._quick(self._daemon.readiness)
        verdict = "ready" if good else "not ready"
        verbose = "verbose" in request.query_params
        lines = [verdict, *map(snapshot_json.without_userinfo, reasons)] if verbose or not good else [verdict]
        return _probed("\n".join(lines), good=good)

    async def _metrics(self, request: Request) -> Response:
        content, kind = await self._quick(self._page, request.headers.get("accept", ""))
        return Response(content, headers={"content-type": kind})

    async def _document(self) -> dict[str, Any]:
        return snapshot_json.to_json(await self._quick(self._daemon.snapshot))

    async def _status(self, _: Request) -> Response:
        return _json(await self._document())

    async def _part(self, request: Request) -> Response:
        """Answer with the part of the whole document that the path names."""
        return _json((await self._document())[request.url.path.rpartition("/")[2]])

    async def _found(self, request: Request) -> dict[str, Any]:
        name = request.path_params["name"]
        found: list[dict[str, Any]] = [each for each in (await self._document())["fleets"] if each["name"] == name]
        if not found:
            raise _no_fleet(name)
        return found[0]

    async def _fleet(self, request: Request) -> Response:
        return _json(await self._found(request))

    async def _pools(self, request: Request) -> Response:
        return _json((await self._found(request))["pools"])

    async def _listed(self, request: Request) -> Response:
        thing = request.url.path.rpartition("/")[2]
        return _json(await self._slow(self._daemon.list_objects, thing, request.query_params.get("fleet", "")))

    async def _results(self, request: Request) -> Response:
        asked = request.query_params
        limit = asked.get("limit", str(_RESULTS))
        if not limit.isascii() or not limit.isdigit() or not 0 < int(limit) <= _MOST_RESULTS:
            what = f"limit: {limit} is no number from 1 to {_MOST_RESULTS}"
            raise Refusal(HTTPStatus.BAD_REQUEST, what, f"leave it out for {_RESULTS}")
        found = await self._slow(self._daemon.results, asked.get("fleet", ""), asked.get("wave", ""), int(limit))
        return _json(found)

    async def _result(self, request: Request) -> Response:
        return await self._kept(request, "result.json", "application/json")

    async def _pods(self, request: Request) -> Response:
        return await self._kept(request, "pods.ndjson", "application/x-ndjson")

    async def _kept(self, request: Request, file: str, kind: str) -> Response:
        """Answer with a file as it is; one of pods may be long."""
        names = [request.path_params[name] for name in ("fleet", "wave", "run")]
        found = await self._slow(self._daemon.result_file, *names, file)
        if not found:
            hint = "GET /api/v1/results lists them; pods are there once a Run is over"
            raise Refusal(HTTPStatus.NOT_FOUND, f"there is no {file} of a Run {'/'.join(names)}", hint)
        return FileResponse(found, media_type=kind)

    async def _plan(self, _: Request) -> Response:
        return Response(await self._slow(self._daemon.plan), media_type="application/json")

    # asking

    async def _sync(self, request: Request) -> Response:
        await self._asked(request, ())
        await self._quick(self._daemon.request_pass, PassReason.HTTP)
        return _json({"asked": True}, HTTPStatus.ACCEPTED)

    async def _suspend(self, request: Request) -> Response:
        return await self._turn(request, on=True)

    async def _resume(self, request: Request) -> Response:
        return await self._turn(request, on=False)

    async def _turn(self, request: Request, *, on: bool) -> Response:
        fleet = (await self._asked(request, ("fleet",))).get("fleet", "")
        shown = await self._quick(self._daemon.snapshot)
        if fleet and fleet not in {each.name for each in shown.fleets}:
            raise _no_fleet(fleet)
        await self._slow(self._daemon.suspend, fleet, on)
        return _json({"fleet": fleet, "suspended": on})

    async def _approve(self, request: Request) -> Response:
        digest = (await self._asked(request, ("digest",))).get("digest")
        if not digest:
            raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "no digest is named", 'send {"digest": "..."}')
        if not await self._slow(self._daemon.approve, digest):
            hint = (
                "GET /api/v1/plan shows what is withheld, each with its digest; a plan that has changed has a new one"
            )
            raise Refusal(HTTPStatus.NOT_FOUND, "nothing of that digest waits for an approval", hint)
        return _json({"approved": digest})

    async def _asked(self, request: Request, names: tuple[str, ...]) -> dict[str, str]:
        """Return what a request that changes something asks for, if whoever sent it may, and we can."""
        self._admit(request)
        asked = _read(request, await self._body(request, self._limits.api_body), names)
        shown = await self._quick(self._daemon.snapshot)
        if not shown.leading:
            hint = f"ask the leader, {shown.leader}" if shown.leader else "nobody leads at the moment: try again"
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "this daemon stands by and changes nothing", hint)
        return asked

    def _admit(self, request: Request) -> None:
        if not self._token:
            hint = "start the daemon with --token-file FILE, or KWOKFLEET_TOKEN in its environment"
            raise Refusal(HTTPStatus.FORBIDDEN, "changes over HTTP are off: no token is configured", hint)
        if not access.is_token(request.headers.get("authorization", ""), self._token):
            challenge = {"www-authenticate": 'Bearer realm="kwokfleet"'}
            hint = "send the header Authorization: Bearer TOKEN, with the daemon's token"
            raise Refusal(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong", hint, challenge)

    async def _pushed(self, request: Request) -> Response:
        body = await self._body(request, self._limits.hook_body)
        status, said = await self._slow(self._daemon.handle_push, dict(request.headers), body)
        said = snapshot_json.without_userinfo(said)
        return _json({"message": said} if status < HTTPStatus.BAD_REQUEST else {"error": said, "hint": ""}, status)

    async def _body(self, request: Request, limit: int) -> bytes:
        """Read a body that is neither too long nor too slow."""
        too_long = Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is longer than {limit} bytes", "send less")
        if int(request.headers.get("content-length", "0")) > limit:
            raise too_long
        read = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_s):
                async for part in request.stream():
                    read += part
                    if len(read) > limit:
                        raise too_long
        except TimeoutError:
            what = f"the body did not arrive within {self._limits.body_s:g} s"
            raise Refusal(HTTPStatus.REQUEST_TIMEOUT, what, "send it at once") from None
        except ClientDisconnect:
            raise Refusal(HTTPStatus.BAD_REQUEST, "the body ended early") from None
        return bytes(read)

    async def _events(self, request: Request) -> Response:
        shown = await self._quick(self._daemon.snapshot)
        life = access.life(shown.started)
        asked, seen = request.query_params.get("after"), request.headers.get("last-event-id")
        at = access.position(seen or asked or str(shown.newest_event), life)
        if at is None:
            what = "Last-Event-ID: not an id of ours" if seen else "after: not the number of an event"
            raise Refusal(HTTPStatus.BAD_REQUEST, what, "leave it out to start from now, or use 0 for all remembered")
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        stream = self._streams.opened(*at, life)
        if stream is None:
            raise Refusal(
                HTTPStatus.SERVICE_UNAVAILABLE, "too many clients follow the events", "try again", {"retry-after": "5"}
            )
        return stream


async def _within(deadline_s: float, pool: thread_pool.Pool, call: Callable[..., Value], *given: object) -> Value:
    """Return what the daemon answers from a thread, or say that it does not."""
    try:
        async with asyncio.timeout(deadline_s):
            return await pool.run(call, *given)
    except TimeoutError:
        what = f"the daemon did not answer within {deadline_s:g} s"
        raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, what, "try again; if it stays so, see its log") from None
    except errors.KwokfleetError as error:
        wrong = isinstance(error, errors.InputError)
        status = HTTPStatus.UNPROCESSABLE_ENTITY if wrong else HTTPStatus.SERVICE_UNAVAILABLE
        raise Refusal(status, str(error), error.hint) from error


def _read(request: Request, body: bytes, names: tuple[str, ...]) -> dict[str, str]:
    """Return the texts of some names out of a JSON body; an empty body has none."""
    if not body:
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        what = f"the body is {kind or 'of no content type'}"
        raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, what, "send Content-Type: application/json")
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Refusal(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {where}", "send a JSON object") from None
    fits = isinstance(asked, dict) and all(name in names and isinstance(asked[name], str) for name in asked)
    if not fits:
        known = ", ".join(f'"{name}": "..."' for name in names)
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "the body asks for something unknown", f"send {{{known}}}")
    return dict(asked)


def _no_fleet(name: str) -> Refusal:
    return Refusal(HTTPStatus.NOT_FOUND, f"there is no Fleet {name!r}", "GET /api/v1/fleets lists them")


def _json(document: object, status: int = HTTPStatus.OK) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")


def _probed(text: str, *, good: bool) -> Response:
    return PlainTextResponse(f"{text}\n", HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE)


def _error(status: int, what: str, hint: str, headers: Mapping[str, str] | None = None) -> Response:
    clean = snapshot_json.without_userinfo
    made = _json({"error": clean(what), "hint": clean(hint)}, status)
    made.headers.update(headers or {})
    return made


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)  # noqa: S101  # for the type: it is registered for no other
    return _error(error.status, error.what, error.hint, error.headers)


async def _refused_by_router(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  # for the type: it is registered for no other
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "")
        return _error(error.status_code, f"{request.method} is not for this path", f"use {allowed}", error.headers)
    return _error(error.status_code, "there is no such path", "GET / lists them", error.headers)


async def _failed(_: Request, __: Exception) -> Response:
    return _error(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug in kwokfleet", "see the daemon's log")
