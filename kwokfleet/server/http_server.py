"""The HTTP side of a daemon, put together: routes inside a gate, served by a server.

service = web.Service(daemon, metrics.page, metrics.served, web.Options(port=8265, token=token))
service.start()
...
service.stop()
"""

from dataclasses import dataclass, field

import structlog

from kwokfleet.server import access, middleware, routes, sse, uvicorn_thread
from kwokfleet.server.daemon_api import DaemonApi

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Options:
    """Where and how to serve."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 is any that is free."""
    token: str = field(default="", repr=False)
    """What a request that changes something must present; without one nothing can be changed over HTTP."""
    limits: routes.Limits = field(default_factory=routes.Limits)
    deadlines: uvicorn_thread.Deadlines = field(default_factory=uvicorn_thread.Deadlines)
    most_at_once: int = middleware.MOST_AT_ONCE
    """Requests that are being answered, streams of events among them."""
    most_streams: int = sse.MOST_CLIENTS
    heartbeat_s: float = sse.HEARTBEAT_S


class Service:
    """Serves one daemon until it is stopped. Raises HostError if the address cannot be had."""

    def __init__(self, daemon: DaemonApi, page: routes.Page, served: middleware.Served, options: Options) -> None:
        loopback = access.is_loopback(options.host)
        self._open = not loopback and not options.token
        self._streams = sse.Streams(daemon.events, most=options.most_streams, heartbeat_s=options.heartbeat_s)
        self._routes = routes.Routes(daemon, page, self._streams, options.token, options.limits)
        guarded = middleware.Gate(self._routes.app, loopback=loopback, served=served, most_at_once=options.most_at_once)
        self._server = uvicorn_thread.Server(guarded, options.host, options.port, options.deadlines)
        self.address = self._server.address
        self.url = self._server.url

    def start(self) -> None:
        """Serve; return when requests are answered."""
        if self._open:
            log.warning(
                "http_open_to_others", url=self.url, hint="whoever reaches it can read everything; nobody can change it"
            )
        self._server.start()

    def stop(self) -> None:
        """Stop within a few seconds, whoever is connected; all threads are gone then."""
        self._streams.end()
        self._server.stop()
        self._streams.close()
        self._routes.close()
