"""HTTP server of a daemon: routes inside the middleware, served by uvicorn in a thread."""

from dataclasses import dataclass, field

import structlog

from kwokfleet.server import access, middleware, routes, sse, uvicorn_thread
from kwokfleet.server.daemon_api import DaemonApi

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Address, token and limits of the HTTP server."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 selects a free port."""
    token: str = field(default="", repr=False)
    """Token of writes; without one, writes over HTTP are disabled."""
    limits: routes.RequestLimits = field(default_factory=routes.RequestLimits)
    deadlines: uvicorn_thread.ConnectionDeadlines = field(default_factory=uvicorn_thread.ConnectionDeadlines)
    max_concurrent: int = middleware.MAX_CONCURRENT
    """Limit of concurrent requests, event streams included."""
    max_streams: int = sse.MAX_CLIENTS
    heartbeat_s: float = sse.HEARTBEAT_S


class HttpServer:
    """Serves one daemon until it is stopped. Raises HostError if it cannot listen on the address."""

    def __init__(self, daemon: DaemonApi, page: routes.Page, served: middleware.Served, options: HttpOptions) -> None:
        loopback = access.is_loopback(options.host)
        self._open = not loopback and not options.token
        self._streams = sse.Streams(daemon.events, limit=options.max_streams, heartbeat_s=options.heartbeat_s)
        self._routes = routes.Routes(daemon, page, self._streams, options.token, options.limits)
        app = middleware.Middleware(
            self._routes.app, loopback=loopback, served=served, max_concurrent=options.max_concurrent
        )
        self._server = uvicorn_thread.UvicornThread(app, options.host, options.port, options.deadlines)
        self.address = self._server.address
        self.url = self._server.url

    def start(self) -> None:
        """Start; return when requests are served."""
        if self._open:
            hint = "every client that reaches this address can read everything; writes are disabled"
            log.warning("http_without_token", url=self.url, hint=hint)
        self._server.start()

    def stop(self) -> None:
        """Stop within a few seconds, also with open connections; all threads have ended then."""
        self._streams.end()
        self._server.stop()
        self._streams.close()
        self._routes.close()
